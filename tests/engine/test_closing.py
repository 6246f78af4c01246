"""What closing an engine leaves behind: the heat of its experts on the disk, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftagent.engine import load
from ftagent.engine.engine import start_engine
from ftagent.engine.experts.heat import fingerprint, heat_file, keep_heat, load_heat
from ftagent.engine.options import EngineOptions
from ftagent.engine.weights.safetensors import open_checkpoint
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.toy import ToyRunner
from tests.support.toy_engine import toy_engine


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Counted:
    """Experts of two layers, used as often as their numbers say."""

    slots, experts = 3, 4

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def heat(self) -> list[list[int]]:
        if self._error is not None:
            raise self._error
        return [[1, 2], [3, 4]]


def test_heat_is_kept_for_the_next_start() -> None:
    keep_heat("key", Counted())
    assert load_heat(heat_file("key"), 2, 2) == [[1, 2], [3, 4]]


def test_nothing_is_kept_of_a_model_without_a_name_or_all_resident() -> None:
    keep_heat("", Counted())
    resident = Counted()
    resident.slots = 4
    keep_heat("key", resident)
    assert not heat_file("key").parent.exists()


def test_a_fault_of_the_heat_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    keep_heat("key", Counted(RuntimeError("the link is dead")))
    assert "the heat of the experts is not kept (RuntimeError: the link is dead)" in caplog.text
    assert not heat_file("key").exists()


def test_what_a_run_used_is_resident_at_the_next_start(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 1, {})
    options = EngineOptions(experts="6", mode="offload", threads=1)
    runner = load.load_runner(tmp_path, options)
    logits_by_chunks(runner, oracle.tokens(30), [20])
    assert runner.experts is not None
    heat = [list(layer) for layer in runner.experts.heat()]
    keep_heat(runner.info.fingerprint, runner.experts)
    runner.close()
    key = fingerprint(open_checkpoint(tmp_path))
    assert load_heat(heat_file(key), 4, 8) == heat
    hottest = max(range(8), key=lambda expert: heat[0][expert])
    again = load.load_runner(tmp_path, options).experts
    assert again is not None
    assert again.heat()[0][hottest] > 0


def test_closing_closes_the_runner_once_and_keeps_its_heat(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ToyRunner()
    with toy_engine(runner) as engine:
        engine.close()
        engine.close()
    assert runner.closed == 1
    assert engine.health == "stopped"


@pytest.mark.parametrize("error", [ValueError("no tokenizer"), KeyboardInterrupt()])
def test_a_start_that_fails_behind_the_model_closes_it(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ToyRunner()

    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(load, "load_runner", lambda directory, options, progress=None: runner)
    monkeypatch.setattr("ftagent.engine.engine.Preparer.from_directory", fail)
    with pytest.raises(type(error)):
        start_engine(EngineOptions(model=str(tmp_path)))
    assert runner.closed == 1
