"""The engine's face, without torch: what the gateway, the chat, the tracer and the tests program against.

`engine.engine.LocalEngine` is the real one. Tests use `tests.support.scripted.ScriptedEngine`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ftagent.conversation import Conversation
from ftagent.engine.stats import Snapshot
from ftagent.events import Event


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Fields left None take the model's own default (generation_config.json).

    `temperature` 0 is greedy. `stop` strings are searched in content only, never in thinking or in tool
    arguments. `top_logprobs` None means no logprobs are reported; 0 means the chosen token's only.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    top_logprobs: int | None = None
    json_schema: str | None = None  # a JSON Schema (as text) that the content must satisfy


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One thing to generate: either a conversation, or a raw prompt (text or token ids)."""

    prompt: Conversation | str | Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    id: str = ""  # the engine invents one when empty
    session: str = ""  # groups requests of one agent session, when the client tells


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the loaded model is. `context` is in tokens: prompt and reply together."""

    id: str
    family: str
    context: int
    vocab: int
    embedded: bool = False  # True for the small model that ships with the package
    thinking: bool = True  # the template knows a thinking switch
    parameters: int = 0
    active_parameters: int = 0
    device: str = "cpu"
    dtype: str = ""  # of computation, as torch names it; empty when unknown
    fingerprint: str = ""  # of the checkpoint; empty for a model that has none


Health = Literal["loading", "ok", "failed", "stopped"]


class LoadState(NamedTuple):
    """How far loading is: bytes of weights that are in memory, and all of them; `how` they are read, in a
    line for people, once that is decided.
    """

    phase: Literal["checking", "reading", "preparing"]
    done: int = 0
    total: int = 0
    how: str = ""


LoadProgress = Callable[[LoadState], None]
"""Is told of each step, by several threads, one at a time."""


class Engine(Protocol):
    """A running engine. All methods are safe to call from any thread or event loop."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def health(self) -> Health: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one reply (order: see `events`).

        Closing the generator, or cancelling the task that reads it, stops the work at the next step and
        frees the request's pages. The first `__anext__` raises PromptTooLong, BadRequest, QueueFull or
        EngineStopped before any event; a fault later is a Failed event.
        """
        ...

    async def count_tokens(self, conversation: Conversation) -> int:
        """Tokens of the rendered prompt, exactly as `generate` would see it. Never waits for a step."""
        ...

    def stats(self) -> Snapshot:
        """The newest snapshot. Cheap; never waits for a step."""
        ...

    def close(self) -> None:
        """Stop the worker, fail open requests with EngineStopped, release memory. Safe to call twice."""
        ...
