"""Anthropic Messages requests: the wire models, and their translation to a Conversation.

https://platform.claude.com/docs/en/api/messages. Marks that say nothing to a model (cache_control, ids of
messages, metadata, context_management, betas) are dropped here, so equal conversations compare equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import from_json

from ftagent.conversation import (
    Block,
    Conversation,
    Image,
    Message,
    Text,
    Thinking,
    ToolChoice,
    ToolReference,
    ToolResult,
    ToolSpec,
)
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.errors import BadRequest
from ftagent.gateway.wire_common import (
    check_choice,
    degree_of,
    distinct,
    join_results,
    schema_text,
    tool_call,
    user_messages,
)


class _Wire(BaseModel):
    # Clients send fields of betas we never heard of; the ones that matter are named below.
    model_config = ConfigDict(extra="ignore", frozen=True)


class TextBlock(_Wire):
    type: Literal["text"]
    text: str


class ThinkingBlock(_Wire):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class Source(_Wire):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""
    content: Any = None


class ImageBlock(_Wire):
    type: Literal["image"]
    source: Source


class DocumentBlock(_Wire):
    type: Literal["document"]
    source: Source
    title: str | None = None


class ToolUseBlock(_Wire):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] | str | None = None


class ToolReferenceBlock(_Wire):
    type: Literal["tool_reference"]
    tool_name: str


class OtherBlock(_Wire):
    """Blocks of server-side tools and the like. Kept for their name."""

    type: str
    content: Any = None


def _as_blocks(value: Any) -> Any:
    """A plain string is shorthand for one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


_KNOWN = ("text", "thinking", "image", "document", "tool_use", "tool_result", "tool_reference")


def _block_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return "@" + (kind if kind in _KNOWN else "other")  # the mark keeps it out of error paths


class ToolResultBlock(_Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[WireBlock], BeforeValidator(_as_blocks)] | None = None
    is_error: bool | None = False


WireBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ThinkingBlock, Tag("@thinking")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[DocumentBlock, Tag("@document")]
    | Annotated[ToolUseBlock, Tag("@tool_use")]
    | Annotated[ToolResultBlock, Tag("@tool_result")]
    | Annotated[ToolReferenceBlock, Tag("@tool_reference")]
    | Annotated[OtherBlock, Tag("@other")],
    Discriminator(
        _block_tag,
        custom_error_type="block_type",
        custom_error_message="a content block is an object with a type",
    ),
]
WireBlocks = Annotated[list[WireBlock], BeforeValidator(_as_blocks)]


class WireMessage(_Wire):
    role: Literal["user", "assistant", "system"]
    content: WireBlocks


class WireTool(_Wire):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = False


class WireToolChoice(_Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False


class ThinkingConfig(_Wire):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(_Wire):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(_Wire):
    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(_Wire):
    """The part of a request that makes the prompt; all that count_tokens takes."""

    model: str = Field(min_length=1)
    messages: list[WireMessage] = Field(min_length=1)
    system: Annotated[list[TextBlock], BeforeValidator(_as_blocks)] | None = None
    tools: list[WireTool] | None = None
    tool_choice: WireToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where the first beta of structured output had it
    mcp_servers: list[Any] | None = None
    container: Any = None


class Metadata(_Wire):
    user_id: str | None = None


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=1)
    stream: bool | None = False
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0)
    metadata: Metadata | None = None


def conversation_of(request: CountRequest) -> Conversation:
    """The conversation that the request describes. Raises BadRequest with the field's name."""
    for name in ("mcp_servers", "container"):
        if getattr(request, name):
            raise BadRequest("runs tools on the server, which is not supported: leave it out", name)
    messages: list[Message] = []
    if request.system:
        messages.append(Message("system", tuple(Text(block.text) for block in request.system if block.text)))
    for index, wire in enumerate(request.messages):
        blocks = list(_blocks(wire.content, f"messages.{index}.content", wire.role))
        messages += user_messages(blocks) if wire.role == "user" else [Message(wire.role, tuple(blocks))]
    tools = distinct(_tools(request))
    choice = check_choice(_choice(request.tool_choice), tools)
    effort = request.output_config.effort if request.output_config else None
    thinking = _thinking(request.thinking, effort)
    return Conversation(join_results(messages), tools, choice, thinking, degree_of(effort))


def generate_request(request: MessagesRequest, reply_id: str, session: str = "") -> GenerateRequest:
    """The engine's request. `session` is what the headers say; the metadata is asked when it is empty."""
    if [message.role for message in request.messages if message.role != "system"][-1:] == ["assistant"]:
        raise BadRequest(
            "the last message must be from the user: a begun reply cannot be continued", "messages"
        )
    schema = _schema(request)
    sampling = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=tuple(request.stop_sequences or ()),
        json_schema=schema_text(schema.schema_) if schema else None,
    )
    return GenerateRequest(
        conversation_of(request), sampling, reply_id, session or _session(request.metadata)
    )


def _blocks(blocks: Sequence[WireBlock], path: str, role: str) -> Iterator[Block]:
    """Translate one content list. Text that is empty and thinking that is encrypted say nothing."""
    for index, block in enumerate(blocks):
        where = f"{path}.{index}"
        match block:
            case ThinkingBlock() if role == "assistant":
                yield Thinking(block.thinking, block.signature or None)
            case ToolUseBlock() if role == "assistant":
                yield tool_call(block.id, block.name, block.input)
            case ToolResultBlock() if role == "user":
                content = tuple(_readable(block.content or [], f"{where}.content"))
                yield ToolResult(block.tool_use_id, content, bool(block.is_error))
            case ThinkingBlock() | ToolUseBlock() | ToolResultBlock():
                raise BadRequest(f"a {block.type} block cannot stand in a message of the {role}", where)
            case _:
                yield from _readable([block], path, index)


def _readable(
    blocks: Sequence[WireBlock], path: str, first: int = 0
) -> Iterator[Text | Image | ToolReference]:
    """Blocks that hold words, pictures or names of tools. A kind that this model cannot read becomes a short
    note.
    """
    for index, block in enumerate(blocks, first):
        match block:
            case TextBlock():
                if block.text:
                    yield Text(block.text)
            case ImageBlock():
                yield Image(block.source.media_type, block.source.data or block.source.url)
            case DocumentBlock():
                yield Text(_document(block))
            case ToolReferenceBlock():
                yield ToolReference(block.tool_name)
            case OtherBlock(type="search_result"):
                yield from (Text(text) for text in _texts(block.content))
            case OtherBlock(type="redacted_thinking"):
                pass
            case OtherBlock() if block.type == "server_tool_use" or block.type.endswith("_tool_result"):
                pass  # another server's own tools, which already answered: their text follows
            case _:
                raise BadRequest(
                    f"blocks of type {block.type!r} are not supported here", f"{path}.{index}.type"
                )


def _document(block: DocumentBlock) -> str:
    if block.source.type == "text":
        return block.source.data
    texts = _texts(block.source.content)
    title = f" {block.title!r}" if block.title else ""
    return "\n".join(texts) if texts else f"[document{title} left out: this model reads text only]"


def _texts(content: Any) -> list[str]:
    blocks = _as_blocks(content)
    if not isinstance(blocks, list):
        return []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return [text for text in texts if isinstance(text, str)]


# Tools whose schema lives in Anthropic's models, but which the client runs.
_CLIENT_TOOLS = ("bash_", "text_editor_", "memory_", "computer_", "browser_")


def _tools(request: CountRequest) -> tuple[ToolSpec, ...]:
    """Offered tools in order, then deferred ones in the order in which results referred to them, to be
    described there.

    Tools that run on Anthropic's servers are left out: nobody could run them here.
    """
    offered: list[ToolSpec] = []
    deferred: dict[str, ToolSpec] = {}
    searchable = False
    for index, tool in enumerate(request.tools or []):
        kind = tool.type or "custom"
        searchable |= kind.startswith("tool_search_tool_")
        if kind.startswith(_CLIENT_TOOLS):
            raise BadRequest(
                f"{kind!r} is unknown to this model: give its input_schema instead", f"tools.{index}.type"
            )
        if kind != "custom":
            continue
        if not tool.name:
            raise BadRequest("a tool needs a name", f"tools.{index}.name")
        if tool.input_schema is None:
            raise BadRequest("a tool needs a JSON Schema", f"tools.{index}.input_schema")
        spec = ToolSpec(tool.name, tool.description or "", tool.input_schema)
        if tool.defer_loading:
            deferred[tool.name] = spec
        else:
            offered.append(spec)
    # Without the server's search nothing could ever refer to a deferred tool, so all are offered.
    if searchable:
        return (*offered, *deferred.values())
    wanted = dict.fromkeys(_references(request.messages))
    return (*offered, *(replace(deferred[name], late=True) for name in wanted if name in deferred))


def _references(messages: Sequence[WireMessage]) -> Iterator[str]:
    for message in messages:
        for block in message.content:
            inner = block.content or [] if isinstance(block, ToolResultBlock) else [block]
            yield from (item.tool_name for item in inner if isinstance(item, ToolReferenceBlock))


def _choice(choice: WireToolChoice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "tool":
            if not choice.name:
                raise BadRequest("names no tool", "tool_choice.name")
            return ToolChoice("named", choice.name, parallel)
        case "any":
            return ToolChoice("required", None, parallel)
        case mode:
            return ToolChoice(mode, None, parallel)


def _thinking(switch: ThinkingConfig | None, effort: str | None) -> bool | None:
    """Effort "none" wins over the switch; a client that says neither leaves it to the model.

    Other efforts do not turn thinking on: in this API they are about all of the reply.
    How thinking is displayed is ignored: the agent must be able to send all of it back.
    """
    if effort == "none":
        return False
    return None if switch is None else switch.type != "disabled"


def _schema(request: CountRequest) -> OutputFormat | None:
    asked = request.output_config.format if request.output_config else None
    return asked or request.output_format


def _session(metadata: Metadata | None) -> str:
    """The session id inside `metadata.user_id`, which Claude Code fills with JSON text."""
    try:
        value = from_json(metadata.user_id) if metadata and metadata.user_id else None
    except ValueError:
        return ""
    session = value.get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) else ""
