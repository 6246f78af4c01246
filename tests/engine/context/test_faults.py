"""Siblings of faults that people met in caches, at other sizes, offsets and times. The state of the toy is a
hash of all tokens so far: whatever is misplaced changes every later token.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.context.marks import NEAR, choose_marks
from tests.engine.context.replays import Part, new_job
from tests.engine.context.toys import Kind, cold_reply, new_runner
from tests.engine.test_scheduler import Bench, prompt_of, reply

KINDS: tuple[Kind, ...] = ("recurrent", "pages", "window", "window and recurrent")
REPLY = 4


def bench_of(kind: Kind, *, anchors: int = 64, pages: int = 1024, slots: int = 4, size: int = 4) -> Bench:
    return Bench(new_runner(kind, pages, slots, size, 2000), anchors, chunk_tokens=64)


def ask(bench: Bench, kind: Kind, parts: list[Part]) -> int:
    """Run a conversation's next request; the reply is the cold one. Returns what was reused."""
    job = new_job(parts, REPLY)
    bench.scheduler.submit(job)
    bench.drain()
    assert reply(job) == cold_reply(kind, job.tokens[: job.prompt], REPLY)
    return job.cached


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    head=st.sampled_from([0, 7, 20, 64, 600]),
    lengths=st.lists(st.integers(5, 60), min_size=2, max_size=7),
    place=st.integers(0, 6),
    size=st.sampled_from([4, 16]),
)
def test_an_edit_of_any_message_keeps_what_stands_before_it(
    kind: Kind, head: int, lengths: list[int], place: int, size: int
) -> None:
    """R33: an early message is changed and all behind it is sent again, as when a person edits it."""
    bench = bench_of(kind, size=size)
    parts = [Part("system", tuple(prompt_of(99, head)))] if head else []
    parts += [Part("user", tuple(prompt_of(seed, length))) for seed, length in enumerate(lengths)]
    for end in range(len(parts) - len(lengths) + 1, len(parts) + 1):
        ask(bench, kind, parts[:end])
    changed = len(parts) - len(lengths) + place % len(lengths)
    before = sum(len(part.tokens) for part in parts[:changed])
    parts[changed] = Part("user", tuple(prompt_of(50, lengths[place % len(lengths)])))
    assert ask(bench, kind, parts) >= before - NEAR


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    said=st.integers(0, 40),
    steps=st.integers(1, 30),
    tail=st.integers(1, 30),
    anchors=st.sampled_from([1, 2, 64]),
)
def test_a_cancelled_request_leaves_its_own_state_or_none(
    kind: Kind, said: int, steps: int, tail: int, anchors: int
) -> None:
    """R35: cancelled after any number of steps, in prompt or reply; then others take its places; then its
    words come back with a new line behind them, and with another line in the middle.
    """
    bench = bench_of(kind, anchors=anchors, pages=120, slots=2)
    job = bench.submit(prompt_of(1, 60 + said), 40, marks=(20, 40))
    for _ in range(steps):
        bench.step()
    job.cancelled = True
    bench.drain()
    words = list(job.tokens)
    bench.submit(prompt_of(2, 70), 5)
    bench.drain()
    for prompt in ([*words, *prompt_of(3, tail)], [*words[:33], *prompt_of(4, tail)], words[: 60 + said]):
        again = bench.submit(prompt, REPLY)
        bench.drain()
        assert reply(again) == cold_reply(kind, prompt, REPLY)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("slots", "requests", "pages", "anchors"),
    [(1, 3, 40, 0), (2, 4, 24, 1), (3, 9, 60, 2), (2, 4, 18, 0), (4, 4, 30, 64)],
)
def test_dry_pools_finish_everything(kind: Kind, slots: int, requests: int, pages: int, anchors: int) -> None:
    """R36: fewer states and pages than requests want; the books are checked behind every step."""
    bench = bench_of(kind, anchors=anchors, pages=pages, slots=slots)
    prompts = [prompt_of(seed % 3, 24)[: 20 + seed % 5] for seed in range(requests)]
    jobs = [bench.submit(prompt, 5, marks=(8, 16)) for prompt in prompts]
    bench.drain()
    for prompt, job in zip(prompts, jobs, strict=True):
        assert reply(job) == cold_reply(kind, prompt, 5)
    if not anchors:
        assert bench.prefix.skipped >= 1, "what is not kept is counted"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("titles", [1, 7])
def test_titles_and_subagents_leave_the_main_line_alone(kind: Kind, titles: int) -> None:
    """Requests without tools between the turns, in pools that hold little more than the main line."""
    bench = bench_of(kind, anchors=12, pages=160)
    parts = [Part("system", tuple(prompt_of(0, 60))), Part("tools", tuple(prompt_of(1, 60)))]
    before = 0
    for turn in range(6):
        parts.append(Part("user", tuple(prompt_of(10 + turn, 30))))
        job = new_job(parts, REPLY)
        job.agent = True
        bench.scheduler.submit(job)
        bench.drain()
        assert reply(job) == cold_reply(kind, job.tokens[: job.prompt], REPLY)
        assert job.cached >= before - NEAR
        before = job.prompt
        for title in range(titles):
            side = [Part("system", tuple(prompt_of(500, 40))), Part("user", tuple(prompt_of(title, 25)))]
            ask(bench, kind, side)


def test_marks_never_depend_on_what_comes_later() -> None:
    """An anchor's place is a place of the shorter prompt too, so turns find each other's anchors."""
    parts = [Part("system", tuple(prompt_of(0, 100)))]
    parts += [Part("user", tuple(prompt_of(seed, 40))) for seed in range(1, 6)]
    ends = list(itertools.accumulate(len(part.tokens) for part in parts))
    for end in range(2, len(parts) + 1):
        job = new_job(parts[:end], 1)
        assert all(mark in {*ends, job.prompt - 1} for mark in job.marks)
        assert choose_marks([], job.prompt)[-1] == job.prompt - 1
