"""The scheduler on the toy model: every reply equals the cold one, and the pools always add up."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.tree import token_key
from ftagent.engine.job import Job, Piece, share_evenly
from ftagent.engine.scheduler import Scheduler
from ftagent.engine.steps import LoadedModel
from ftagent.errors import PromptTooLong, QueueFull
from tests.support.toy import VOCAB, ToyRunner, cold_tokens


class Bench:
    """Runs a scheduler without threads, greedily, and checks all books after every step."""

    def __init__(self, runner: ToyRunner | LoadedModel, anchors: int = 16, **limits: Any) -> None:
        self.runner = runner
        self.prefix = PrefixCache(runner.kv, runner.recurrent, anchors)
        self.scheduler = Scheduler(runner.kv, runner.recurrent, self.prefix, runner.copy_page, **limits)
        self.sent_back = 0

    def submit(self, prompt: Sequence[int], reply: int, marks: tuple[int, ...] = ()) -> Job:
        job = Job(str(id(prompt)), list(prompt), len(prompt) + reply, (*marks, len(prompt)))
        self.scheduler.submit(job)
        return job

    def step(self) -> list[Piece]:
        ran = set(self.scheduler.running)
        for job in self.scheduler.cancelled():
            self.scheduler.finish(job)
        pieces = self.scheduler.plan()
        self.sent_back += sum(job in self.scheduler.waiting for job in ran)
        if not pieces:
            return pieces
        chunks = []
        for job, start, length, wants_logits, keep in pieces:
            assert job.slot is not None
            tokens = job.tokens[start : start + length]
            chunks.append(Chunk(tokens, start, job.pages, job.slot, wants_logits, keep))
        rows = iter(self.run_step(chunks).float().numpy())
        self.scheduler.commit(pieces)
        for piece in pieces:
            if piece.wants_logits:
                piece.job.tokens.append(int(next(rows).argmax()))
                if piece.job.full:
                    self.scheduler.finish(piece.job)
        self.scheduler.check_integrity()
        return pieces

    def run_step(self, chunks: list[Chunk]) -> torch.Tensor:
        return self.runner.step(chunks)

    def drain(self) -> None:
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the scheduler does not come to an end")


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def reply(job: Job) -> list[int]:
    return job.tokens[job.prompt :]


def test_four_together_equal_each_alone() -> None:
    bench = Bench(ToyRunner(), chunk_tokens=16)
    prompts = [prompt_of(seed, length) for seed, length in enumerate((3, 50, 17, 31))]
    jobs = [bench.submit(prompt, 12) for prompt in prompts]
    bench.drain()
    for prompt, job in zip(prompts, jobs, strict=True):
        assert reply(job) == cold_tokens(prompt, 12)


def test_decode_rows_go_on_beside_a_long_prompt() -> None:
    bench = Bench(ToyRunner(), chunk_tokens=40)
    talker = bench.submit(prompt_of(1, 4), 30)
    bench.step()
    long = bench.submit(prompt_of(2, 80), 2)
    lengths = []
    while long.remaining > 1:
        pieces = bench.step()
        assert [piece.job for piece in pieces if piece.is_decode] == [talker]
        lengths.append(sum(piece.length for piece in pieces) - 1)
    assert lengths == [10] * 8  # a quarter of the chunk
    bench.drain()
    alone = bench.submit(prompt_of(3, 80), 2)
    assert [piece.length for piece in bench.step()] == [40]
    assert alone.computed == 40


def test_a_short_prompt_is_not_stuck_behind_a_long_one() -> None:
    bench = Bench(ToyRunner(), chunk_tokens=16)
    bench.submit(prompt_of(1, 120), 2)
    short = bench.submit(prompt_of(2, 8), 2)
    bench.step()
    assert len(short.tokens) == short.prompt + 1


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 100))
def test_shares_are_even(wants: list[int], budget: int) -> None:
    shares = share_evenly(wants, budget)
    assert sum(shares) == min(sum(wants), budget)
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    unmet = [share for share, want in zip(shares, wants, strict=True) if share < want]
    if unmet:
        assert max(shares) - min(unmet) <= 1


def test_queue_is_bounded() -> None:
    bench = Bench(ToyRunner(slots=1), max_waiting=2)
    bench.submit(prompt_of(0, 5), 5)
    bench.step()
    bench.submit(prompt_of(1, 5), 5)
    bench.submit(prompt_of(2, 5), 5)
    with pytest.raises(QueueFull, match="1 requests run and 2 wait"):
        bench.submit(prompt_of(3, 5), 5)
    bench.drain()


def test_a_burst_fills_the_free_places_before_the_queue() -> None:
    bench = Bench(ToyRunner(slots=3), max_waiting=2)
    for seed in range(5):
        bench.submit(prompt_of(seed, 5), 5)  # no step in between: all five wait so far
    with pytest.raises(QueueFull, match="at most 3 may run and 2 wait"):
        bench.submit(prompt_of(5, 5), 5)
    bench.drain()


def test_a_prompt_that_can_never_fit_is_refused_and_changes_nothing() -> None:
    bench = Bench(ToyRunner(pages=5))
    with pytest.raises(PromptTooLong) as refusal:
        bench.submit(prompt_of(0, 20), 1)
    assert refusal.value.tokens == 20
    assert refusal.value.limit == 19
    assert not bench.scheduler.waiting
    job = bench.submit(prompt_of(0, 19), 50)
    bench.drain()
    assert reply(job) == cold_tokens(prompt_of(0, 19), 1)


def test_when_pages_run_dry_the_youngest_waits_and_all_finish() -> None:
    bench = Bench(ToyRunner(pages=40, context=400), anchors=4, chunk_tokens=8)
    prompts = [prompt_of(seed, 6) for seed in range(3)]
    jobs = [bench.submit(prompt, 120) for prompt in prompts]
    bench.drain()
    assert bench.sent_back >= 1
    for prompt, job in zip(prompts, jobs, strict=True):
        assert reply(job) == cold_tokens(prompt, 120)


@pytest.mark.parametrize("anchors", [0, 1, 3])
def test_two_slots_four_requests_of_three_chunks(anchors: int) -> None:
    bench = Bench(ToyRunner(slots=2, pages=24), anchors=anchors, chunk_tokens=8)
    prompts = [prompt_of(seed, 24) for seed in range(4)]
    jobs = [bench.submit(prompt, 5, marks=(8, 16)) for prompt in prompts]
    bench.drain()
    for prompt, job in zip(prompts, jobs, strict=True):
        assert reply(job) == cold_tokens(prompt, 5)
    assert (bench.prefix.skipped >= 1) == (anchors == 0)


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_cancellation_frees_everything_at_the_next_step(steps: int) -> None:
    bench = Bench(ToyRunner(), anchors=0, chunk_tokens=4)
    job = bench.submit(prompt_of(0, 40), 50)  # ten chunks, then decode
    for _ in range(steps):
        bench.step()
    job.cancelled = True
    bench.step()
    assert not bench.scheduler.running
    assert bench.runner.kv.free_count == bench.runner.kv.total
    assert bench.runner.recurrent.free_count == bench.runner.recurrent.total


@pytest.mark.parametrize("seed", range(8))
def test_two_hundred_requests_with_cancels(seed: int) -> None:
    dice = random.Random(seed)
    runner = ToyRunner(pages=dice.choice([24, 40, 64]), slots=dice.choice([2, 5]), context=90)
    bench = Bench(runner, anchors=dice.choice([0, 2, 16]), chunk_tokens=dice.choice([8, 32]))
    stems = [prompt_of(seed, 30) for seed in range(3)]
    jobs: list[Job] = []
    while len(jobs) < 200:
        for _ in range(dice.randrange(6)):
            stem = dice.choice(stems)
            prompt = stem[: dice.randrange(1, 30)] + prompt_of(dice.randrange(4), dice.randrange(1, 20))
            marks = tuple(sorted(dice.sample(range(1, len(prompt)), min(2, len(prompt) - 1))))
            jobs.append(bench.submit(prompt, dice.randrange(1, 12), marks))
        for job in jobs[-8:]:
            job.cancelled |= dice.random() < 0.1
        for _ in range(dice.randrange(8)):
            bench.step()
        if len(bench.scheduler.waiting) > 40:
            bench.drain()
    bench.drain()
    for job in jobs:
        if not job.cancelled:
            assert reply(job) == cold_tokens(job.tokens[: job.prompt], job.limit - job.prompt)
    assert not bench.scheduler.running
    assert not bench.scheduler.waiting
    bench.prefix.clear()
    assert runner.kv.free_count == runner.kv.total


def test_the_scheduler_is_free_of_torch() -> None:
    code = "import sys, ftagent.engine.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("inside", [False, True])
def test_boundaries_cost_no_step_where_states_are_kept_on_the_way(inside: bool) -> None:
    """Twenty marks in a prompt of 600 tokens: each can be resumed, and the prompt took as many steps as its
    length needs, where a pool that cannot do so takes one for each mark.
    """
    bench = Bench(ToyRunner(pages=400, context=700), anchors=64, chunk_tokens=300)
    bench.runner.recurrent.inside = inside  # type: ignore[misc]
    prompt, marks = prompt_of(0, 600), tuple(range(30, 600, 30))
    job = bench.submit(prompt, 1, marks)
    steps = 0
    while bench.step():
        steps += 1
    assert reply(job) == cold_tokens(prompt, 1)
    assert steps == (2 if inside else 20)
    for mark in reversed(marks):
        again = bench.submit([*prompt[:mark], *prompt_of(mark, 20)], 3)
        bench.drain()
        assert again.cached == mark
        assert reply(again) == cold_tokens(again.tokens[: again.prompt], 3)


def test_states_on_the_way_give_way_by_the_gaps_between_them() -> None:
    """Room for five states beside the prompt's end: of seven marks the two with the smallest gaps go."""
    bench = Bench(ToyRunner(pages=400, context=700), anchors=6, chunk_tokens=700)
    bench.runner.recurrent.inside = True  # type: ignore[misc]
    prompt, marks = prompt_of(1, 600), (300, 310, 350, 358, 400, 450, 500)
    bench.submit(prompt, 1, marks)
    bench.step()
    assert bench.prefix.skipped == 2
    match = bench.prefix.find(token_key(prompt), 600)
    found = [anchor.position for node in match.path.nodes for anchor in node.anchors]
    assert found == [300, 350, 400, 450, 500, 600]
    bench.drain()


def test_nothing_is_dropped_for_states_that_find_no_room_anyway() -> None:
    """One place: it is for the end of a prompt, and stays with the last one until then."""
    bench = Bench(ToyRunner(pages=400, context=700), anchors=1, chunk_tokens=700)
    bench.runner.recurrent.inside = True  # type: ignore[misc]
    first = bench.submit(prompt_of(4, 100), 1)
    bench.drain()
    job = bench.submit(prompt_of(5, 200), 1, (50, 100, 150))
    (piece,) = bench.scheduler.plan()
    assert (piece.job, piece.keep) == (job, ())
    assert bench.prefix.find(token_key(first.tokens), 101).position == 100
    bench.drain()


def test_a_new_prompt_takes_no_state_that_is_worth_more() -> None:
    """A conversation's anchors far apart stay; a one-shot prompt gets what room is left."""
    bench = Bench(ToyRunner(pages=600, context=700), anchors=5, chunk_tokens=700)
    bench.runner.recurrent.inside = True  # type: ignore[misc]
    history = prompt_of(2, 300)
    for turn in range(3):
        bench.submit([*history, *prompt_of(10 + turn, 100 * turn)], 1, (300,))
        bench.drain()
    bench.submit(prompt_of(3, 200), 1, tuple(range(20, 200, 20)))
    bench.drain()
    again = bench.submit([*history, *prompt_of(20, 5)], 1)
    bench.drain()
    assert again.cached == 300
