"""One generation as an HTTP response, streamed or whole, for any protocol's renderer.

Owns the order of things on the wire: admission, head, events, keep-alive, end. Knows no protocol.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ftagent.errors import EngineError, EngineStopped, FtError
from ftagent.events import Event, Finished, Progress
from ftagent.gateway.pump import EventPump
from ftagent.gateway.sse import HEAD, until_disconnect

log = logging.getLogger(__name__)


class Renderer(Protocol):
    """Turns the events of one reply into one protocol's bytes. `push` is called for every event."""

    def begin(self) -> bytes:
        """What is sent together with the head; may be empty."""
        ...

    def push(self, event: Event) -> bytes: ...

    def keepalive(self) -> bytes:
        """A real event of the protocol that adds nothing to the reply."""
        ...

    def fail(self, error: Exception) -> bytes:
        """The event that ends a stream which cannot be completed."""
        ...

    def whole(self) -> dict[str, Any]:
        """The reply that was not streamed. Valid once a Finished was pushed."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds. No stream is silent longer than `keepalive`.

    The head waits up to `admission` for the engine's first event, so that a refusal still has its own HTTP
    status; after that the head goes out and a refusal becomes an error event.
    """

    keepalive: float = 5.0
    admission: float = 2.0


class Running:
    """The replies under way in one application, so that closing it can end each in its own protocol."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.closing = False
        self._pumps: set[EventPump] = set()

    @asynccontextmanager
    async def entry(self, pump: EventPump) -> AsyncIterator[None]:
        self._pumps.add(pump)
        if self.closing:
            pump.interrupt(_closing())
        try:
            yield
        finally:
            self._pumps.discard(pump)

    def close(self) -> None:
        """End every reply with an error. Call it in the loop that serves them."""
        self.closing = True
        for pump in self._pumps:
            pump.interrupt(_closing())


def _closing() -> EngineStopped:
    return EngineStopped("the server is closing: the reply is not complete")


class ReplyResponse(Response):
    """Runs one generation when it is sent; stops it as soon as the client is gone."""

    def __init__(
        self, events: AsyncGenerator[Event, None], renderer: Renderer, running: Running, *, stream: bool
    ) -> None:
        super().__init__()
        self._events = events
        self._renderer = renderer
        self._running = running
        self._stream = stream
        self._timing = running.timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(self._reply(scope, receive, send), receive)

    async def _reply(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with EventPump(self._events) as pump, self._running.entry(pump):
            if self._stream:
                await self._streamed(pump, send)
                return
            while not isinstance(event := await pump.next(None), Finished):
                assert event is not None
                self._renderer.push(event)
            self._renderer.push(event)
        await JSONResponse(self._renderer.whole())(scope, receive, send)

    async def _streamed(self, pump: EventPump, send: Send) -> None:
        deadline = time.monotonic() + self._timing.keepalive
        event = await pump.next(min(self._timing.admission, self._timing.keepalive))
        head = [(name.encode(), value.encode()) for name, value in HEAD.items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        if chunk := self._renderer.begin():
            await send(_body(chunk))
        try:
            await self._send_events(event, pump, send, deadline)
        except FtError as error:
            await send(_body(self._renderer.fail(error)))
        except Exception as error:  # the head is out: the client must learn of any fault inside the stream
            log.exception("a reply failed while it was streamed")
            await send(_body(self._renderer.fail(EngineError(f"internal error: {type(error).__name__}"))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, event: Event | None, pump: EventPump, send: Send, deadline: float) -> None:
        while True:
            chunk = b"" if event is None or isinstance(event, Progress) else self._renderer.push(event)
            if not chunk and time.monotonic() >= deadline:
                chunk = self._renderer.keepalive()
            if chunk:
                await send(_body(chunk))
                deadline = time.monotonic() + self._timing.keepalive
            if isinstance(event, Finished):
                return
            event = await pump.next(max(0.0, deadline - time.monotonic()))


def _body(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}
