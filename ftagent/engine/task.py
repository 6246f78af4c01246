"""A request while the engine works on it, and the way its events take to the reader's event loop.

Knows no model. The worker thread writes, one event loop reads; neither ever waits for the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftagent.engine.job import Job
from ftagent.engine.reply import ReplyStream
from ftagent.engine.sampling import Constraint, Sampler
from ftagent.errors import FtError
from ftagent.events import Divergence, Event, Finished, FinishReason, Usage

if TYPE_CHECKING:
    from ftagent.engine.prompt.template import RenderedPrompt


class Outbox:
    """Events from the worker to one reader on `loop`. An error in it is the last thing that comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[Event | FtError] = deque()
        self._filled = asyncio.Event()
        self._announced = False  # the reader has been called and has not come yet

    def put(self, items: Iterable[Event | FtError]) -> None:
        """Called by the worker, which then calls `deliver`."""
        self._items.extend(items)

    def announce(self) -> bool:
        """Called by the worker: whether the reader has to be called for what was put."""
        wanted = not self._announced
        self._announced = True
        return wanted

    def fill(self) -> None:
        """Called on the loop: there is something to take."""
        self._filled.set()

    async def take(self) -> list[Event | FtError]:
        """Called by the reader: all that has come, at least one item."""
        while not self._items:
            await self._filled.wait()
            self._filled.clear()
            self._announced = False  # from here on whatever is put is announced again
        return [self._items.popleft() for _ in range(len(self._items))]


@dataclass(slots=True, eq=False)
class Task:
    """One request with all that its reply needs. Times are time.monotonic().

    `eos` holds the ids that end the reply: none when the request ignores them. `hidden` ids have no text.
    `rendered` is None for a raw prompt. `divergence`: see `events.Usage`.
    """

    job: Job
    sampler: Sampler
    reply: ReplyStream
    outbox: Outbox
    eos: frozenset[int]
    hidden: frozenset[int]
    rendered: RenderedPrompt | None = None
    divergence: Divergence | None = None
    constraint: Constraint | None = None
    arrived: float = 0.0
    started: float | None = None
    first_token: float | None = None
    told_queued: bool = False

    def usage(self) -> Usage:
        job = self.job
        return Usage(
            prompt_tokens=job.prompt,
            completion_tokens=len(job.tokens) - job.prompt,
            cached_tokens=job.cached,
            reasoning_tokens=self.reply.reasoning_tokens,
            divergence=self.divergence,
        )

    def finished(self, reason: FinishReason) -> Finished:
        """The last event of a complete reply."""
        return Finished(
            reason=self.reply.reason(reason),
            usage=self.usage(),
            stop_sequence=self.reply.stopped,
            token_ids=tuple(self.job.tokens[self.job.prompt :]),
        )


def deliver(tasks: Iterable[Task]) -> None:
    """Call the readers of `tasks`, each event loop once: waking a loop costs more than all else here.

    A task whose reader's loop is closed is marked as cancelled.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Task]] = {}
    for task in tasks:
        if task.outbox.loop.is_closed():  # perhaps with an announcement that nobody will ever read
            task.job.cancelled = True
        elif task.outbox.announce():
            by_loop.setdefault(task.outbox.loop, []).append(task)
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_fill, [task.outbox for task in group])
        except RuntimeError:  # the loop was closed just now
            for task in group:
                task.job.cancelled = True


def _fill(outboxes: Iterable[Outbox]) -> None:
    for outbox in outboxes:
        outbox.fill()
