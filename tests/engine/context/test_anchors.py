"""Prompt reuse: resumed output equals cold output under edits, cancellations and full pools."""

from __future__ import annotations

import itertools
import random

import pytest

from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.tree import token_key
from ftagent.engine.context.value import STALE_REQUESTS
from ftagent.engine.job import Job
from tests.engine.test_scheduler import Bench, prompt_of, reply
from tests.support.toy import VOCAB, ToyRunner, cold_tokens


def test_second_turn_resumes_at_the_end_of_the_reply() -> None:
    bench = Bench(ToyRunner())
    first = bench.submit(prompt_of(0, 21), 10)
    bench.drain()
    second = bench.submit([*first.tokens, 1, 2, 3], 10)
    bench.drain()
    assert second.cached == len(first.tokens) - 1  # the last token was sampled, not computed
    assert reply(second) == cold_tokens(second.tokens[: second.prompt], 10)


def test_edit_of_an_early_message_resumes_before_it() -> None:
    bench = Bench(ToyRunner(pages=256, context=1000), chunk_tokens=64)
    system = prompt_of(0, 600)
    turns = [prompt_of(seed, 10) for seed in range(1, 7)]
    marks = tuple(600 + 10 * turn for turn in range(6))
    bench.submit([*system, *itertools.chain(*turns)], 5, marks)
    bench.drain()
    turns[1] = prompt_of(99, 10)
    edited = bench.submit([*system, *itertools.chain(*turns)], 5, marks)
    bench.drain()
    assert edited.cached == 610
    assert reply(edited) == cold_tokens(edited.tokens[: edited.prompt], 5)


def test_short_system_prompt_is_reused_from_the_second_turn_on() -> None:
    bench = Bench(ToyRunner(page_size=64, pages=16))
    history = prompt_of(0, 20)
    computed = 0
    for turn in range(3):
        history = history + prompt_of(turn + 1, 7)
        job = bench.submit(history, 4, marks=(20,))
        bench.drain()
        assert reply(job) == cold_tokens(history, 4)
        assert job.cached == computed
        computed = len(job.tokens) - 1
        history = job.tokens


def test_an_aborted_request_leaves_no_foreign_state() -> None:
    bench = Bench(ToyRunner(pages=12, slots=1), anchors=1, chunk_tokens=8)
    old = bench.submit(prompt_of(0, 20), 5)
    bench.step()
    old.cancelled = True
    other = bench.submit(prompt_of(1, 20), 5)  # takes the slot over
    bench.drain()
    again = bench.submit(prompt_of(0, 20), 5)
    bench.drain()
    assert reply(other) == cold_tokens(prompt_of(1, 20), 5)
    assert reply(again) == cold_tokens(prompt_of(0, 20), 5)


def test_keys_are_the_tokens_themselves() -> None:
    """No hash decides: prompts that differ in one late token never share state behind it."""
    bench = Bench(ToyRunner())
    one, two = prompt_of(0, 30), prompt_of(0, 30)
    two[25] = (two[25] + 1) % VOCAB
    bench.submit(one, 3, marks=(20, 26))
    bench.drain()
    job = bench.submit(two, 3, marks=(20, 26))
    bench.drain()
    assert job.cached == 20
    assert reply(job) == cold_tokens(two, 3)


def test_cancelled_after_ten_tokens_then_continued() -> None:
    bench = Bench(ToyRunner())
    job = bench.submit(prompt_of(0, 15), 60)
    while len(job.tokens) < 25:
        bench.step()
    job.cancelled = True
    bench.drain()
    going_on = [*job.tokens, 7, 8, 9]
    second = bench.submit(going_on, 10)
    bench.drain()
    assert second.cached >= 24
    assert reply(second) == cold_tokens(going_on, 10)


def test_two_at_once_from_one_anchor_in_the_middle_of_a_page() -> None:
    bench = Bench(ToyRunner(page_size=16, pages=32))
    first = bench.submit(prompt_of(0, 20), 4)
    bench.drain()
    stem = first.tokens[:-1]
    jobs = [bench.submit(stem + prompt_of(seed, 9), 6) for seed in (1, 2, 3)]
    bench.drain()
    assert [job.cached for job in jobs] == [len(stem)] * 3
    for job in jobs:
        assert reply(job) == cold_tokens(job.tokens[: job.prompt], 6)


def test_anchors_give_way_to_live_requests() -> None:
    bench = Bench(ToyRunner(pages=8))
    for seed in range(4):
        bench.submit(prompt_of(seed, 10), 2)
        bench.drain()
    big = bench.submit(prompt_of(9, 28), 4)
    bench.drain()
    assert reply(big) == cold_tokens(prompt_of(9, 28), 4)


def test_whole_pool_prompt_runs_cold_when_resuming_would_not_fit() -> None:
    bench = Bench(ToyRunner(pages=4))
    first = bench.submit(prompt_of(0, 6), 4)
    bench.drain()
    full = bench.submit([*first.tokens[:9], *prompt_of(1, 4)], 3)
    bench.drain()
    assert reply(full) == cold_tokens(full.tokens[: full.prompt], 3)


def test_capacity_bounds_the_anchors_unused_ones_first() -> None:
    runner = ToyRunner()
    cache = PrefixCache(runner.kv, runner.recurrent, 2)
    slot = runner.recurrent.allocate()

    def found(seed: int) -> int:
        return cache.find(token_key([*prompt_of(seed, 12), 5]), 13).position

    for seed in range(3):
        pages = runner.kv.allocate(3)
        visit = cache.begin(cache.find(token_key(prompt_of(seed, 12)), 12), 12)
        assert cache.keep(token_key(prompt_of(seed, 12)), 12, pages, slot, visit, mark=True)
        cache.end(visit, 12, 12)
        runner.kv.release(pages)
        if seed == 1:
            cache.begin(cache.find(token_key([*prompt_of(0, 12), 5]), 13), 13)  # a use of the older one
        cache.check_integrity()
    assert len(cache) == 2
    assert [found(seed) for seed in range(3)] == [12, 0, 12]
    assert cache.find(token_key(prompt_of(0, 12)), 12).position == 0  # nothing would be left to compute


@pytest.mark.parametrize("seed", range(6))
def test_warm_equals_cold_under_random_edits(seed: int) -> None:
    dice = random.Random(seed)
    runner = ToyRunner(pages=dice.choice([30, 80]), page_size=dice.choice([4, 16]), slots=3, context=120)
    bench = Bench(runner, anchors=dice.choice([2, 6, 24]), chunk_tokens=dice.choice([8, 64]))
    history = prompt_of(seed, 12)
    cached = 0
    for turn in range(60):
        history = _edited(history, dice)
        marks = tuple(sorted(dice.sample(range(1, len(history)), min(4, len(history) - 1))))
        jobs = [bench.submit(history, dice.randrange(1, 12), marks)]
        if dice.random() < 0.3:
            jobs.append(bench.submit(history[: dice.randrange(1, len(history))] + prompt_of(turn, 3), 5))
        for _ in range(dice.randrange(12)):
            bench.step()
        for job in jobs:
            job.cancelled = dice.random() < 0.2
        bench.drain()
        for job in jobs:
            cached += job.cached
            count = len(reply(job))
            assert reply(job) == cold_tokens(job.tokens[: job.prompt], count)
        history = jobs[0].tokens
    assert cached > 0


def _edited(history: list[int], dice: random.Random) -> list[int]:
    """One edit as agents make them: go on, cut the middle out, change one token, or start over."""
    kind = dice.randrange(5)
    history = history[-70:] if kind == 4 else history[:70]
    if kind == 0 and len(history) > 8:
        cut = dice.randrange(2, len(history) - 2)
        history = history[:cut] + history[cut + dice.randrange(4) :]
    elif kind == 1:
        history = list(history)
        history[dice.randrange(len(history))] = dice.randrange(VOCAB)
    elif kind == 2:
        history = history[: dice.randrange(1, len(history) + 1)]
    return history + dice.choices(range(VOCAB), k=dice.randrange(1, 8))


def test_a_fork_is_kept_for_the_next_time() -> None:
    """The second request shows where the first one's prompt parts; the third one resumes there."""
    bench = Bench(ToyRunner(pages=200, context=400))
    stem = prompt_of(0, 60)
    cached = []
    for seed in (1, 2, 3):
        job = bench.submit(stem + prompt_of(seed, 40), 4)
        bench.drain()
        cached.append(job.cached)
        assert reply(job) == cold_tokens(job.tokens[: job.prompt], 4)
    assert cached == [0, 0, 60]


@pytest.mark.parametrize("agent", [True, False])
@pytest.mark.parametrize("anchors", [8, 64])
@pytest.mark.parametrize("pages", [90, 400])
def test_titles_never_push_the_conversation_out(anchors: int, pages: int, agent: bool) -> None:
    """From the first turn on where tools are offered, else from the second one on."""
    bench = Bench(ToyRunner(pages=pages, context=360), anchors=anchors, chunk_tokens=64)
    history = prompt_of(0, 120)
    for turn in range(8):
        job = Job("main", history, len(history) + 6, (len(history),), agent=agent)
        bench.scheduler.submit(job)
        bench.drain()
        assert job.cached == (job.prompt - 8 if turn else 0)  # the reply's last token was not computed
        for title in range(12 if turn or agent else 0):
            bench.submit(prompt_of(1000 + 20 * turn + title, 50), 3, marks=(20, 40))
            bench.drain()
        history = [*job.tokens, *prompt_of(turn + 1, 7)]


def test_a_new_conversation_takes_the_place_of_one_that_is_not_used_any_more() -> None:
    bench = Bench(ToyRunner(), anchors=2)
    old = bench.submit(prompt_of(0, 30), 4)
    bench.drain()
    bench.submit([*old.tokens, 1], 4)
    bench.drain()
    for turn in range(2 * STALE_REQUESTS):
        job = bench.submit(prompt_of(turn + 1, 30), 2)
        bench.drain()
    again = bench.submit([*job.tokens, 1, 2], 2)
    bench.drain()
    assert again.cached == len(job.tokens) - 1


def test_every_chunk_can_be_resumed_before_the_prompt_is_done() -> None:
    """Also by another request, and although the first one's step fails later."""
    bench = Bench(ToyRunner(), chunk_tokens=16)
    prompt = prompt_of(0, 100)
    failing = bench.submit(prompt, 4)
    for _ in range(3):
        bench.step()
    bench.scheduler.finish(failing, keep=False)
    again = bench.submit(prompt, 4)
    bench.drain()
    assert again.cached == 48
    assert reply(again) == cold_tokens(prompt, 4)


def test_chunks_of_a_prompt_leave_one_anchor_behind() -> None:
    bench = Bench(ToyRunner(), chunk_tokens=8)
    bench.submit(prompt_of(0, 100), 4, marks=(50,))
    bench.drain()
    assert len(bench.prefix) == 3  # the mark, the end of the prompt, the end of the reply


def test_the_newest_anchors_outlive_the_older_ones_of_a_conversation() -> None:
    bench = Bench(ToyRunner(pages=400, context=700), anchors=3)
    history = prompt_of(0, 40)
    for turn in range(12):
        job = bench.submit(history, 5)
        bench.drain()
        assert job.cached == (len(history) - 21 if turn else 0)
        history = [*job.tokens, *prompt_of(turn + 1, 20)]
