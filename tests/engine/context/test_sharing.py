"""What two requests share is computed once: retries beside the first try, and requests that begin alike.

Counted are the tokens that the runner computes; the oracle is the number of different prefixes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.context.marks import NEAR
from ftagent.engine.context.sharing import LEAST_SHARED
from ftagent.engine.engine import LocalEngine
from ftagent.engine.job import Job
from ftagent.events import Event, Finished
from tests.engine.context.toys import Kind, cold_reply, new_runner
from tests.engine.test_scheduler import Bench, prompt_of, reply
from tests.support.toy import ToyRunner, cold_tokens
from tests.support.toy_engine import Gate, ask, collect, last, run, toy_engine, until

REPLY = 3
KINDS: tuple[Kind, ...] = get_args(Kind)


def new_bench(kind: Kind = "recurrent", anchors: int = 64, **limits: int) -> Bench:
    return Bench(new_runner(kind, 512, 8, 4, 900), anchors, **{"chunk_tokens": 16, **limits})


def computed(bench: Bench) -> int:
    """Prompt tokens that have been computed: all but those of replies."""
    steps = [chunk for step in bench.runner.steps for chunk in step]  # type: ignore[union-attr]
    return sum(len(chunk.tokens) for chunk in steps)


def prompt_work(bench: Bench, jobs: Sequence[Job]) -> int:
    """Without the tokens of replies, of which all but the last one of each are computed too."""
    return computed(bench) - sum(len(reply(job)) - 1 for job in jobs if reply(job))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [33, 64, 100, 257, 700])
@pytest.mark.parametrize("copies", [2, 5])
def test_equal_prompts_at_once_are_computed_once(length: int, copies: int, kind: Kind) -> None:
    bench = new_bench(kind)
    prompt = prompt_of(length, length)
    jobs = [bench.submit(prompt, REPLY) for _ in range(copies)]
    bench.drain()
    assert all(reply(job) == cold_reply(kind, prompt, REPLY) for job in jobs)
    assert prompt_work(bench, jobs) == length + copies - 1
    assert [job.cached for job in jobs] == [0, *[length - 1] * (copies - 1)]


@pytest.mark.parametrize("steps", range(8))
def test_a_retry_beside_the_first_try_computes_nothing_again(steps: int) -> None:
    """The first try goes on; the retry comes after so many of its ten chunks."""
    bench = new_bench()
    prompt = prompt_of(0, 160)
    first = bench.submit(prompt, REPLY)
    for _ in range(steps):
        bench.step()
    retry = bench.submit(prompt, REPLY)
    bench.drain()
    assert reply(first) == reply(retry) == cold_tokens(prompt, REPLY)
    assert prompt_work(bench, [first, retry]) == 161


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("keep", [True, False])
def test_a_retry_goes_on_where_the_first_try_was_broken_off(steps: int, keep: bool) -> None:
    """Its socket was closed, or its step failed, while the retry waited for it."""
    bench = new_bench()
    prompt = prompt_of(1, 160)
    first = bench.submit(prompt, REPLY)
    for _ in range(steps):
        bench.step()
    retry = bench.submit(prompt, REPLY)
    bench.scheduler.plan()
    assert retry in bench.scheduler.waiting
    bench.scheduler.finish(first, keep=keep)
    bench.drain()
    assert reply(retry) == cold_tokens(prompt, REPLY)
    assert retry.cached == 16 * steps
    assert prompt_work(bench, [retry]) == 160


@pytest.mark.parametrize("kind", KINDS)
def test_subagents_with_one_beginning_compute_it_once(kind: Kind) -> None:
    bench = new_bench(kind)
    stem = prompt_of(2, 200)
    jobs = [bench.submit(stem + prompt_of(10 + number, 40), REPLY) for number in range(4)]
    bench.drain()
    for job in jobs:
        assert reply(job) == cold_reply(kind, job.tokens[: job.prompt], REPLY)
    shared = 0 if kind != "pages" else max(_common(jobs[0].tokens, job.tokens) - 200 for job in jobs[1:])
    assert 200 + 4 * 40 - 3 * shared <= prompt_work(bench, jobs) <= 200 + 4 * 40


@given(
    stems=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    order=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 6)), min_size=2, max_size=8
    ),
    kind=st.sampled_from(KINDS),
)
def test_no_prefix_is_computed_twice(stems: list[int], order: list[tuple[int, int, int]], kind: Kind) -> None:
    """Requests that leave one long text at several places, a few steps apart from each other."""
    bench = new_bench(kind)
    text = prompt_of(3, 150)
    jobs: list[Job] = []
    for number, (stem, tail, pause) in enumerate(order):
        prompt = text[: stems[stem % len(stems)]] + prompt_of(100 + number, tail)
        jobs.append(bench.submit(prompt, REPLY))
        for _ in range(pause):
            bench.step()
    bench.drain()
    prefixes = {tuple(job.tokens[:end]) for job in jobs for end in range(1, job.prompt + 1)}
    for job in jobs:
        assert reply(job) == cold_reply(kind, job.tokens[: job.prompt], REPLY)
    # What is too little to wait for, and the last token, which each needs for its own logits. A state that
    # the first one has run past before the second came is not there: at most what they share, once.
    slack = (LEAST_SHARED + NEAR) * len(jobs)
    late = sum(max(stems) for _, _, pause in order[:-1] if pause) if kind != "pages" else 0
    assert prompt_work(bench, jobs) <= len(prefixes) + slack + late


def test_who_waits_keeps_its_place_and_lets_others_by() -> None:
    bench = new_bench(max_running=2)
    first = bench.submit(prompt_of(0, 200), 30)
    retry = bench.submit(prompt_of(0, 200), REPLY)
    other = bench.submit(prompt_of(1, 20), REPLY)
    bench.step()
    assert bench.scheduler.running == [first]
    assert list(bench.scheduler.waiting) == [retry, other], "the second place is the retry's"
    bench.drain()
    assert reply(other) == cold_tokens(prompt_of(1, 20), REPLY)
    wide = new_bench(max_running=3)
    jobs = [wide.submit(prompt_of(0, 200), REPLY) for _ in range(2)]
    short = wide.submit(prompt_of(1, 6), REPLY)
    for _ in range(4):
        wide.step()
    assert reply(short) == cold_tokens(prompt_of(1, 6), REPLY), "it need not wait for the long one"
    assert wide.scheduler.waiting
    wide.drain()
    assert reply(jobs[0]) == reply(jobs[1]) == cold_tokens(prompt_of(0, 200), REPLY)


def test_where_nothing_is_kept_nobody_waits() -> None:
    bench = new_bench(anchors=0)
    jobs = [bench.submit(prompt_of(0, 100), REPLY) for _ in range(2)]
    bench.step()
    assert bench.scheduler.running == jobs
    bench.drain()
    assert reply(jobs[0]) == reply(jobs[1]) == cold_tokens(prompt_of(0, 100), REPLY)


@pytest.mark.parametrize("seed", range(6))
def test_twins_in_small_pools_all_finish(seed: int) -> None:
    """Twins that are cancelled, sent back and starved of pages and states: none waits for ever."""
    dice = random.Random(seed)
    runner = ToyRunner(pages=dice.choice([40, 60]), slots=3, context=150)
    bench = Bench(runner, anchors=dice.choice([1, 2, 9]), chunk_tokens=8)
    jobs: list[Job] = []
    for _ in range(40):
        stem = prompt_of(dice.randrange(3), 60)[: dice.randrange(40, 61)]
        prompt = stem + prompt_of(9, dice.randrange(1, 9))
        jobs += [bench.submit(prompt, dice.randrange(1, 40)) for _ in range(dice.randrange(1, 4))]
        for job in jobs[-5:]:
            job.cancelled |= dice.random() < 0.1
        for _ in range(dice.randrange(6)):
            bench.step()
        if len(bench.scheduler.waiting) > 30:
            bench.drain()
    bench.drain()
    for job in jobs:
        if not job.cancelled:
            assert reply(job) == cold_tokens(job.tokens[: job.prompt], job.limit - job.prompt)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(second))


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_an_engines_reader_that_leaves_and_asks_again(steps: int) -> None:
    """The reader's socket closes inside the prompt; the same request then costs what was not done yet."""
    gate = Gate(steps)
    runner = ToyRunner(before_step=gate)
    prompt = prompt_of(0, 80)

    async def leave(engine: LocalEngine) -> None:
        events = engine.generate(ask(prompt, 5))
        await anext(events)
        await until(lambda: len(runner.steps) == steps)
        await events.aclose()
        gate.open()

    with toy_engine(runner) as engine:
        asyncio.run(leave(engine))
        finished = last(run(engine, ask(prompt, 5)))
        assert list(finished.token_ids) == cold_tokens(prompt, 5)
        assert finished.usage.cached_tokens >= 8 * steps
        assert sum(len(chunk.tokens) for step in runner.steps for chunk in step) == 80 + 4


def test_an_engine_asked_twice_at_once_answers_both_and_computes_once() -> None:
    gate = Gate(3)
    runner = ToyRunner(before_step=gate)
    prompt = prompt_of(0, 80)

    async def both(engine: LocalEngine) -> list[list[Event]]:
        first = asyncio.ensure_future(collect(engine.generate(ask(prompt, 5))))
        await until(lambda: len(runner.steps) == 3)
        second = asyncio.ensure_future(collect(engine.generate(ask(prompt, 5))))
        gate.open()
        return [await first, await second]

    with toy_engine(runner) as engine:
        replies = asyncio.run(both(engine))
    for events in replies:
        assert list(last(events).token_ids) == cold_tokens(prompt, 5)
    assert isinstance(replies[1][-1], Finished)
    assert replies[1][-1].usage.cached_tokens == 79
    assert sum(len(chunk.tokens) for step in runner.steps for chunk in step) == 80 + 1 + 2 * 4
