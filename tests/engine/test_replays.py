"""The arithmetic of the anchors bench, and its replays on the embedded model in small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ftagent.engine import replays
from ftagent.engine.api import ModelInfo
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.engine.replays import Turn, bench_anchors
from ftagent.errors import ConfigError

MODEL = ModelInfo(id="toy", family="toy", context=100, vocab=9)


def turn(prompt: range, cached: int, seconds: float, *, first: bool = False, reply: int = 900) -> Turn:
    return Turn("one", first, tuple(prompt), (reply, reply), cached, seconds)


def test_figures_are_those_of_the_later_turns() -> None:
    warm = [
        turn(range(100), 0, 9.0, first=True),
        turn(range(120), 80, 1.0),
        turn(range(150), 120, 2.0),
    ]
    cold = [each._replace(cached=0, first_token_s=10 * each.first_token_s) for each in warm]
    (found,) = bench_anchors(MODEL, warm, cold).replays
    assert (found.turns, found.prompt, found.common, found.new) == (2, 270, 220, 50)
    assert found.recomputed == 70
    assert found.reused_share == 0.8
    assert (found.first_token_warm_s, found.first_token_cold_s) == (1.5, 15.0)
    assert found.warm_equals_cold


def test_a_reply_belongs_to_what_was_computed_but_for_its_last_token() -> None:
    first = turn(range(10), 0, 1.0, first=True)
    second = first._replace(first=False, prompt=(*range(10), 900, 900, 5), cached=11)
    (found,) = bench_anchors(MODEL, [first, second], [first, second]).replays
    assert (found.common, found.new, found.reused_share) == (11, 2, 1.0)


def test_a_reply_that_differs_is_seen_in_first_turns_too() -> None:
    warm = [turn(range(10), 0, 1.0, first=True), turn(range(20), 10, 1.0)]
    cold = [turn(range(10), 0, 1.0, first=True, reply=7), warm[1]]
    (found,) = bench_anchors(MODEL, warm, cold).replays
    assert not found.warm_equals_cold


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[LocalEngine, LocalEngine]]:
    warm = start_engine(EngineOptions(threads=1, context=4096))
    try:
        cold = start_engine(EngineOptions(threads=1, context=4096, anchors="0"))
        try:
            yield warm, cold
        finally:
            cold.close()
    finally:
        warm.close()


@pytest.mark.parametrize("replay", replays._REPLAYS, ids=lambda replay: replay.__name__)
def test_a_turn_costs_what_is_new_in_it(
    replay: replays.Replay, engines: tuple[LocalEngine, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the whole bench in small: all of the common prefix but one boundary's gap."""
    monkeypatch.setattr(replays, "SESSIONS", 3)
    monkeypatch.setattr(replays, "REPLY_TOKENS", 8)
    both = []
    for engine in engines:
        replayer = replays._Replayer(engine, 60)
        replay(replayer)
        both.append(replayer.turns)
        engine.scheduler.check_integrity()
    (found,) = bench_anchors(engines[0].model, *both).replays
    assert found.warm_equals_cold
    assert found.reused_share >= 0.9
    assert found.recomputed <= found.new + 0.1 * found.common
    assert all(not each.cached for each in both[1])


def test_a_context_that_is_too_short_is_said_before_anything_runs() -> None:
    class Short:
        model = MODEL

        def prompt_ids(self, conversation: object) -> list[int]:
            return [1] * 101

    with pytest.raises(ConfigError, match="need a context of 101 tokens and the model has 100"):
        replays.run_replays(Short(), 60)  # type: ignore[arg-type]
