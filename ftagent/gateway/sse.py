"""Server-sent events: the encoding, and a response that sends them until its client goes away.

https://html.spec.whatwg.org/multipage/server-sent-events.html. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEAD = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"


def encode_event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event. JSON in ASCII, so that readers which split lines at U+2028 or U+0085 stay in step."""
    body = json.dumps(data, separators=(",", ":")).encode("ascii")
    head = b"" if name is None else b"event: " + name.encode("ascii") + b"\n"
    return head + b"data: " + body + b"\n\n"


async def until_disconnect(work: Awaitable[None], receive: Receive) -> None:
    """Do `work`, unless the client goes away first: then it is cancelled, and awaited until it has ended."""
    task = asyncio.ensure_future(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()  # raises what the work raised
    finally:
        pending = [job for job in (task, watch) if not job.done()]
        for job in pending:
            job.cancel()
        if pending:
            await asyncio.wait(pending)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends `chunks` as they come. The generator is closed at once when the client goes away."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=HEAD)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
