"""The comparison of servers: what is measured, in which order, and what is done about servers that fail."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import compare, read_engines, schedule
from benchmarks.serving.client import Reply, ServerError
from benchmarks.serving.measure import Engine, Plan, decode_rate, measure
from benchmarks.serving.prompts import Prompts
from benchmarks.serving.results import Run, read_runs, table
from benchmarks.walk.shapes import TINY
from benchmarks.walk_checkpoint import make_checkpoint
from ftagent.engine.prompt.tokenizer import Tokenizer

SERVER = f"{sys.executable} {Path(__file__).with_name('scripted_server.py')}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(directory, TINY["qwen3_moe"], None, seed=1, device="cpu", threads=2)
    return directory


@pytest.fixture
def plan(checkpoint: Path, tmp_path: Path) -> Plan:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sizes = {"context": 30, "generate": 12, "skip": 4, "prefill": (20, 50), "warm_context": 50, "warm_new": 6}
    return Plan(checkpoint, tmp_path, repeats=2, port=port, ready_s=60, **sizes)  # type: ignore[arg-type]


def asked(plan: Plan, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (plan.logs / f"{name}.0.log").read_text().splitlines()]


def test_a_run_asks_what_the_plan_says_and_leaves_no_process(plan: Plan) -> None:
    run = measure(Engine("a", SERVER + " {port} secret", announces=True), plan, 0)
    assert (run.error, run.problems) == ("", [])
    requests = [(body["prompt"], body["max_tokens"]) for body in asked(plan, "a")]
    warm_up = [(8, 2), (20, 2), (50, 2), (30, 48)]
    assert requests == warm_up + 2 * [(30, 12), (20, 2), (50, 2), (56, 2)]
    fixed = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "ignore_eos": True, "stream": True}
    assert all(fixed.items() <= body.items() for body in asked(plan, "a"))
    assert [len(values) for values in run.first_token.values()] == [2, 2, 2]
    assert (len(run.decode), len(run.gaps_ms), run.warm_cached) == (2, 14, [50, 50])
    assert run.load_s is not None
    assert run.load_s < run.total_s
    assert not any(str(plan.port) in command(pid) for pid in os.listdir("/proc") if pid.isdigit())


def command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").partition("scripted_server.py")[2]
    except OSError:
        return ""


def test_a_server_without_a_token_is_found_at_its_port(plan: Plan) -> None:
    engine = Engine("plain", SERVER + " {port}", extra={"cache_prompt": False})
    run = measure(engine, replace(plan, repeats=1), 0)
    assert (run.error, len(run.decode)) == ("", 1)
    assert all(body["cache_prompt"] is False for body in asked(plan, "plain"))


def test_wrong_counts_are_told(plan: Plan) -> None:
    run = measure(Engine("b", SERVER + " {port} t miscount", announces=True), replace(plan, repeats=1), 0)
    assert "asked for 20 + 2 tokens, usage says 21 + 2" in run.problems


def test_a_reply_that_leaves_the_walk_is_told(plan: Plan) -> None:
    run = measure(Engine("b", SERVER + " {port}"), replace(plan, repeats=1, walk=True), 0)
    assert run.problems == ["the reply leaves the script of the checkpoint"]


def test_a_server_that_dies_is_an_error_with_its_last_words(plan: Plan) -> None:
    run = measure(Engine("dead", "bash -c 'echo no such GPU >&2; exit 7'"), plan, 0)
    assert "exited with 7" in run.error
    assert "no such GPU" in run.error


def test_a_server_that_never_answers_is_given_up(plan: Plan) -> None:
    run = measure(Engine("deaf", "sleep 100"), replace(plan, ready_s=0.5), 0)
    assert "not ready after 0 s" in run.error
    assert run.total_s < 20


def test_the_budget_ends_a_run_early(plan: Plan) -> None:
    run = measure(Engine("a", SERVER + " {port}"), replace(plan, budget_s=0), 0)
    assert run.error == ""
    assert run.decode == []
    assert "budget of 0 s used up" in run.problems[0]


def test_rounds_alternate_and_only_what_is_missing_is_run() -> None:
    a, b, c = (Engine(name, "") for name in "abc")
    names = [(engine.name, number) for engine, number in schedule([a, b, c], 2, [])]
    assert names == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("b", 1), ("a", 1)]
    done = [Run("b", 0, ""), Run("c", 0, "", error="x"), Run("a", 1, "")]
    assert [(e.name, n) for e, n in schedule([a, b, c], 2, done)] == [("a", 0), ("c", 0), ("c", 1), ("b", 1)]


def test_a_call_ends_in_time_and_is_taken_up_again(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    engines = [Engine("a", SERVER + " {port}"), Engine("dead", "false")]
    short = replace(plan, repeats=1, budget_s=50)
    compare(engines, short, rounds=1, deadline_s=10)
    assert read_runs(plan.logs) == []
    compare(engines, short, rounds=1, deadline_s=100)
    first, second = read_runs(plan.logs)
    assert (first.error, bool(second.error)) == ("", True)
    capsys.readouterr()
    compare(engines, short, rounds=1, deadline_s=100)
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["dead"]


def test_decode_rate_by_chunk_and_by_count() -> None:
    stamps = (1.0, 1.5, 2.0, 2.1, 2.3, 2.4)
    rate, gaps = decode_rate(Reply(stamps, "", 0, 6), skip=2)
    assert rate == pytest.approx(3 / 0.4)
    assert gaps == pytest.approx([0.1, 0.2, 0.1])
    assert decode_rate(Reply(stamps, "", 0, 12), skip=2)[0] == pytest.approx((12 - 1 - 4) / 0.4)
    with pytest.raises(ServerError, match="2 chunks"):
        decode_rate(Reply((1.0, 2.0), ""), skip=0)


def test_the_table_shows_medians_over_rounds_and_what_went_wrong() -> None:
    one = Run("ours", 0, "", [50.0, 52.0], [10.0] * 99 + [30.0], {"2048": [0.5]}, [0.1], [8192], 9.0)
    one.vram_loaded, one.vram_peak, one.host_peak, one.expert_gib = 9.0, 9.5, 30.0, 27.0
    two = Run("ours", 1, "", [54.0], [], {"2048": [0.25, 1.0]}, [0.3], [0], 7.0, problems=["odd"])
    lines = table([one, two, Run("theirs", 0, "", error="no GPU")]).splitlines()
    assert "prefill tok/s 2048 |" in lines[0]
    assert lines[2] == (
        "| ours | 2 of 2 | **52.0** (50.0, 52.0, 54.0) | 10.0 / 30.0 (3.00) | 4096 | 0.200 (4096) | 8.0 |"
        " 4.5 / 9.5 | 30.0 (1.11x) |"
    )
    assert lines[3].startswith("| theirs | 0 of 1 | **-**")
    assert lines[-2:] == ["- ours, round 1: odd", "- theirs, round 0: failed: no GPU"]


def test_prompts_are_exact_fresh_and_the_same_for_every_engine_of_a_round(checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_directory(checkpoint)
    for walk in (False, True):
        first, same, other = (Prompts(checkpoint, seed, walk=walk) for seed in ("r0", "r0", "r1"))
        ids = first.fresh(300)
        assert tokenizer.encode(first.text(ids)) == ids
        assert ids == same.fresh(300)
        assert ids != first.fresh(300)
        assert ids != other.fresh(300)


def test_the_engines_file_is_sound_and_mistakes_are_named(tmp_path: Path) -> None:
    engines = read_engines(Path(peers.__file__).with_name("engines.toml"))
    assert len(engines) > 4
    assert all("{model}" in engine.launch and "{port}" in engine.launch for engine in engines)
    file = tmp_path / "engines.toml"
    file.write_text('[[engine]]\nname = "x"\nlaunch = "y"\nannounce = true\n')
    with pytest.raises(ValueError, match=r"engine x: .*announce"):
        read_engines(file)
    file.write_text('[[engine]]\nname = "x"\nlaunch = "y"\n' * 2)
    with pytest.raises(ValueError, match="same name"):
        read_engines(file)


@pytest.mark.slow
def test_our_own_server_is_measured_without_a_complaint(plan: Plan) -> None:
    serve = f"{sys.executable} -m ftagent serve --experts 0.3 --threads 1"
    launch = serve + " --model {model} --port {port} --json"
    run = measure(Engine("ours", launch, announces=True), replace(plan, repeats=1, walk=True), 0)
    assert (run.error, run.problems) == ("", [])
    assert run.warm_cached == [50]
