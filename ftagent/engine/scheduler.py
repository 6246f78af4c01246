"""Requests to steps: who computes which tokens next, on which pages and in which state slot.

Every step carries one token of each request that decodes, and at most `chunk_tokens` of prompts (fewer
beside decoding ones), shared evenly: a short prompt takes less than its share and the rest goes on to the
others. Plain Python on integers; knows no tensor, no text and no thread: one thread at a time may call it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.checks import AnchorChecker, Check
from ftagent.engine.context.marks import with_fork
from ftagent.engine.context.pools import Pages, States
from ftagent.engine.context.sharing import find_leader
from ftagent.engine.context.tree import Line
from ftagent.engine.context.visits import Match, Visit
from ftagent.engine.job import Job, Piece, share_evenly
from ftagent.errors import PromptTooLong, QueueFull

# Room for this many reply tokens is set aside when a request is admitted, so that it does not start
# only to wait for pages at its first tokens.
REPLY_RESERVE = 64

# Beside requests that decode, prompts get this part of `chunk_tokens`: large chunks are faster for a prompt
# alone, but every decoding request waits for them at each token.
MIXED_PART = 4


class Scheduler:
    """Continuous batching over one page pool and one state pool.

    Admission is first come, first served. A request is admitted when its prompt and some reply fit the
    pages that no running request holds; anchors of the prefix cache give way. One whose prompt begins as that
    of a running one does waits until what they share is computed; its place is kept, and those behind it may
    go first. When pages run dry later, the youngest request goes back to the queue and computes its tokens
    again when it returns.
    """

    def __init__(
        self,
        pages: Pages,
        states: States,
        prefix: PrefixCache,
        copy_page: Callable[[int, int], None],
        *,
        max_running: int = 8,
        max_waiting: int = 64,
        chunk_tokens: int = 1024,
        checker: AnchorChecker | None = None,
    ) -> None:
        """`checker`: which hits are checked beside their requests; None: none."""
        self._pages = pages
        self._states = states
        self._copy_page = copy_page  # (source, target): the keys and values of one page
        self.prefix = prefix
        self.checker = checker or AnchorChecker(0.0, 0.0)
        self._max_running = min(max_running, states.total)
        self._max_waiting = max_waiting
        self._chunk_tokens = max(chunk_tokens, self._max_running)  # a token at least for each
        self.running: list[Job] = []  # in order of arrival
        self.waiting: deque[Job] = deque()  # in order of arrival
        self._arrivals = 0

    @property
    def capacity(self) -> int:
        """Tokens that all pages together can hold: no request can ever be longer."""
        return self._pages.total * self._pages.page_size

    def submit(self, job: Job) -> None:
        """Put a request at the end of the queue.

        Raises PromptTooLong when it can never be admitted and QueueFull when too many wait already;
        nothing has changed then.
        """
        if job.prompt >= self.capacity:
            raise PromptTooLong(job.prompt, self.capacity - 1)
        # Those that arrived since the last step count as waiting, though there may be room for them to run.
        if len(self.running) + len(self.waiting) >= self._max_running + self._max_waiting:
            raise QueueFull(
                f"the engine is busy: {len(self.running)} requests run and {len(self.waiting)} wait "
                f"(at most {self._max_running} may run and {self._max_waiting} wait); try again later"
            )
        job.limit = min(job.limit, self.capacity)
        job.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.append(job)

    def plan(self) -> list[Piece]:
        """The next step. Cancelled requests must be gone already (see `cancelled`). Empty means: idle."""
        self._admit()
        decoding = [job for job in self.running if job.remaining == 1]
        for job in decoding:
            if job.slot is not None:  # an older one may have sent it back to the queue just now
                self._grow(job)
        pieces = [Piece(job, job.computed, 1, True) for job in decoding if job.slot is not None]
        prefilling = [job for job in self.running if job.remaining > 1]
        ends = [self._chunk_end(job) for job in prefilling]
        wants = [end - job.computed for job, end in zip(prefilling, ends, strict=True)]
        budget = self._chunk_tokens
        if pieces:
            budget = max(budget // MIXED_PART, self._max_running)
        promised = 0  # states that this step will keep
        for job, count in zip(prefilling, share_evenly(wants, budget), strict=True):
            if count:
                keep = self._inside(job, count, promised)
                promised += len(keep) + 1
                pieces.append(Piece(job, job.computed, count, count == job.remaining, keep))
        return pieces

    def commit(self, pieces: Iterable[Piece]) -> None:
        """Take note that a step is done. What it computed of a prompt can be resumed from now on: at its
        marks, and behind the chunk until the next one is there.
        """
        for piece in pieces:
            job = piece.job
            job.computed = piece.start + piece.length
            if job.slot is None or piece.is_decode or job.shadow:
                continue
            for mark in job.marks:
                if piece.start < mark < job.computed:
                    self._keep_inside(job, mark, piece)
            self._keep(job, job.computed, mark=job.computed in job.marks)

    def finish(self, job: Job, *, keep: bool = True) -> None:
        """Take a request out, wherever it is, and free what it holds.

        With `keep` its end becomes an anchor. Pass False after a fault, when pages and state are in doubt.
        """
        if job in self.waiting:
            self.waiting.remove(job)
        self._end_check(job)
        if job in self.running:
            self.running.remove(job)
            # The last token was sampled but never computed, so the anchor stands one before the end.
            if keep and job.computed and job.visit is not None:
                self._keep(job, job.computed, mark=True)
                self.prefix.end(job.visit, job.computed, self._head(job))
            self._free(job)

    def cancelled(self) -> list[Job]:
        """The requests that someone has marked as cancelled and that are still held."""
        return [job for job in (*self.running, *self.waiting) if job.cancelled]

    def check_integrity(self) -> None:
        """Raise AssertionError unless free, used and evictable pages add up and all requests are in shape."""
        used = self._held()
        evictable = self.prefix.held_pages() - used
        assert self._pages.free_count + len(used) + len(evictable) == self._pages.total, "pages are lost"
        assert self._states.free_count + len(self.running) == self._states.total, "state slots are lost"
        assert len({job.slot for job in self.running}) == len(self.running), "two requests share a state slot"
        for job in self.running:
            room = len(job.pages) * self._pages.page_size
            assert job.computed <= room, "a request computed beyond its pages"
            assert len(set(job.pages)) == len(job.pages), "a request holds a page twice"
        for job in self.waiting:
            assert not job.pages, "a waiting request holds pages"
            assert job.slot is None, "a waiting request holds a slot"
        self.prefix.check_integrity()
        self._pages.check_integrity()
        self._states.check_integrity()

    def used_pages(self) -> int:
        """Pages that running requests hold, shared ones counted once."""
        return len(self._held())

    def _admit(self) -> None:
        held = 0
        for job in list(self.waiting):
            if len(self.running) + held == self._max_running and not self._drop_shadows():
                return
            if job.awaited is not None and not job.awaited.is_over:
                held += 1
                continue
            match = self._find(job)
            if match is None and self._drop_shadows():
                match = self._find(job)
            if match is None:
                return
            if self._awaits(job, match):
                held += 1
                continue
            shadow = self._begin_check(job, match, held)
            self._claim(job, match)
            self.waiting.remove(job)
            insort(self.running, job, key=_arrival)
            if shadow is not None:
                insort(self.running, shadow, key=_arrival)

    def _find(self, job: Job) -> Match | None:
        """Where the job can resume, the beginning if need be; None when there is no room for it now."""
        match = self.prefix.find(job.key(), len(job.tokens))
        warm = self._fits(job, match)
        # Resuming can need one page more for a moment, to copy the last one. Alone in a pool that is just
        # large enough, a cold start is the only way.
        if not warm and (self.running or not self._fits(job, None)):
            return None
        # What is brought back can share fewer pages with running requests than what was found here.
        if self._fits(job, None) and self.prefix.fetch(job.key(), len(job.tokens), match):
            match = self.prefix.find(job.key(), len(job.tokens))
        return match

    def _awaits(self, job: Job, match: Match) -> bool:
        """Whether a running request is about to compute more of the job's prompt than `match` has."""
        job.awaited = None
        if self.prefix.capacity:
            stateful = self._states.slot_bytes > 0
            leaders = [running for running in self.running if not running.shadow]
            job.awaited = find_leader(job.key(), len(job.tokens), match.position, leaders, stateful=stateful)
        return job.awaited is not None

    def _claim(self, job: Job, match: Match) -> None:
        """Give the job its slot, shared pages and fresh pages."""
        if job.visit is None:  # else it comes back
            job.visit = self.prefix.begin(match, self._head(job), job.marks, agent=job.agent)
        if job.check is not None:
            job.check.turn = job.visit.line.turns
        job.slot = self._states.allocate()
        job.computed = 0
        if self._states.slot_bytes:
            job.marks = with_fork(job.marks, match.position, min(match.matched, job.prompt))
        if match.position and job.check is None and self._fits(job, match):
            self._resume(job, job.slot, match)
        if len(job.tokens) == job.prompt:  # else it comes back, and what it resumed at first stands
            job.cached = job.computed
        self._extend(job, self._wanted_pages(job) - len(job.pages))

    def _begin_check(self, job: Job, match: Match, held: int) -> Job | None:
        """The shadow of a job whose hit is to be checked, ready to run; None where it is not, or where there
        is no room for both.
        """
        if not match.position or len(job.tokens) > job.prompt or not self.checker.wants():
            return None
        shadow = Job(f"{job.id}-check", list(job.tokens), job.prompt)
        pages = self._wanted_pages(shadow)
        rest = pages - match.position // self._pages.page_size + 1
        needed = len(self._held().union(match.pages)) + self._wanted_pages(job) + rest
        if len(self.running) + held + 2 > self._max_running or needed > self._pages.total:
            return None
        self.checker.begun()
        shadow.shadow, shadow.arrival = True, job.arrival
        shadow.check = job.check = Check(match)
        shadow.visit = Visit(Line(0))
        shadow.slot = self._states.allocate()
        self._resume(shadow, shadow.slot, match)
        self._extend(shadow, pages - len(shadow.pages))
        return shadow

    def _end_check(self, job: Job) -> None:
        """A request ends or goes back to the queue: there is nothing any more to compare its shadow with."""
        check, job.check = job.check, None
        if check is not None and not job.shadow:
            for shadow in [other for other in self.running if other.check is check]:
                self.finish(shadow, keep=False)

    def _drop_shadows(self) -> bool:
        """Give up all checks, since a request needs their room. False when there are none."""
        shadows = [job for job in self.running if job.shadow]
        for shadow in shadows:
            self.finish(shadow, keep=False)
        return bool(shadows)

    def _resume(self, job: Job, slot: int, match: Match) -> None:
        """Take over pages and state of a match; a last page that others use is copied."""
        self._pages.retain(match.pages)  # so that making room cannot free them
        job.pages = list(match.pages)
        job.computed = match.position
        if self._states.slot_bytes:
            self._states.restore(slot, match.snapshot)
        # Writing behind the match in its own page keeps the pages of a conversation in one run, which is
        # read without a copy; a page with two writers would mix two requests.
        if match.position % self._pages.page_size and not match.sole:
            shared = job.pages.pop()
            self._extend(job, 1)
            self._copy_page(shared, job.pages[-1])
            self._pages.release([shared])

    def _fits(self, job: Job, match: Match | None) -> bool:
        """Whether the pages that running requests do not hold are enough, all other anchors given up."""
        held = self._held()
        wanted = self._wanted_pages(job)
        if match is not None:
            held.update(match.pages)
            wanted -= match.position // self._pages.page_size
        return len(held) + wanted <= self._pages.total

    def _extend(self, job: Job, count: int) -> None:
        """Add `count` fresh pages, next to the last one where possible. The caller knows that they exist."""
        self.prefix.make_room(count)
        job.pages += self._pages.allocate(count, after=job.pages[-1] if job.pages else None)

    def _wanted_pages(self, job: Job) -> int:
        tokens = min(job.limit, len(job.tokens) + REPLY_RESERVE)
        return -(-tokens // self._pages.page_size)

    def _grow(self, job: Job) -> None:
        """See to a page for the next token: a free one, an anchor's, or one of the youngest request."""
        if len(job.tokens) <= len(job.pages) * self._pages.page_size:
            return
        while len(self._held()) == self._pages.total or not self.prefix.make_room(1):
            if self._drop_shadows():
                continue
            youngest = self.running[-1]
            self._send_back(youngest)
            if youngest is job:
                return
        self._extend(job, 1)

    def _send_back(self, job: Job) -> None:
        self._end_check(job)
        self.running.remove(job)
        self._free(job)
        older = sum(other.arrival < job.arrival for other in self.waiting)
        self.waiting.insert(older, job)

    def _chunk_end(self, job: Job) -> int:
        """The next mark, where the state has to be kept; without a recurrent state any place can be kept, and
        some pools keep states on the way.
        """
        if not self._states.slot_bytes or self._states.inside:
            return len(job.tokens)
        return next((mark for mark in job.marks if mark > job.computed), len(job.tokens))

    def _inside(self, job: Job, count: int, promised: int) -> tuple[int, ...]:
        """The marks inside the job's next `count` tokens whose states the step is to keep."""
        if not self._states.slot_bytes or not self._states.inside:
            return ()
        marks = [mark for mark in job.marks if job.computed < mark < job.computed + count]
        assert job.visit is not None, "a request that runs has been admitted"
        return tuple(self.prefix.choose(job.visit, marks, job.computed, promised)) if marks else ()

    def _keep_inside(self, job: Job, mark: int, piece: Piece) -> None:
        """Make an anchor at a mark that the step went past."""
        if not self._states.slot_bytes:
            self._keep(job, mark, mark=True)
        elif mark in piece.keep:
            assert job.slot is not None, "a request that ran holds a slot"
            taken = self._states.take(job.slot, mark)
            if taken is None:
                self.prefix.skipped += 1
            else:
                self._keep(job, mark, mark=True, taken=taken)

    def _keep(self, job: Job, position: int, *, mark: bool, taken: Any = None) -> None:
        assert job.slot is not None, "a request that ran holds a slot"
        assert job.visit is not None, "a request that ran has been admitted"
        anchor = self.prefix.keep(job.key(), position, job.pages, job.slot, job.visit, mark=mark, taken=taken)
        if anchor is not None and position in job.lasting:
            self.prefix.save(anchor)

    def _head(self, job: Job) -> int:
        return job.prompt if job.head is None else job.head

    def _held(self) -> set[int]:
        return {page for job in self.running for page in job.pages}

    def _free(self, job: Job) -> None:
        if job.slot is not None:
            self._states.release(job.slot)
        self._pages.release(job.pages)
        job.pages = []
        job.slot = None
        job.computed = 0


def _arrival(job: Job) -> int:
    return job.arrival
