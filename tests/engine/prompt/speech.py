"""Conversations for tests, from the OpenAI dict form, which is also what `transformers` renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftagent.conversation import (
    Block,
    Conversation,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
)

Dicts = Sequence[Mapping[str, Any]]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": 'Finds lines. Never <b>guesses</b> & isn\'t "fast".',
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["q"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "ping", "description": "Says pong — ünïcode", "parameters": {"type": "object"}},
    },
]


def blocks(message: Mapping[str, Any]) -> tuple[Block, ...]:
    if message["role"] == "tool":
        return (ToolResult(message.get("tool_call_id", ""), (Text(message["content"]),)),)
    found: list[Block] = []
    if message.get("reasoning_content"):
        found.append(Thinking(message["reasoning_content"]))
    if message.get("content"):
        found.append(Text(message["content"]))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        found.append(ToolCall(call["id"], function["name"], function["arguments"]))
    return tuple(found)


def conversation(messages: Dicts, tools: Dicts = (), thinking: bool | None = None) -> Conversation:
    functions = [tool["function"] for tool in tools]
    return Conversation(
        tuple(Message(message["role"], blocks(message)) for message in messages),
        tuple(ToolSpec(f["name"], f.get("description", ""), f["parameters"]) for f in functions),
        thinking=thinking,
    )


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: Mapping[str, Any], thinking: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(name: str, arguments: Mapping[str, Any], identity: str = "call_0") -> dict[str, Any]:
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments}}


def result(text: str, identity: str = "call_0") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": identity}


EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "one question": [user("Hello, how are you?")],
    "with system words": [system("You are terse."), user("Hi"), assistant("Hi."), user("2+2?")],
    "thinking kept": [
        user("Look."),
        assistant("I look.", call("find", {"q": "a b", "limit": 3}), thinking="First\n\nlook."),
        result("1: a b\n2: a  b"),
    ],
    "thinking stripped": [
        system("Sys"),
        user("One"),
        assistant("Answer one.", thinking="hidden later"),
        user("Two"),
        assistant("", call("ping", {}), thinking="shown"),
        result("pong"),
    ],
    "parallel calls": [
        user("Both"),
        assistant(
            "Two calls:",
            call("find", {"q": "x", "limit": 1}, "call_0"),
            call("find", {"q": 'quote " back \\ é', "limit": 2}, "call_1"),
        ),
        result("first", "call_0"),
        result("second\n", "call_1"),
        assistant("Done."),
        user("Thanks"),
    ],
    "nested arguments": [
        user("Go"),
        assistant("", call("find", {"q": "z", "more": {"list": [1, 2.5, None, True, "s"], "deep": {}}})),
        result('{"json": ["out", 1]}'),
    ],
    "other scripts": [user("안녕 🤖 e\u0301 こんにちは"), assistant("你好，世界！"), user("ещё раз")],
    "two users in a row": [user("First."), user("Second.")],
    "white space": [user("  lead\n\ntrail  \n"), assistant("    code:\n        x\n"), user("\n\n?")],
}
