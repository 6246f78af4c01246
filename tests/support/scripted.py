"""An Engine that plays a script instead of a model, so gateway and screens are tested exactly and fast."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence

import anyio

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest, Health, ModelInfo
from ftagent.engine.stats import ExpertStats, PoolStats, Snapshot
from ftagent.events import Event

Script = Sequence[Event | BaseException | float]
"""Events in order; a float waits that many seconds, an exception is raised at that place."""


class ScriptedEngine:
    """Answers each request with `script(request)`. Records requests, and how each one ended."""

    def __init__(self, script: Callable[[GenerateRequest], Script], context: int = 65536) -> None:
        self._script = script
        self._model = ModelInfo(id="scripted", family="scripted", context=context, vocab=256)
        self.requests: list[GenerateRequest] = []
        self.active = 0
        self.closed_early = 0
        self.health_now: Health = "ok"

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def health(self) -> Health:
        return self.health_now

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.active += 1
        complete = False
        try:
            for step in self._script(request):
                if isinstance(step, float):
                    await anyio.sleep(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step
            complete = True
        finally:
            self.active -= 1
            self.closed_early += not complete

    async def count_tokens(self, conversation: Conversation) -> int:
        return sum(len(message.text) for message in conversation.messages)

    def stats(self) -> Snapshot:
        return Snapshot(
            time=time.monotonic(),
            step=len(self.requests),
            phase="decode" if self.active else "idle",
            running=self.active,
            waiting=0,
            decode_tokens_per_s=61.8 if self.active else None,
            prefill_tokens_per_s=None,
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
            pools=(
                PoolStats("kv", used=12, total=1024, unit_bytes=16384, tokens_per_unit=64),
                PoolStats("experts", used=96, total=128, unit_bytes=98304),
            ),
            experts=ExpertStats(900, 100, 90, 10, 42, (0.9, None)),
        )

    def close(self) -> None:
        self.health_now = "stopped"
