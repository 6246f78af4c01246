"""Random edits of interleaved conversations: warm equals cold to the token, a turn costs what is new in it.

The toy's state and pages change every later token when they are wrong; `replays.Book` says by brute force
what had to be reused.
"""

from __future__ import annotations

import random
from typing import get_args

import pytest

from ftagent.engine.job import Job
from tests.engine.context.replays import Book, Talk, new_job, new_part, render
from tests.engine.context.test_tiers import tiered
from tests.engine.context.toys import Kind, cold_reply, contents_of, new_runner
from tests.engine.test_scheduler import reply

AMPLE = 16_000  # pages of four tokens: nothing has to go


class Script:
    """One random script over several conversations on one engine."""

    def __init__(self, seed: int, kind: Kind, *, ample: bool) -> None:
        self.dice = dice = random.Random(seed)
        self.kind = kind
        self.ample = ample
        pages = AMPLE if ample else dice.choice([150, 220, 400])
        size = dice.choice([4, 8, 16])
        pages = pages * 4 // size
        runner = new_runner(kind, pages, 4, size, 700)
        anchors = 10_000 if ample else dice.choice([1, 3, 8, 20])
        chunk = dice.choice([16, 64, 512])
        host = 0 if ample else dice.choice([0, 10_000, 100_000])
        contents = contents_of(runner)
        self.bench = tiered(
            runner, contents=contents, host=host, anchors=anchors, chunk_tokens=chunk, max_running=4
        )
        self.book = Book(kind != "pages")
        self.system, self.tools = new_part("system", dice, 2, 60), new_part("tools", dice, 2, 80)
        self.talks = [Talk.start(dice, self.system, self.tools) for _ in range(dice.randrange(1, 5))]
        self.reused = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self._turn()
        self.bench.scheduler.check_integrity()
        self.bench.prefix.clear()
        assert self.bench.runner.kv.free_count == self.bench.runner.kv.total

    def is_cold(self, prompt: list[int], found: list[int]) -> bool:
        """Whether a prompt without anything kept has this reply."""
        return found == cold_reply(self.kind, prompt, len(found))

    def _turn(self) -> None:
        """Some conversations go on at once, perhaps with a title request between them."""
        dice = self.dice
        chosen = dice.sample(self.talks, dice.randrange(1, min(3, len(self.talks)) + 1))
        if dice.random() < 0.15 and len(self.talks) < 8:
            chosen.append(dice.choice(self.talks).fork(dice))
            self.talks.append(chosen[-1])
        jobs = [new_job(talk.parts, dice.randrange(1, 12)) for talk in chosen]
        if dice.random() < 0.3:
            title = Talk([new_part("system", dice), new_part("user", dice)])
            jobs.append(new_job(title.parts, 3))
        least = [self.book.reusable(job.tokens) for job in jobs]
        for job in jobs:
            self.bench.scheduler.submit(job)
        self._drain(jobs)
        for job, (best, most) in zip(jobs, least, strict=True):
            self._check(job, best, most, alone=len(jobs) == 1)
        for talk, job in zip(chosen, jobs, strict=False):
            talk.hear(reply(job), dice)
            talk.edit(dice)
            while len(render(talk.parts)[0]) > 500:
                del talk.parts[2 : 2 + dice.randrange(1, 4)]

    def _drain(self, jobs: list[Job]) -> None:
        """Run until all have ended; some are cancelled at some step."""
        doomed = {job: self.dice.randrange(12) for job in jobs if self.dice.random() < 0.15}
        open_jobs = list(jobs)
        for step in range(10_000):
            for job, when in doomed.items():
                job.cancelled |= step >= when
            computed = {job: job.computed for job in open_jobs}
            done = self.bench.step()
            computed |= {piece.job: piece.start + piece.length for piece in done}
            scheduler = self.bench.scheduler
            for job in [job for job in open_jobs if job not in (*scheduler.running, *scheduler.waiting)]:
                self.book.note(job, computed[job])
                open_jobs.remove(job)
            if not open_jobs:
                return
        raise AssertionError("the scheduler does not come to an end")

    def _check(self, job: Job, best: int, most: int, *, alone: bool) -> None:
        """The reply is the cold one; when nothing had to go, all was reused that could be."""
        prompt = job.tokens[: job.prompt]
        assert self.is_cold(prompt, reply(job))
        self.reused += job.cached
        if self.ample and not job.cancelled:
            assert job.cached >= best
        if alone:
            assert job.cached <= most


@pytest.mark.parametrize("ample", [True, False])
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("seed", range(20))
def test_warm_equals_cold_and_a_turn_costs_what_is_new(seed: int, kind: Kind, ample: bool) -> None:
    script = Script(seed, kind, ample=ample)
    script.run(12)
    assert script.reused or not ample


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_scripts() -> None:
    for seed in range(1000):
        kinds: tuple[Kind, ...] = get_args(Kind)
        Script(10_000 + seed, kinds[seed // 2 % len(kinds)], ample=seed % 2 == 0).run(12)
