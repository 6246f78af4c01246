"""The arithmetic of the anchors bench, and its replays on the embedded model in small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent.conversation import Conversation
from ftagent.engine import anchor_bench, replays
from ftagent.engine.anchor_bench import AnchorsWish, Cold, compared, replay_results
from ftagent.engine.api import ModelInfo
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.engine.replays import Turn
from ftagent.errors import ConfigError, LoadFailed

MODEL = ModelInfo(id="toy", family="toy", context=100, vocab=9)
OPTIONS = EngineOptions(threads=1, context=4096)


def turn(prompt: range, cached: int, seconds: float, *, first: bool = False, reply: int = 900) -> Turn:
    return Turn("one", first, tuple(prompt), (reply, reply), cached, seconds, Conversation(()))


def cold(*turns: Turn) -> dict[int, Cold]:
    return {index: Cold(each.reply, each.first_token_s) for index, each in enumerate(turns)}


def test_figures_are_those_of_the_later_turns() -> None:
    warm = [
        turn(range(100), 0, 9.0, first=True),
        turn(range(120), 80, 1.0),
        turn(range(150), 120, 2.0),
    ]
    slow = cold(*(each._replace(first_token_s=10 * each.first_token_s) for each in warm))
    (found,) = replay_results(warm, slow)
    assert (found.turns, found.prompt, found.common, found.new) == (2, 270, 220, 50)
    assert (found.reused, found.recomputed, found.compared) == (200, 70, 2)
    assert found.reused_share == 0.8
    assert (found.first_token_warm_s, found.first_token_cold_s, found.ratio) == (1.5, 15.0, 0.1)
    assert found.warm_equals_cold


def test_a_few_turns_computed_cold_are_compared_with_themselves() -> None:
    warm = [turn(range(100), 0, 9.0, first=True), turn(range(120), 80, 8.0), turn(range(150), 120, 2.0)]
    assert compared(warm, None) == [0, 1, 2]
    assert compared(warm, 1) == [2]
    assert compared([each._replace(replay=name) for name in "ab" for each in warm], 1) == [2, 5]
    (found,) = replay_results(warm, {2: Cold(warm[2].reply, 4.0)})
    assert (found.first_token_warm_s, found.first_token_cold_s, found.ratio, found.compared) == (5, 4, 0.5, 1)
    assert found.warm_equals_cold


def test_a_reply_belongs_to_what_was_computed_but_for_its_last_token() -> None:
    first = turn(range(10), 0, 1.0, first=True)
    second = first._replace(first=False, prompt=(*range(10), 900, 900, 5), cached=11)
    (found,) = replay_results([first, second], cold(first, second))
    assert (found.common, found.new, found.reused_share) == (11, 2, 1.0)


def test_a_reply_that_differs_is_seen_in_first_turns_too() -> None:
    warm = [turn(range(10), 0, 1.0, first=True), turn(range(20), 10, 1.0)]
    (found,) = replay_results(warm, cold(turn(range(10), 0, 1.0, reply=7), warm[1]))
    assert not found.warm_equals_cold


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[LocalEngine, LocalEngine]]:
    warm = start_engine(OPTIONS)
    try:
        twin = start_engine(EngineOptions(threads=1, context=4096, anchors="0"))
        try:
            yield warm, twin
        finally:
            twin.close()
    finally:
        warm.close()


@pytest.mark.parametrize("replay", replays._REPLAYS, ids=lambda replay: replay.__name__)
def test_a_turn_costs_what_is_new_in_it(
    replay: replays.Replay, engines: tuple[LocalEngine, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the whole bench in small: all of the common prefix but one boundary's gap, which is the
    thought and the call before a result that is replaced: a larger part of these short prompts.
    """
    monkeypatch.setattr(replays, "REPLY_TOKENS", 8)
    both = []
    for engine in engines:
        replayer = replays._Replayer(engine, 60)
        replayer.sessions = 3
        replay(replayer)
        both.append(replayer.turns)
        engine.scheduler.check_integrity()
    assert [each.prompt for each in both[0]] == [each.prompt for each in both[1]]
    (found,) = replay_results(both[0], cold(*both[1]))
    assert found.warm_equals_cold
    assert found.reused_share >= (0.9 if replay is replays._result_replaced else 0.95)
    assert found.recomputed <= found.new + 0.05 * found.common
    assert all(not each.cached for each in both[1])


def test_a_context_that_is_too_short_is_said_before_anything_runs() -> None:
    class Short:
        model = MODEL

        def prompt_ids(self, conversation: object) -> list[int]:
            return [1] * 101

    with pytest.raises(ConfigError, match="need a context of 101 tokens and the model has 100"):
        replays.run_replays(Short(), 60)  # type: ignore[arg-type]


def test_a_system_text_of_as_many_tokens_as_asked_for(engines: tuple[LocalEngine, LocalEngine]) -> None:
    for tokens in (700, 3000):
        words = replays.words_for(engines[0], tokens)
        prompt = replays.run_first_turn(engines[0], words, 1).prompt
        assert tokens - 50 <= len(prompt) <= tokens + 250


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_bench_in_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four engines in processes of their own; the second start finds the file of the first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    found = anchor_bench.bench_anchors(AnchorsWish(OPTIONS, 60, cold_turns=1, sessions=2), said.append)
    assert len(said) == 4
    assert [replay.compared for replay in found.replays] == [1] * 7
    assert all(replay.warm_equals_cold and replay.reused_share > 0.9 for replay in found.replays)
    assert found.restart is not None
    assert found.restart.equal
    assert found.restart.reused > 100
    assert not list(tmp_path.glob("**/*.prefix")), "the files of the bench are its own"


def test_an_error_of_an_engine_is_the_error_of_the_bench(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"config\.json"):
        anchor_bench.bench_anchors(AnchorsWish(EngineOptions(model=str(tmp_path)), restart=False))
