"""A gateway on a free port in front of an engine that plays whatever script a test puts on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from ftagent.engine.api import GenerateRequest
from ftagent.events import Event, Finished, FinishReason, TextDelta, Usage
from ftagent.gateway.body import BODY_LIMIT
from ftagent.gateway.reply import Timing
from ftagent.gateway.server import Gateway, start_gateway
from tests.support.scripted import Script, ScriptedEngine

TOKEN = "token-of-the-run"
USAGE = Usage(prompt_tokens=1000, completion_tokens=7, cached_tokens=900, reasoning_tokens=3)


def done(reason: FinishReason = "stop", stop: str | None = None) -> Finished:
    return Finished(reason, USAGE, stop)


HELLO: list[Event] = [TextDelta("Hel"), TextDelta("lo"), done()]


@dataclass
class Stage:
    """`play` sets what the engine answers from now on; `engine` records what it was asked."""

    engine: ScriptedEngine
    gateway: Gateway
    client: httpx.Client
    scripts: list[Callable[[GenerateRequest], Script]]

    def play(self, script: Sequence[Event | BaseException | float]) -> None:
        self.scripts[:] = [lambda request: script]

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def send(self, raw: bytes) -> socket.socket:
        """A plain connection on which `raw` was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(raw)
        return connection

    def request_bytes(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nx-api-key: {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@contextmanager
def staged(timing: Timing | None = None, body_limit: int = BODY_LIMIT) -> Iterator[Stage]:
    scripts: list[Callable[[GenerateRequest], Script]] = [lambda request: HELLO]
    engine = ScriptedEngine(lambda request: scripts[0](request))
    with start_gateway(engine, token=TOKEN, timing=timing, body_limit=body_limit) as gateway:
        headers = {"x-api-key": TOKEN}
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as client:
            yield Stage(engine, gateway, client, scripts)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether `condition` comes true in time."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.005)
    return True
