"""What kept prompts save: agents' conversations and a second start, beside an engine that keeps nothing.

Every engine runs in a process of its own, one after the other. So a start is a start, and what one has taken
of a device is given back before the next one plans with it. Knows no command line.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

from ftagent.engine import replays
from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.engine.replays import Turn
from ftagent.errors import EngineError
from ftagent.events import Failed, Finished, Progress

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AnchorsWish:
    """What to measure: `words` of system text, or as many as make `tokens` with what else begins a prompt.

    `cold_turns` of each replay, the last ones, are computed once more by an engine that keeps nothing; None:
    all. `restart`: measure a second start too. `sessions` take turns in the last replay.
    """

    options: EngineOptions
    words: int = 600
    tokens: int | None = None
    cold_turns: int | None = None
    restart: bool = True
    sessions: int = replays.SESSIONS


class Cold(NamedTuple):
    """A turn on an engine that keeps nothing. The time is that of rendering the prompt, and from there to the
    first token.
    """

    reply: tuple[int, ...]
    first_token_s: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The later turns of one replay together, in tokens. `common` is the longest prefix that a prompt shares
    with an earlier prompt and its reply, `new` what lies behind it; `reused_share` is the smallest over the
    turns of what was reused of `common`. First tokens in seconds, medians: warm ones of all turns, cold ones
    and `ratio` (warm to cold) of the `compared` ones.
    """

    replay: str
    turns: int
    prompt: int
    common: int
    new: int
    reused: int
    recomputed: int
    reused_share: float
    first_token_warm_s: float
    first_token_cold_s: float
    ratio: float
    compared: int
    warm_equals_cold: bool


@dataclass(frozen=True, slots=True)
class RestartResult:
    """The first request of a second start, with the system text and tools of the first one.

    `cold_first_s` is what an engine that keeps nothing takes for the same prompt as its first request, and
    `cold_s` for the same again: `ratio` is to the former.
    """

    prompt: int
    reused: int
    first_token_s: float
    cold_first_s: float
    cold_s: float
    ratio: float
    equal: bool


@dataclass(frozen=True, slots=True)
class AnchorsResult:
    model: str
    device: str
    context: int
    system_words: int
    replays: tuple[ReplayResult, ...]
    restart: RestartResult | None


class _Warm(NamedTuple):
    model: ModelInfo
    words: int
    turns: list[Turn]


def bench_anchors(wish: AnchorsWish, say: Callable[[str], None] = lambda line: None) -> AnchorsResult:
    """Measure. `say` is told what is going on.

    Raises LoadFailed and ConfigError as a start does, EngineError when an engine fails.
    """
    # Replies are compared, so nothing but the model may decide what is sampled.
    wish = replace(wish, options=replace(wish.options, keep_prefixes=False, constrain_tools="required"))
    again = None
    if wish.restart:
        with tempfile.TemporaryDirectory(prefix="ftagent-bench-") as root:
            options = replace(wish.options, keep_prefixes=True, prefix_root=root)
            keeping = replace(wish, options=options)
            say("first start: a prompt is computed, and its beginning kept in a file")
            _apart(_start, keeping, 1)
            say("second start: the same beginning")
            again = _apart(_start, keeping, 2)
    say("replays on an engine that keeps prompts")
    warm = _apart(_replay, wish)
    chosen = compared(warm.turns, wish.cold_turns)
    asked = [*([again, again] if again else []), *(warm.turns[index] for index in chosen)]
    say(f"{len(asked)} of these prompts on an engine that keeps none")
    found = _apart(_compute, replace(wish, options=replace(wish.options, anchors="0")), asked)
    restart = None
    if again is not None:
        restart = _restart(again, found[0], found[1])
        found = found[2:]
    results = tuple(replay_results(warm.turns, dict(zip(chosen, found, strict=True))))
    model = warm.model
    return AnchorsResult(model.id, model.device, model.context, warm.words, results, restart)


def compared(turns: Sequence[Turn], most: int | None) -> list[int]:
    """Which turns an engine that keeps nothing is to compute too: the last `most` of each replay."""
    if most is None:
        return list(range(len(turns)))
    found: list[int] = []
    for name in dict.fromkeys(turn.replay for turn in turns):
        later = [index for index, turn in enumerate(turns) if turn.replay == name and not turn.first]
        found += later[-most:]
    return found


def replay_results(warm: Sequence[Turn], cold: Mapping[int, Cold]) -> Iterator[ReplayResult]:
    """One result for each replay, in order. What a reply's last token would have cost counts as new: it is
    sampled, but not computed. `cold` has turns by their number.
    """
    names = list(dict.fromkeys(turn.replay for turn in warm))
    commons = _commons(warm)
    for name in names:
        chosen = [index for index, turn in enumerate(warm) if turn.replay == name and not turn.first]
        both = [index for index in chosen if index in cold]
        prompts = sum(len(warm[index].prompt) for index in chosen)
        common = sum(commons[index] for index in chosen)
        reused = sum(warm[index].cached for index in chosen)
        cold_s = statistics.median(cold[index].first_token_s for index in both)
        yield ReplayResult(
            replay=name,
            turns=len(chosen),
            prompt=prompts,
            common=common,
            new=prompts - common,
            reused=reused,
            recomputed=prompts - reused,
            reused_share=min(warm[index].cached / max(commons[index], 1) for index in chosen),
            first_token_warm_s=statistics.median(warm[index].first_token_s for index in chosen),
            first_token_cold_s=cold_s,
            ratio=statistics.median(warm[index].first_token_s for index in both) / cold_s,
            compared=len(both),
            warm_equals_cold=all(
                warm[index].reply == found.reply
                for index, found in cold.items()
                if warm[index].replay == name
            ),
        )


def _restart(again: Turn, first: Cold, later: Cold) -> RestartResult:
    return RestartResult(
        prompt=len(again.prompt),
        reused=again.cached,
        first_token_s=again.first_token_s,
        cold_first_s=first.first_token_s,
        cold_s=later.first_token_s,
        ratio=again.first_token_s / first.first_token_s,
        equal=again.reply == first.reply == later.reply,
    )


def _apart(function: Callable[..., Result], *arguments: object) -> Result:
    """What `function` returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise EngineError("the process of an engine ended; perhaps there was no memory left") from error


def _words(engine: LocalEngine, wish: AnchorsWish) -> int:
    return wish.words if wish.tokens is None else replays.words_for(engine, wish.tokens)


def _start(wish: AnchorsWish, number: int) -> Turn:
    engine = start_engine(wish.options)
    try:
        return replays.run_first_turn(engine, _words(engine, wish), number)
    finally:
        engine.close()


def _replay(wish: AnchorsWish) -> _Warm:
    engine = start_engine(wish.options)
    try:
        words = _words(engine, wish)
        return _Warm(engine.model, words, replays.run_replays(engine, words, wish.sessions))
    finally:
        engine.close()


def _compute(wish: AnchorsWish, turns: Sequence[Turn]) -> list[Cold]:
    engine = start_engine(wish.options)
    try:
        return [asyncio.run(_cold(engine, turn)) for turn in turns]
    finally:
        engine.close()


async def _cold(engine: LocalEngine, turn: Turn) -> Cold:
    """The very ids of a turn's prompt: rendered anew, its replies could be written with other ids."""
    sampling = SamplingParams(max_tokens=replays.REPLY_TOKENS, temperature=0.0)
    begin = time.perf_counter()
    engine.prompt_ids(turn.conversation)
    first: float | None = None
    async for event in engine.generate(GenerateRequest(turn.prompt, sampling)):
        if first is None and not isinstance(event, Progress):
            first = time.perf_counter() - begin
        if isinstance(event, Failed):
            raise EngineError(event.message)
        if isinstance(event, Finished):
            return Cold(event.token_ids, first or time.perf_counter() - begin)
    raise EngineError("the engine gave no answer")


def _commons(turns: Sequence[Turn]) -> list[int]:
    """For each request the longest prefix of its prompt that an earlier request has computed."""
    known: list[tuple[int, ...]] = []
    found = []
    for turn in turns:
        found.append(max((_common(turn.prompt, other) for other in known), default=0))
        known.append((*turn.prompt, *turn.reply[:-1]))
    return found


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low
