"""`ftagent plan` as it is typed: the table, the object, exit codes, and speeds of a measured machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ftagent import demo
from ftagent.cli import cli
from ftagent.commands.plan import WIDTH, lines, record
from ftagent.engine.machine.probe import probe
from ftagent.engine.machine.profile import CpuFigures, Line, LinkFigures, Profile, fingerprint, store_profile
from ftagent.engine.options import EngineOptions
from ftagent.engine.preview import Speed, preview
from ftagent.errors import LoadFailed
from tests.support.command import ftagent


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments], standalone_mode=False)


def found(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    (line,) = done.stdout.splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_the_table_fits_sixty_columns() -> None:
    for arguments in (
        ("demo",),
        ("demo", "--vram", "24GiB", "--experts", "30"),
        ("demo", "--device", "cpu", "--vram", "1GiB"),
    ):
        done = run(*arguments)
        assert done.exception is None
        assert all(len(line) <= WIDTH == 60 for line in done.stdout.splitlines())
        for words in ("dense weights", "KV of ", "states", "experts", "in all", "context    65,536 tokens"):
            assert words in done.stdout
    assert "device memory" in done.stdout
    assert "device memory" not in run("demo").stdout


def test_a_long_name_is_wrapped_and_whole(tmp_path: Path) -> None:
    plan = replace(preview(demo.directory(), EngineOptions()), directory=Path("/models/" + "long-" * 30))
    shown = list(lines(plan))
    assert all(len(line) <= WIDTH for line in shown)
    assert "long-" * 30 in "".join(shown)


def test_the_object_adds_up() -> None:
    plan = found("demo", "--vram", "24GiB", "--ram", "8GiB", "--context", "4096", "--experts", "0.5")
    assert plan["type"] == "plan"
    assert (plan["device"], plan["family"], plan["fits"]) == ("cuda", "qwen3_5_moe", True)
    assert (plan["context"], plan["mode"]) == (4096, "hybrid")
    assert (plan["experts"]["slots"], plan["experts"]["total"]) == (64, 128)
    for side in ("device", "host"):
        memory = plan["memory"][side]
        assert memory["need"] == sum(pool["bytes"] for pool in memory["pools"]) <= memory["have"]
    kinds = {pool["kind"]: pool["bytes"] for side in plan["memory"].values() for pool in side["pools"]}
    assert set(kinds) == {
        *("dense", "states", "copies", "decode", "cuda", "staging", "prefill", "kv", "slots"),
        *("banks", "process", "kept"),
    }
    assert kinds["slots"] == 64 * plan["experts"]["slot_bytes"]
    assert kinds["kept"] == plan["kept"]["bytes"]
    assert plan["memory"]["host"]["have"] == 8 * 2**30


def test_docs_name_every_key_and_kind_of_the_object() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    plan = found("demo", "--vram", "24GiB")
    keys = {*plan, *plan["experts"], *plan["kept"], *plan["memory"], *plan["speed"]}
    keys |= {pool["kind"] for side in plan["memory"].values() for pool in side["pools"]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_what_does_not_fit_is_shown_and_refused() -> None:
    done = run("demo", "--vram", "700MiB")
    assert isinstance(done.exception, LoadFailed)
    assert "it does not fit" in done.stdout
    assert "729.7 MiB    444.0 MiB" in done.stdout
    plan = found("demo", "--vram", "700MiB", "--ram", "20MiB")
    assert plan["fits"] is False
    assert len(plan["refusals"]) == 2
    assert "experts on disk are not supported yet" in plan["refusals"][1]


def test_exit_codes_and_streams(tmp_path: Path) -> None:
    fits = ftagent("plan", "demo", "--json", directory=tmp_path)
    assert (fits.returncode, fits.stderr) == (0, "")
    assert json.loads(fits.stdout)["fits"] is True
    small = ftagent("plan", "demo", "--vram", "700MiB", directory=tmp_path)
    assert small.returncode == 3
    assert "in all" in small.stdout
    assert small.stderr.startswith("ftagent: ")
    assert "GiB may be used" in small.stderr
    for arguments, code, words in (
        (("absent/model",), 3, "absent"),
        (("demo", "--vram", "many"), 2, "--vram"),
        (("demo", "--context", "999999"), 2, "context 999999 is more than"),
        ((), 2, "MODEL"),
    ):
        done = ftagent("plan", *arguments, directory=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr


def measured(**changes: Any) -> Profile:
    size = 3 * 256 * 112 * 4
    line = Line(1_000, 20_000_000_000)
    return replace(
        Profile(
            *(fingerprint(probe(), None), "2026-12-01T00:00:00+00:00", 2, 40_000_000_000),
            cpu=(CpuFigures("float32", size, "native", line, None, 2_000),),
        ),
        **changes,
    )


def test_speeds_are_unknown_until_the_machine_is_measured() -> None:
    speed = found("demo", "--device", "cpu")["speed"]
    assert (speed["decode_tokens_per_s"], speed["prefill_tokens_per_s"]) == (None, None)
    assert "ftagent bench bandwidth" in speed["unknown"]
    store_profile(measured())
    speed = found("demo", "--device", "cpu")["speed"]
    assert speed["unknown"] is None
    assert speed["measured"] == "2026-12-01T00:00:00+00:00"
    assert speed["decode_tokens_per_s"] > 10
    assert speed["prefill_tokens_per_s"] > speed["decode_tokens_per_s"]
    assert "about" in run("demo", "--device", "cpu").stdout


def test_figures_of_another_kind_are_not_taken_for_these() -> None:
    store_profile(measured(cpu=()))
    assert "float32 were not measured" in found("demo", "--device", "cpu")["speed"]["unknown"]
    store_profile(measured())
    few = found("demo", "--device", "cpu", "--experts", "9")["speed"]
    assert "experts stored as float8_e4m3fn are not measured" in few["unknown"]
    store_profile(measured(link=(LinkFigures(10, Line(0, 1)),)))
    assert "no such GPU" in found("demo", "--vram", "24GiB")["speed"]["unknown"]


def test_an_assumed_hit_rate_is_said() -> None:
    plan = preview(demo.directory(), EngineOptions(vram="24GiB"))
    plan = replace(plan, speed=Speed(83.4, 1234.0, 0.761, "2026-12-01"))
    shown = "\n".join(lines(plan))
    assert "decode     about 83 tokens/s, an estimate" in shown
    assert "at an assumed hit rate of 0.76" in shown
    assert record(plan)["speed"]["hit_rate"] == 0.761
