"""Reads an engine's events in a task of its own, so that waiting for one can time out and be given up.

Cancelling a wait never disturbs the generator; leaving the pump closes it at once. Knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType

from ftagent.errors import EngineError
from ftagent.events import Event, Failed, Finished

_QUEUE_EVENTS = 256  # a client that reads slower than this far behind makes the reader wait


class EventPump:
    """An async context manager around one generation. Leaving it stops the engine's work."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue(_QUEUE_EVENTS)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventPump:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def interrupt(self, error: Exception) -> None:
        """End the generation here: whoever waits for an event gets `error` instead."""
        if self._task is not None:
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(error)

    async def next(self, timeout_s: float | None) -> Event | None:
        """The next event, or None after `timeout_s` seconds. The last one is a Finished.

        Raises what the engine raised, and EngineError for a Failed event or an end without Finished.
        """
        try:
            async with asyncio.timeout(timeout_s):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Failed):
            raise EngineError(item.message)
        return item

    async def _read(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await self._queue.put(event)
                    if isinstance(event, Finished | Failed):
                        return
            await self._queue.put(EngineError("the engine ended the reply without finishing it"))
        except Exception as error:  # noqa: BLE001 - whatever the engine raised belongs to the request's own task
            await self._queue.put(error)
