"""The routes of the Responses API: ask, look up, forget, count.

Programs against `engine.api.Engine` only, like `app`, whose other protocols keep nothing between requests.
"""

from __future__ import annotations

import asyncio
import time
import uuid

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ftagent.engine.api import Engine
from ftagent.gateway.body import parse_request
from ftagent.gateway.errors import Refused
from ftagent.gateway.render_responses import ResponseHead, ResponseRenderer
from ftagent.gateway.reply import ReplyResponse, Running
from ftagent.gateway.stored import StoredResponses
from ftagent.gateway.wire_common import session_of
from ftagent.gateway.wire_responses import (
    LOGPROBS,
    SEALED,
    InputRequest,
    ResponsesRequest,
    Understood,
    generate_request,
    settings_of,
    summary_wanted,
    understand,
)

_MANY_ITEMS = 500


class ResponseRoutes:
    """The endpoints under /v1/responses."""

    def __init__(self, engine: Engine, running: Running, body_limit: int) -> None:
        self._engine = engine
        self._running = running
        self._body_limit = body_limit
        self._stored = StoredResponses()

    async def ask(self, request: Request) -> Response:
        body = await parse_request(ResponsesRequest, request, self._body_limit)
        asked = await self._understand(body)
        reply_id = f"resp_{uuid.uuid4().hex}"
        session = session_of(request.headers)
        events = self._engine.generate(generate_request(body, asked.conversation, reply_id, session))
        include = body.include or ()
        head = ResponseHead(
            reply_id,
            int(time.time()),
            settings_of(body),
            asked.called,
            summary=summary_wanted(body) is not None,
            sealed=SEALED in include,
            logprobs=LOGPROBS in include,
        )
        keep = None if body.store is False else lambda reply: self._stored.add(reply, asked.items)
        return ReplyResponse(events, ResponseRenderer(head, keep), self._running, stream=bool(body.stream))

    async def count(self, request: Request) -> Response:
        body = await parse_request(InputRequest, request, self._body_limit)
        asked = await self._understand(body)
        tokens = await self._engine.count_tokens(asked.conversation)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})

    async def look_up(self, response_id: str) -> Response:
        found = self._stored.get(response_id)
        if found is None:
            raise _absent(response_id)
        return JSONResponse(found.body)

    async def forget(self, response_id: str) -> Response:
        if not self._stored.remove(response_id):
            raise _absent(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/responses")
        router.add_api_route("", self.ask, methods=["POST"])
        router.add_api_route("/input_tokens", self.count, methods=["POST"])
        router.add_api_route("/{response_id}", self.look_up, methods=["GET"])
        router.add_api_route("/{response_id}", self.forget, methods=["DELETE"])
        return router

    async def _understand(self, body: InputRequest) -> Understood:
        past = self._stored.past(body.previous_response_id) if body.previous_response_id else ()
        items = self._stored.resolve(body.input)
        if len(items) + len(past) < _MANY_ITEMS:
            return understand(body, items, past)
        # Thousands of items take long enough to hold up other streams.
        return await asyncio.to_thread(understand, body, items, past)


def _absent(response_id: str) -> Refused:
    return Refused(404, f"no response {response_id!r} is kept", "response_id")
