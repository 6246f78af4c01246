"""What the bench commands print, from figures that the test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ftagent.cli import cli
from ftagent.commands import bench
from ftagent.engine import anchor_bench
from ftagent.engine import bench as measuring
from ftagent.engine.anchor_bench import AnchorsResult, AnchorsWish, ReplayResult, RestartResult
from ftagent.engine.bench import DecodeResult, expert_figures
from ftagent.engine.experts.calibration import costs_from
from ftagent.engine.machine import bandwidth as module
from ftagent.engine.machine.bandwidth import BandwidthOptions, BandwidthResult, Bandwidths
from ftagent.engine.machine.gpus import Gpu
from ftagent.engine.machine.probe import probe
from ftagent.engine.machine.profile import (
    CpuFigures,
    Line,
    LinkFigures,
    Profile,
    fingerprint,
    load_profile,
    profile_file,
)
from ftagent.engine.machine.record_pool import expert_bytes, expert_sizes
from ftagent.engine.machine.rounds import Spread
from ftagent.engine.stats import ExpertStats
from ftagent.errors import ConfigError

CARD = Gpu("Card", "GPU-1", driver="580")


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftagent.paths.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr("ftagent.paths.config_file", lambda: tmp_path / "config.toml")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def made_up(options: BandwidthOptions, gpu: Gpu | None) -> BandwidthResult:
    size = expert_bytes(options.sizes)
    link = LinkFigures(size, Line(9_500, 55_000_000_000), Line(9_500, 52_000_000_000))
    cpu = CpuFigures(
        *("bfloat16", size, "native", Line(2_000, 120_000_000_000), Line(3_000, 110_000_000_000), 4_000)
    )
    machine = probe()
    both = Spread(52.0, 51.0, 53.0, 9) if gpu else None
    return BandwidthResult(
        machine=replace(machine, gpus=(gpu,) if gpu else ()),
        gpu=gpu,
        no_link=None if gpu else "no NVIDIA driver is loaded",
        sizes=options.sizes,
        expert_bytes=size,
        pool_bytes=2**31,
        way="native",
        isa="avx512bf16",
        bandwidths=Bandwidths(
            *(Spread(120.0, 100.0, 130.0, 9),) * 4, *(both,) * 6, ((14, 120.0), (11, 99.0))
        ),
        profile=Profile(
            *(fingerprint(machine, gpu), "2026-12-01", 14, 148_000_000_000),
            link=(link,) if gpu else (),
            cpu=(cpu,),
        ),
    )


Asked = Callable[[Gpu | None], list[BandwidthOptions]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Makes up a machine with the GPU; gives the list of what is asked of it."""

    def install(gpu: Gpu | None) -> list[BandwidthOptions]:
        seen: list[BandwidthOptions] = []

        def answer(options: BandwidthOptions) -> BandwidthResult:
            seen.append(options)
            return made_up(options, gpu)

        monkeypatch.setattr(module, "bench_bandwidth", answer)
        return seen

    return install


def test_the_object_holds_every_figure_and_the_profile_is_kept(asked: Asked) -> None:
    seen = asked(CARD)
    found = json.loads(run("bandwidth", "--hidden", "2048", "--intermediate", "768", "--json"))
    assert seen == [BandwidthOptions(expert_sizes(2048, 768, "bfloat16"))]
    assert (found["bench"], found["expert_bytes"], found["threads"]) == ("bandwidth", 9_437_184, 14)
    assert found["gb_per_s"]["both_link"] == {"median": 52.0, "low": 51.0, "high": 53.0, "runs": 9}
    assert found["lines"]["link"][0]["alone"]["bytes_per_s"] == 55_000_000_000
    assert found["machine"]["gpus"][0]["uuid"] == "GPU-1"
    assert found["no_link"] is None
    stored = load_profile(fingerprint(probe(), CARD))
    assert stored is not None
    assert found["profile"] == str(profile_file(stored.fingerprint))
    costs = costs_from(stored, expert_sizes(2048, 768, "bfloat16"))
    assert found["costs"]["fetch_expert"] == costs.fetch_expert


def test_another_shape_is_added_to_the_profile(asked: Asked) -> None:
    asked(CARD)
    run("bandwidth", "--hidden", "2048", "--intermediate", "768")
    run("bandwidth", "--hidden", "2048", "--intermediate", "512")
    stored = load_profile(fingerprint(probe(), CARD))
    assert stored is not None
    assert {each.piece_bytes for each in stored.link} == {9_437_184, 6_291_456}


def test_without_a_gpu_its_figures_are_null_with_the_reason(asked: Asked, tmp_path: Path) -> None:
    asked(None)
    found = json.loads(
        run("bandwidth", "--hidden", "8", "--intermediate", "8", "--json", "--no-store", "--device", "cpu")
    )
    empty = ("link_linear", "link_one", "link_queued", "both_cpu", "both_link", "device_read")
    assert all(found["gb_per_s"][name] is None for name in empty)
    assert found["gb_per_s"]["cpu_one"]["median"] == 120
    assert (found["no_link"], found["profile"], found["gpu"]) == ("no NVIDIA driver is loaded", None, None)
    assert not (tmp_path / "cache").exists()


def test_the_table_names_what_was_measured(asked: Asked) -> None:
    asked(CARD)
    shown = run("bandwidth", "--hidden", "2048", "--intermediate", "768")
    for words in ("9.44 MB", "avx512bf16; 14 threads", "11: 99.0, 14: 120.0", "Card", "100.0 to 130.0"):
        assert words in shown
    assert shown.count("52.0  51.0 to 53.0") == 6
    asked(None)
    shown = run("bandwidth", "--hidden", "2048", "--intermediate", "768", "--no-store")
    assert shown.count("-  no NVIDIA driver is loaded") == 6
    assert "not kept" in shown


def test_the_shape_comes_from_the_model(asked: Asked) -> None:
    seen = asked(None)
    run("bandwidth", "--no-store", "--device", "cuda:1", "--threads", "3", "--seconds", "2")
    run("bandwidth", "--no-store", "--dtype", "bfloat16")
    demo = measuring.model_expert_sizes("demo")
    assert seen[0] == BandwidthOptions(demo, seconds=2.0, threads=3, device=1, required=True)
    assert seen[1].sizes == expert_sizes(demo.hidden, demo.intermediate, "bfloat16")


def test_half_a_shape_is_refused(asked: Asked) -> None:
    asked(None)
    with pytest.raises(ConfigError, match="belong together"):
        CliRunner().invoke(cli, ["bench", "bandwidth", "--hidden", "8"], catch_exceptions=False)


STATS = ExpertStats(
    *(900, 100, 90, 10, 42, (0.9,)),
    fetched=60,
    cpu_computed=30,
    split=10,
    bytes_link=3 * 10**9,
    bytes_cpu=10**9,
    q=0.66,
    q_optimum=0.7,
    mode="hybrid",
    mode_reason="measured",
)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode bench that takes no time."""

    @contextmanager
    def engine(settings: object, reference: bool) -> Iterator[Any]:
        yield SimpleNamespace()

    def answer(engine: object, **options: int) -> DecodeResult:
        figures = expert_figures(None, STATS)
        return DecodeResult("m", "cuda:0", options["context"], options["tokens"], 120.0, (120.0,), 5, figures)

    monkeypatch.setattr(bench, "open_engine", engine)
    monkeypatch.setattr(measuring, "bench_decode", answer)


@pytest.mark.usefixtures("decoded")
def test_decode_reports_the_experts() -> None:
    found = json.loads(run("decode", "--json"))
    assert found["experts"]["hit_rate"] == 0.9
    assert (found["experts"]["bytes_link"], found["experts"]["q"]) == (3 * 10**9, 0.66)
    assert (found["experts"]["guessed"], found["experts"]["mode"]) == (None, "hybrid")
    assert found["machine"]["cores"] >= 1
    shown = run("decode")
    for words in (
        "90.0% of 1,000; 42 evictions",
        "hybrid (measured)",
        "60 fetched, 30 on the CPU, 10 split",
        "3.00 GB over the link, 1.00 GB read by the CPU",
        "0.66 of the missing records fetched, 0.70 would be best",
    ):
        assert words in shown


def test_anchors_asks_for_what_the_flags_say_and_shows_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[AnchorsWish] = []
    figures = ReplayResult("append only", 1, 90, 60, 30, 59, 31, 0.98, 0.25, 1.5, 0.167, 1, True)
    again = RestartResult(100, 80, 0.3, 2.0, 1.6, 0.15, False)

    def answer(wish: AnchorsWish, say: Callable[[str], None]) -> AnchorsResult:
        seen.append(wish)
        return AnchorsResult("m", "cuda:0", 4096, 60, (figures,), again if wish.restart else None)

    monkeypatch.setattr(anchor_bench, "bench_anchors", answer)
    found = json.loads(
        run("anchors", "--tokens", "32000", "--context", "40000", "--anchors", "4GiB", "--json")
    )
    assert (seen[0].tokens, seen[0].cold_turns, seen[0].restart) == (32000, 1, True)
    assert (seen[0].options.context, seen[0].options.anchors) == (40000, "4GiB")
    assert found["replays"][0]["ratio"] == 0.167
    assert found["restart"]["cold_first_s"] == 2.0
    shown = run("anchors", "--system", "60", "--no-restart").splitlines()
    assert (seen[1].words, seen[1].tokens, seen[1].cold_turns, seen[1].restart) == (60, None, None, False)
    assert seen[1].sessions == 20
    assert shown[1].split() == "append only 1 60 30 59 31 98.0% 250 ms 1500 ms 0.167 yes".split()
    assert len(shown) == 3
    shown = run("anchors").splitlines()
    words = (
        "80 of 100 tokens from a file; first token 300 ms, cold 2000 ms (later 1600), ratio 0.150, equal: NO"
    )
    assert words in shown[2]
