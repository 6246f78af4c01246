"""The gateway's routes: Anthropic Messages, OpenAI chat and text completions, and the engine's figures.

Those of OpenAI Responses are in `routes_responses`.

Programs against `engine.api.Engine` only; translation is in `wire_*`, rendering in `render_*`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Collection
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ftagent import __version__
from ftagent.engine.api import Engine
from ftagent.engine.starting import StartingEngine
from ftagent.errors import FtError
from ftagent.gateway import wire_anthropic, wire_openai
from ftagent.gateway.body import BODY_LIMIT, parse_request
from ftagent.gateway.errors import Refused, error_body, fault_of, protocol_of
from ftagent.gateway.metrics import CONTENT_TYPE, plain, prometheus_text
from ftagent.gateway.render_anthropic import MessageRenderer
from ftagent.gateway.render_openai import ChatRenderer, CompletionRenderer, ReplyHead
from ftagent.gateway.reply import ReplyResponse, Running, Timing
from ftagent.gateway.routes_responses import ResponseRoutes
from ftagent.gateway.security import Guard
from ftagent.gateway.sse import EventStream, encode_event
from ftagent.gateway.wire_common import session_of

STATS_INTERVAL_S = 0.25


class Routes:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine, running: Running, body_limit: int) -> None:
        self._engine = engine
        self._running = running
        self._body_limit = body_limit
        self._started = int(time.time())

    async def messages(self, request: Request) -> Response:
        body = await parse_request(wire_anthropic.MessagesRequest, request, self._body_limit)
        reply_id = _new_id("msg_")
        session = session_of(request.headers)
        events = self._engine.generate(wire_anthropic.generate_request(body, reply_id, session))
        renderer = MessageRenderer(reply_id, body.model)
        return ReplyResponse(events, renderer, self._running, stream=bool(body.stream))

    async def count_tokens(self, request: Request) -> Response:
        body = await parse_request(wire_anthropic.CountRequest, request, self._body_limit)
        tokens = await self._engine.count_tokens(wire_anthropic.conversation_of(body))
        return JSONResponse({"input_tokens": tokens})

    async def chat(self, request: Request) -> Response:
        body = await parse_request(wire_openai.ChatRequest, request, self._body_limit)
        head = _head("chatcmpl-", body, logprobs=bool(body.logprobs))
        events = self._engine.generate(wire_openai.chat_request(body, head.id, session_of(request.headers)))
        renderer = ChatRenderer(head, wire_openai.custom_tools(body))
        return ReplyResponse(events, renderer, self._running, stream=bool(body.stream))

    async def completions(self, request: Request) -> Response:
        body = await parse_request(wire_openai.CompletionRequest, request, self._body_limit)
        head = _head("cmpl-", body, logprobs=body.logprobs is not None)
        vocab = self._engine.model.vocab
        events = self._engine.generate(wire_openai.completion_request(body, head.id, vocab))
        return ReplyResponse(events, CompletionRenderer(head), self._running, stream=bool(body.stream))

    async def models(self) -> Response:
        model = self._model(self._engine.model.id)
        return JSONResponse(
            {
                "object": "list",
                "data": [model],
                "has_more": False,
                "first_id": model["id"],
                "last_id": model["id"],
            }
        )

    async def model(self, model_id: str) -> Response:
        # Any name is served by the one model, so any name can be looked up.
        return JSONResponse(self._model(model_id))

    async def health(self) -> Response:
        health = self._engine.health
        body: dict[str, Any] = {"status": health}
        state = self._engine.loading if isinstance(self._engine, StartingEngine) else None
        if state is not None:
            body |= {"phase": state.phase, "bytes_read": state.done, "bytes_total": state.total}
        return JSONResponse(body, 200 if health == "ok" else 503)

    async def metrics(self) -> Response:
        return Response(prometheus_text(self._engine.stats()), media_type=CONTENT_TYPE)

    async def stats(self) -> Response:
        return JSONResponse(plain(self._engine.stats()))

    async def report(self) -> Response:
        """The figures with what a screen elsewhere needs beside them; `gateway.client` reads it."""
        try:
            snapshot = self._engine.stats()
        except FtError:
            snapshot = None
        age_s = max(0.0, time.monotonic() - snapshot.time) if snapshot else 0.0
        figures = {"version": 1, "health": self._engine.health, "age_s": age_s}
        return JSONResponse({**figures, "model": plain(self._engine.model), "snapshot": plain(snapshot)})

    async def stats_stream(self) -> Response:
        return EventStream(self._snapshots())

    async def hello(self) -> Response:
        return JSONResponse({"name": "ftagent", "version": __version__})

    def _model(self, model_id: str) -> dict[str, Any]:
        """One object that the model types of both protocols accept."""
        info = self._engine.model
        created = datetime.fromtimestamp(self._started, UTC)
        return {
            "id": model_id,
            "object": "model",
            "created": self._started,
            "owned_by": "ftagent",
            "root": info.id,
            "context_length": info.context,
            "max_model_len": info.context,
            "type": "model",
            "display_name": info.id,
            "created_at": created.isoformat().replace("+00:00", "Z"),
            "lifecycle": "active",
            "max_input_tokens": info.context,
            "max_tokens": info.context,
        }

    async def _snapshots(self) -> AsyncGenerator[bytes, None]:
        while not self._running.closing:
            yield encode_event(plain(self._engine.stats()), "stats")
            await asyncio.sleep(STATS_INTERVAL_S)


def create_app(
    engine: Engine,
    *,
    token: str | None,
    timing: Timing | None = None,
    body_limit: int = BODY_LIMIT,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The ASGI application in front of `engine`.

    `token` None means no token is asked for. `body_limit` is in bytes. `hosts` are names accepted in the Host
    header besides loopback ones, "*" for any literal address. `app.state.close()` ends all open replies.
    """
    running = Running(timing or Timing())
    app = FastAPI(title="ftagent", version=__version__, openapi_url=None, redirect_slashes=False)
    app.include_router(_router(Routes(engine, running, body_limit)))
    app.include_router(ResponseRoutes(engine, running, body_limit).router())
    app.add_exception_handler(Exception, _on_error)
    app.add_exception_handler(HTTPException, _on_error)
    app.add_exception_handler(FtError, _on_error)
    app.state.close = running.close
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app


def _router(routes: Routes) -> APIRouter:
    router = APIRouter()
    router.add_api_route("/", routes.hello, methods=["GET", "HEAD"])
    router.add_api_route("/api/hello", routes.hello, methods=["GET", "HEAD"])
    router.add_api_route("/health", routes.health, methods=["GET", "HEAD"])
    router.add_api_route("/metrics", routes.metrics, methods=["GET"])
    router.add_api_route("/v1/stats", routes.stats, methods=["GET"])
    router.add_api_route("/v1/stats/stream", routes.stats_stream, methods=["GET"])
    router.add_api_route("/v1/ftagent/stats", routes.report, methods=["GET"])
    router.add_api_route("/v1/models", routes.models, methods=["GET"])
    router.add_api_route("/v1/models/{model_id:path}", routes.model, methods=["GET"])
    router.add_api_route("/v1/messages", routes.messages, methods=["POST"])
    router.add_api_route("/v1/messages/count_tokens", routes.count_tokens, methods=["POST"])
    router.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    router.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    return router


async def _on_error(request: Request, error: Exception) -> Response:
    """Any error before a reply has begun, in the shape of the protocol that was spoken."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = Refused(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    protocol = protocol_of(request.url.path, request.headers)
    fault = fault_of(error, protocol)
    return JSONResponse(error_body(fault, protocol), fault.status, headers={**headers, **fault.headers})


def _head(
    prefix: str, body: wire_openai.ChatRequest | wire_openai.CompletionRequest, *, logprobs: bool
) -> ReplyHead:
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return ReplyHead(_new_id(prefix), body.model, int(time.time()), usage, logprobs)


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
