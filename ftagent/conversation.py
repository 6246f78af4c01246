"""What is said in a conversation, in one shape for every protocol, adapter and template.

Plain frozen data. Knows no HTTP, no token ids and no model; the gateway parses each protocol into these
classes, and `engine.prompt` renders them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
BoundaryKind = Literal[
    "system_end",
    "tools_end",
    "user",
    "thinking_start",
    "thinking_end",
    "tool_call",
    "tool_result",
    "assistant_end",
]


@dataclass(frozen=True, slots=True)
class Text:
    """Words, as the sender wrote them."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning of the model. `signature` is the client's opaque token; it is never rendered."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture. Text-only models see one placeholder for it; `data` is base64 or a URL."""

    media_type: str
    data: str


@dataclass(frozen=True, slots=True)
class ToolReference:
    """From here on the model knows the tool `name`: the first one of a `late` tool brings its definition."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made.

    `arguments` is the parsed JSON object; `raw` keeps the client's own spelling when it could not be
    parsed into an object (then `arguments` is empty).
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back for the call `call_id`. Matched to its call by position, then by id."""

    call_id: str
    content: tuple[Text | Image | ToolReference, ...]
    is_error: bool = False


Block = Text | Thinking | Image | ToolCall | ToolResult | ToolReference


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of one speaker.

    `tool` messages hold only ToolResult blocks; `developer` of other protocols is `system` here, and a
    `system` message may stand anywhere in the conversation.
    """

    role: Role
    blocks: tuple[Block, ...]

    @property
    def text(self) -> str:
        """The Text blocks joined, without thinking, calls and results."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call. `parameters` is a JSON Schema object.

    `late`: it is not described with the others, but where the conversation first refers to it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    late: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`: the model decides; `none`: no call; `required`: some call; `named`: a call of `name`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything the template needs: messages in order, offered tools, and the thinking switch.

    `thinking` is None when the client did not say (then the model's own default applies). `effort` is the
    client's own word for how much to think, None when it did not say: `minimal`, `low`, `medium`, `high`,
    `xhigh` or `max`; templates that know fewer degrees get the nearest.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    thinking: bool | None = None
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place where agents edit: `position` tokens of the prompt stand before it.

    `message` is the index of the message the edge belongs to, or -1 for the tool list.
    """

    kind: BoundaryKind
    position: int
    message: int
