"""The items of the Responses API, and the conversation they make.

https://platform.openai.com/docs/api-reference/responses. A reply is a row of items (reasoning, message,
calls); clients send them back as they were, and neighbours become one assistant message here. Ids and states
say nothing to a model and are dropped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ftagent.conversation import Block, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.errors import BadRequest
from ftagent.gateway.wire_common import join_results, tool_call
from ftagent.gateway.wire_openai_common import Grammar, Part, Parts, Wire, content_of

# A search among tools that the client does itself, as the model sees it.
TOOL_SEARCH = "tool_search"

# What stands before reasoning that this gateway has sealed.
_SEAL = "ftagent:"

# Calls of tools that the client runs but whose schema lives in OpenAI's models: where their arguments are.
_SHELL_LIKE = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}

# Items of tools that another server ran, which already answered: their text follows.
_HOSTED = frozenset(
    """
    web_search_call file_search_call computer_call computer_call_output code_interpreter_call
    image_generation_call mcp_call mcp_list_tools mcp_approval_request mcp_approval_response
    program program_output configuration_update
    """.split()
)


def _as_output(value: Any) -> Any:
    """What a tool gave back: text, parts, or any other JSON, which the model reads as text."""
    if isinstance(value, str) or value is None:
        text = value or ""
    elif isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value):
        return value
    else:
        text = json.dumps(value, ensure_ascii=False)
    return [{"type": "input_text", "text": text}]


class Tool(Wire):
    """A tool of any kind; which fields are filled depends on `type`."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    execution: str | None = None  # of a search among tools: the server's, or the client's
    tools: list[Tool] | None = None  # of a namespace


class ToolFormat(Grammar):
    type: str = "text"


class Item(Wire):
    """An item of any kind; which fields are filled depends on `type`."""

    type: str | None = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: Annotated[list[Part], BeforeValidator(_as_output)] | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    @property
    def kind(self) -> str:
        """Its type; an item without one is a message, or with an id alone refers to another item."""
        bare = self.id is not None and self.role is None and self.content is None
        return self.type or ("item_reference" if bare else "message")

    @property
    def size(self) -> int:
        """About how many characters it holds."""
        parts = (*(self.content or ()), *(self.summary or ()), *(self.output or ()))
        words = sum(len(part.text) + len(part.image_url.url if part.image_url else "") for part in parts)
        rest = (self.encrypted_content, self.arguments, self.input, self.action, self.operation)
        return 200 + words + sum(len(str(value)) for value in rest if value)


def joined_name(namespace: str | None, name: str) -> str:
    """How the model knows a tool of a namespace: names are unique in a namespace only."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def flat_tools(tools: Iterable[Tool]) -> Iterator[tuple[str | None, Tool]]:
    """Each tool with its namespace, if it is in one."""
    for tool in tools:
        if tool.type == "namespace":
            yield from ((tool.name, inner) for inner in tool.tools or ())
        else:
            yield None, tool


def seal(text: str) -> str:
    """Reasoning as opaque text, for clients that keep nothing else of it. It is encoded, not encrypted."""
    return _SEAL + base64.b64encode(text.encode()).decode("ascii")


def unseal(sealed: str | None) -> str | None:
    """What was sealed; None for another server's text."""
    if not sealed or not sealed.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return None


def messages_of(items: Sequence[Item], past: int = 0) -> tuple[Message, ...]:
    """The conversation in order; the first `past` items come from memory, the rest from the request's input.

    Raises BadRequest with the path of an item that cannot be read.
    """
    messages: list[Message] = []
    reply: list[Block] = []  # of the assistant, growing
    for index, item in enumerate(items, -past):
        path = f"input.{index}"
        said = tuple(_reply_blocks(item, path))
        reply += said
        if said or item.role == "assistant":
            continue
        other = _message(item, path)
        if other is None:
            continue
        if reply:
            messages.append(Message("assistant", tuple(reply)))
            reply = []
        messages.append(other)
    if reply:
        messages.append(Message("assistant", tuple(reply)))
    return join_results(messages)


def _reply_blocks(item: Item, path: str) -> Iterator[Block]:
    """What the model said or called in this item; nothing for items of others."""
    match item.kind:
        case "message" if item.role == "assistant":
            yield from content_of(item.content or (), f"{path}.content")
        case "reasoning":
            if text := _reasoning(item):
                yield Thinking(text)
        case "function_call":
            yield tool_call(_call_id(item), _called(item, path), item.arguments)
        case "custom_tool_call":
            yield tool_call(_call_id(item), _called(item, path), {"input": item.input or ""})
        case "tool_search_call" if item.call_id:
            yield tool_call(item.call_id, TOOL_SEARCH, item.arguments)
        case kind if kind in _SHELL_LIKE:
            arguments: Mapping[str, Any] = getattr(item, _SHELL_LIKE[kind]) or {}
            yield ToolCall(_call_id(item), kind.removesuffix("_call"), arguments)


def _message(item: Item, path: str) -> Message | None:
    """The message of someone else; None for an item that says nothing to a model."""
    match item.kind:
        case "message":
            content = tuple(content_of(item.content or (), f"{path}.content"))
            if item.role is None:
                raise BadRequest("a message needs a role", f"{path}.role")
            return Message("user" if item.role == "user" else "system", content)
        case kind if kind.endswith("_call_output") and kind not in _HOSTED:
            content = tuple(content_of(item.output or (), f"{path}.output"))
            return Message("tool", (ToolResult(_call_id(item), content),))
        case "tool_search_output" if item.call_id:
            return Message("tool", (ToolResult(item.call_id, _now_offered(item.tools or ())),))
        case "tool_search_output" | "additional_tools":
            return Message("system", _now_offered(item.tools or ()))
        case "reasoning" | "tool_search_call":
            return None
        case kind if kind in _HOSTED:
            return None
        case kind:
            raise BadRequest(f"items of type {kind!r} are not supported", f"{path}.type")


def _reasoning(item: Item) -> str:
    """The reasoning itself where it is there, else what was sealed, else its summary."""
    text = "".join(part.text for part in item.content or ())
    return text or unseal(item.encrypted_content) or "\n\n".join(part.text for part in item.summary or ())


def _call_id(item: Item) -> str:
    return item.call_id or item.id or ""


def _called(item: Item, path: str) -> str:
    if not item.name:
        raise BadRequest("a call needs the name of its tool", f"{path}.name")
    return joined_name(item.namespace, item.name)


def _now_offered(tools: Iterable[Tool]) -> tuple[Text, ...]:
    names = ", ".join(joined_name(space, tool.name) for space, tool in flat_tools(tools) if tool.name)
    return (Text(f"Available now: {names}."),) if names else ()
