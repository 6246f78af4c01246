"""What both protocols' parsers share: folding results into tool messages, and reading call arguments.

Knows the conversation classes only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from ftagent.conversation import Block, Message, Role, ToolCall, ToolChoice, ToolResult, ToolSpec
from ftagent.errors import BadRequest


def user_messages(blocks: Iterable[Block]) -> list[Message]:
    """A user turn as messages: runs of results become `tool` messages, all else `user`, in order."""
    runs: list[tuple[Role, list[Block]]] = []
    for block in blocks:
        role: Role = "tool" if isinstance(block, ToolResult) else "user"
        if not runs or runs[-1][0] != role:
            runs.append((role, []))
        runs[-1][1].append(block)
    return [Message(role, tuple(run)) for role, run in runs] or [Message("user", ())]


def join_results(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Neighbouring `tool` messages as one, so that every protocol gives the same conversation."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == "tool" and joined[-1].role == "tool":
            joined[-1] = Message("tool", joined[-1].blocks + message.blocks)
        else:
            joined.append(message)
    return tuple(joined)


def tool_call(call_id: str, name: str, arguments: str | Mapping[str, Any] | None) -> ToolCall:
    """A call with its arguments parsed; the client's spelling is kept when it is no JSON object."""
    if arguments is None or arguments == "":
        return ToolCall(call_id, name, {})
    if not isinstance(arguments, str):
        return ToolCall(call_id, name, arguments)
    try:
        value = from_json(arguments)
    except ValueError:
        value = None
    return (
        ToolCall(call_id, name, value)
        if isinstance(value, dict)
        else ToolCall(call_id, name, {}, raw=arguments)
    )


def distinct(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools, if no two share a name. Raises BadRequest."""
    named: dict[str, ToolSpec] = {}
    for tool in tools:
        if tool.name in named:
            raise BadRequest(f"two tools are named {tool.name!r}", "tools")
        named[tool.name] = tool
    return tuple(named.values())


def check_choice(choice: ToolChoice, tools: tuple[ToolSpec, ...]) -> ToolChoice:
    """`choice`, if the offered tools allow it. Raises BadRequest."""
    if choice.mode in ("required", "named") and not tools:
        raise BadRequest("a tool is required, but no usable tool is offered", "tool_choice")
    if choice.mode == "named" and choice.name not in {tool.name for tool in tools}:
        raise BadRequest(f"the tool {choice.name!r} is not among the offered tools", "tool_choice")
    return choice


def degree_of(effort: str | None) -> str | None:
    """How much to think, in the client's word. "none" is no degree but the thinking switch."""
    return None if effort in ("", "none") else effort


def session_of(headers: Mapping[str, str]) -> str:
    """The agent's session, as far as its headers tell; under the names of Claude Code, Codex and opencode."""
    names = ("x-claude-code-session-id", "session-id", "x-session-id")
    return next((headers[name] for name in names if headers.get(name)), "")


def schema_text(schema: Mapping[str, Any]) -> str:
    """A JSON Schema as the engine takes it. Key order is kept: it is the order the reply is written in."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
