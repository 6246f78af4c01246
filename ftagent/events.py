"""What a generation emits, in order. One stream of these serves all protocols, the chat and the recorder.

Order: any number of Progress, then deltas, then exactly one Finished or Failed. Deltas of one kind may be
joined freely; put together they equal the reply that was not streamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "stop_sequence", "length", "tool_calls", "cancelled"]


class Divergence(NamedTuple):
    """Where a prompt left the one before it in the same conversation, instead of going on behind it.

    `block` is a kind and the number of its message ("system[0]", "tools"), `lost` the tokens of the prompt
    before that stood behind. `volatile`: in a block that clients usually leave as it is.
    """

    turn: int  # of the conversation, from 1
    token: int
    block: str
    lost: int
    volatile: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `prompt_tokens` counts all of the prompt, cached ones included. `divergence`:
    where the prompt changed though it should have gone on behind the one before it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The request is alive but has no token yet: waiting in the queue, or `done` of `total` prefilled."""

    phase: Literal["queued", "prefill"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. `index` counts calls of this reply from 0; `id` is unique over all replies."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the call's arguments as JSON text; the pieces of one index concatenate to one object."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token. `top` lists the likeliest alternatives, the best first."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Emitted only when asked for, right before the delta that the tokens belong to."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete. `stop_sequence` is the string that matched, when one did.

    `token_ids` are the generated ids, the stop token included when one was sampled.
    """

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    token_ids: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The reply ends here and is not complete. `message` says what happened, for people."""

    message: str


Event = (
    Progress
    | ThinkingDelta
    | TextDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | Logprobs
    | Finished
    | Failed
)
