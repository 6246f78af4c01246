"""The thread that steps: takes requests in, runs what the scheduler plans, samples, hands events out.

Knows no text format, no protocol and no file. Only this thread touches scheduler, pools and runner; other
threads put tasks in, mark jobs as cancelled and read the newest snapshot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from ftagent.engine.api import Health
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.checks import describe
from ftagent.engine.context.divergence import place_name
from ftagent.engine.job import Job, Piece
from ftagent.engine.logits import Row, StepLogits
from ftagent.engine.meters import Meters, Queues, StepWork
from ftagent.engine.pace import Pace
from ftagent.engine.scheduler import Scheduler
from ftagent.engine.stats import PoolStats, RequestStats, Snapshot
from ftagent.engine.steps import Steps
from ftagent.engine.task import Task, deliver
from ftagent.errors import BooksBroken, EngineStopped, FtError
from ftagent.events import Event, Failed, FinishReason, Progress

log = logging.getLogger(__name__)


class Worker:
    """Runs steps until closed. `vocab` is the number of token ids that may be sampled."""

    def __init__(self, runner: Steps, scheduler: Scheduler, vocab: int) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._vocab = vocab
        self._meters = Meters()
        self._tasks: dict[Job, Task] = {}  # all that the scheduler holds
        self._inbox: list[Task] = []
        self._asked: list[Future[None]] = []  # who wants the books checked
        self._pace = Pace()  # of checks when nothing runs
        self._told: dict[Task, None] = {}  # tasks with something new in the outbox, in order
        self._wake = threading.Condition()
        self._closing = False
        self.health: Health = "ok"
        self._reason = ""  # of a failure
        now = time.monotonic()
        self.snapshot = self._look(StepWork(now, now, 0, 0))
        self._thread = threading.Thread(target=self._run, name="ftagent-engine", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Hand a task over. Whether it is accepted comes through its outbox. Raises EngineStopped."""
        with self._wake:
            if self._closing or self.health != "ok":
                state = self.health if self.health != "ok" else "stopped"
                raise EngineStopped(f"the engine has {state}{self._reason}; start it again")
            self._inbox.append(task)
            self._wake.notify()

    def cancel(self, task: Task) -> None:
        """Let the next step go on without this task. Does nothing for one that has ended."""
        task.job.cancelled = True  # no lock: one write, read by the worker between steps

    def check_integrity(self) -> None:
        """Check the books between two steps, or now when the thread has ended. Raises BooksBroken."""
        asked: Future[None] = Future()
        with self._wake:
            alive = not self._closing and self.health == "ok"
            if alive:
                self._asked.append(asked)
                self._wake.notify()
        if alive:
            asked.result()
        else:
            self._thread.join()
            self._check_books()

    def close(self) -> None:
        """End the thread after the step it is in, and all tasks with EngineStopped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        message = "the engine was stopped while this request was open"
        health: Health = "stopped"
        try:
            while self._wait():
                self._turn()
                self._deliver()
        except Exception as error:  # a fault of the loop itself: nobody may wait for ever
            log.exception("the engine's worker failed")
            health = "failed"
            message = f"the engine failed: {type(error).__name__}: {error}"
            self._reason = f" ({error})" if isinstance(error, BooksBroken) else ""
        finally:
            self._end_all(health, message)

    def _wait(self) -> bool:
        """Sleep until there is something to do. False: it is to close the shop."""
        while True:
            with self._wake:
                while not (self._closing or self._inbox or self._tasks or self._asked):
                    due_s = self._pace.wait_s(time.monotonic())
                    if due_s == 0 or not self._wake.wait(due_s):
                        break
                arrived, self._inbox = self._inbox, []
                for task in arrived:
                    self._tasks[task.job] = task
                asked, self._asked = self._asked, []
                closing = self._closing
            if asked or not (closing or self._tasks):
                self._check_for(asked)
            if closing or self._tasks:
                break
        if closing:
            return False
        for task in arrived:
            self._accept(task)
        return True

    def _check_for(self, asked: Sequence[Future[None]]) -> None:
        """Check the books and tell those who asked. Raises BooksBroken."""
        try:
            self._check_books()
        except BooksBroken as error:
            for future in asked:
                future.set_exception(error)
            raise
        for future in asked:
            future.set_result(None)

    def _check_books(self) -> None:
        """Tree, anchors, pages and states; contents are not looked at, so it takes milliseconds."""
        begin = time.monotonic()
        try:
            self._scheduler.check_integrity()
        except AssertionError as error:
            raise BooksBroken(str(error)) from error
        self._pace.checked(begin, time.monotonic())

    def _accept(self, task: Task) -> None:
        try:
            self._scheduler.submit(task.job)
        except FtError as error:  # no room for it, now or ever
            del self._tasks[task.job]
            self._say(task, [error])

    def _turn(self) -> None:
        """Plan one step and run it."""
        for job in self._scheduler.cancelled():
            self._end(self._tasks[job], None, "cancelled")
        pieces = self._scheduler.plan()
        for job in self._scheduler.waiting:
            self._tell_queued(self._tasks[job])
        if self._tasks and not pieces:
            raise RuntimeError("requests are open but none can run")
        begin = time.monotonic()
        done = bool(pieces) and self._step(pieces, begin)
        decode = sum(piece.is_decode for piece in pieces) if done else 0
        prefill = sum(piece.length for piece in pieces) - decode if done else 0
        work = StepWork(begin, time.monotonic(), decode, prefill)
        self._pace.ran()
        if done:
            self._meters.step(work)
        if not self._tasks:
            work = work._replace(decode=0, prefill=0)  # nothing goes on: the engine is idle behind this step
        self.snapshot = self._look(work)

    def _step(self, pieces: list[Piece], begin: float) -> bool:
        """Run one step and what follows from it. False when it failed and took its requests with it."""
        tasks = [self._tasks[piece.job] for piece in pieces if not piece.job.shadow]
        for task in tasks:
            task.started = begin if task.started is None else task.started
        try:
            pending = self._runner.launch([self._chunk(piece) for piece in pieces])
            self._deliver()  # what there is to say goes out while the device works
            logits = pending.wait()
        except Exception as error:  # whatever a step dies of ends its requests, not the engine
            log.exception("a step failed")
            message = f"a step of the engine failed: {type(error).__name__}: {error}"
            for task in tasks:  # their shadows go with them
                self._end(task, Failed(message), "failed", keep=False)
            return False
        self._scheduler.commit(pieces)
        sampled = [piece for piece in pieces if piece.wants_logits]
        for index, piece in enumerate(sampled):
            if piece.job.check is not None:
                self._check(piece.job, logits.row(index).copy())
            if not piece.job.shadow:
                self._advance(self._tasks[piece.job], logits, index)
        for piece in pieces:
            if not piece.wants_logits:
                self._tell_prefill(piece)
        return True

    def _chunk(self, piece: Piece) -> Chunk:
        job = piece.job
        end = piece.start + piece.length
        assert job.slot is not None, "a planned request holds a slot"
        return Chunk(
            job.tokens[piece.start : end], piece.start, job.pages, job.slot, piece.wants_logits, piece.keep
        )

    def _check(self, job: Job, row: Row) -> None:
        """Note the logits behind the prompt of a request whose hit is checked, or of its shadow; with both of
        them, say what is wrong, and let go of what it came from.
        """
        check = job.check
        assert check is not None, "a hit that is checked"
        if job.shadow:
            check.warm = row
            self._scheduler.finish(job, keep=False)
        elif check.cold is None:
            check.cold = row
        if check.warm is None or check.cold is None:
            return
        task = next(task for task in self._tasks.values() if task.job.check is check)
        task.job.check = None
        position = check.match.position
        place = place_name(task.rendered.boundaries if task.rendered else (), position)
        wrong = self._scheduler.checker.judge(check, place)
        if wrong is not None:
            dropped = self._scheduler.prefix.distrust(task.job.key(), position)
            log.error("%s", describe(wrong, dropped))

    def _advance(self, task: Task, logits: StepLogits, index: int) -> None:
        """Sample one token for a task and tell its reader. A fault here is this request's alone."""
        if task.job.cancelled:  # its state stands behind all its tokens: good as an anchor, as it is
            return
        try:
            events, reason = self._sample(task, logits, index)
        except Exception as error:  # the grammar, the detokeniser or the parser met what it cannot take
            log.exception("a reply failed")
            message = str(error) if isinstance(error, FtError) else f"{type(error).__name__}: {error}"
            self._end(task, Failed(message), "failed")
            return
        if reason is not None:
            finished = task.finished(reason)
            self._say(task, events)
            self._end(task, finished, finished.reason)
        else:
            self._say(task, events)

    def _sample(self, task: Task, logits: StepLogits, index: int) -> tuple[list[Event], FinishReason | None]:
        best = logits.best(index) if task.constraint is None else None
        # A checkpoint may have more rows of logits than there are tokens; those may not be chosen.
        known = best is not None and int(best.ids[-1]) < self._vocab
        choice = task.sampler.choose_best(best) if best is not None and known else None
        if choice is None:
            choice = task.sampler.choose(logits.row(index)[: self._vocab], task.constraint)
        task.job.tokens.append(choice.token)
        self._meters.generated(1)
        if task.first_token is None:
            task.first_token = time.monotonic()
            self._meters.admitted(task.job.prompt, task.job.cached)
        if choice.token in task.eos:
            return task.reply.finish(cut=False), "stop"
        events = [] if choice.token in task.hidden else task.reply.push(choice)
        if task.constraint is not None:
            task.constraint.advance(choice.token)
        reason: FinishReason | None = None
        if task.reply.stopped is not None or (task.constraint is not None and task.constraint.finished):
            reason = "stop"
        elif task.job.full:
            reason = "length"
        if reason is not None:
            events += task.reply.finish(cut=reason == "length")
        return events, reason

    def _say(self, task: Task, items: Sequence[Event | FtError]) -> None:
        """Put something in a task's outbox; it is delivered behind the step, when the figures are out too."""
        if items:
            task.outbox.put(items)
            self._told[task] = None

    def _deliver(self) -> None:
        told, self._told = self._told, {}
        deliver(told)

    def _tell_queued(self, task: Task) -> None:
        if not task.told_queued:
            task.told_queued = True
            self._say(task, [Progress("queued", 0, task.job.prompt)])

    def _tell_prefill(self, piece: Piece) -> None:
        task = self._tasks.get(piece.job)
        if task is not None and task.first_token is None:
            self._say(task, [Progress("prefill", task.job.computed, task.job.prompt)])

    def _end(self, task: Task, last: Event | None, finish: str, *, keep: bool = True) -> None:
        """Free what a task holds, note it, and say the last word."""
        now = time.monotonic()
        self._scheduler.finish(task.job, keep=keep)
        del self._tasks[task.job]
        self._meters.finished(
            RequestStats(
                id=task.job.id,
                prompt_tokens=task.job.prompt,
                cached_tokens=task.job.cached,
                completion_tokens=len(task.job.tokens) - task.job.prompt,
                queued_s=(task.started or now) - task.arrived,
                first_token_s=None if task.first_token is None else task.first_token - task.arrived,
                total_s=now - task.arrived,
                finish=finish,
            )
        )
        if last is not None:
            self._say(task, [last])

    def _look(self, work: StepWork) -> Snapshot:
        scheduler = self._scheduler
        queues = Queues(
            running=sum(not job.shadow for job in scheduler.running),
            waiting=len(scheduler.waiting) + len(self._inbox),
            longest=max((len(job.tokens) for job in scheduler.running), default=0),
            skipped=scheduler.prefix.skipped,
            checks=scheduler.checker.counts(),
        )
        kv, recurrent, experts = self._runner.kv, self._runner.recurrent, self._runner.experts
        pools = (
            PoolStats("kv", scheduler.used_pages(), kv.total, kv.page_bytes, kv.page_size),
            PoolStats("recurrent", len(scheduler.running), recurrent.total, recurrent.slot_bytes),
        )
        if experts is None:
            return self._meters.snapshot(work, queues, pools, None)
        slots = PoolStats("experts", experts.resident, experts.slots, experts.slot_bytes)
        return self._meters.snapshot(work, queues, (*pools, slots), experts.stats())

    def _end_all(self, health: Health, message: str) -> None:
        with self._wake:
            self.health = health
            tasks = [*self._tasks.values(), *self._inbox]
            self._inbox = []
            asked, self._asked = self._asked, []
        for future in asked:
            future.set_exception(EngineStopped(message))
        for task in tasks:
            task.outbox.put([EngineStopped(message)])
        deliver(tasks)
        self._tasks.clear()
        if health == "stopped":  # else the books are in doubt
            for task in tasks:
                self._scheduler.finish(task.job, keep=False)
            self._scheduler.prefix.clear()
            now = time.monotonic()
            self.snapshot = self._look(StepWork(now, now, 0, 0))
