"""OpenAI requests to conversations, where the SDK would not send the odd forms that agents do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftagent.conversation import Conversation, Image, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.errors import BadRequest
from ftagent.gateway.body import parse_body
from ftagent.gateway.wire_openai import ChatRequest, chat_request


def conversation(messages: Any, **fields: Any) -> Conversation:
    body = {"model": "m", "messages": messages, **fields}
    prompt = chat_request(parse_body(ChatRequest, json.dumps(body).encode()), "chatcmpl-1").prompt
    assert isinstance(prompt, Conversation)
    return prompt


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_string_equals_a_list_of_one_part() -> None:
    assert conversation(user("hi")) == conversation(user([{"type": "text", "text": "hi"}]))


def test_developer_and_late_system_messages_stay_where_they_stand() -> None:
    roles = ["system", "user", "assistant", "developer", "user"]
    asked = conversation([{"role": role, "content": str(n)} for n, role in enumerate(roles)])
    assert [(message.role, message.text) for message in asked.messages] == [
        ("system", "0"),
        ("user", "1"),
        ("assistant", "2"),
        ("system", "3"),
        ("user", "4"),
    ]


def called(arguments: Any) -> ToolCall:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    [block] = conversation([{"role": "assistant", "content": None, "tool_calls": [call]}]).messages[0].blocks
    assert isinstance(block, ToolCall)
    return block


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ('{"b": 1, "a": [true, null]}', ToolCall("a", "f", {"b": 1, "a": [True, None]})),
        ({"b": 1}, ToolCall("a", "f", {"b": 1})),
        ("", ToolCall("a", "f", {})),
        (None, ToolCall("a", "f", {})),
        ('{"b": ', ToolCall("a", "f", {}, raw='{"b": ')),
        ("[1]", ToolCall("a", "f", {}, raw="[1]")),
        ("[" * 5000, ToolCall("a", "f", {}, raw="[" * 5000)),
    ],
)
def test_arguments(arguments: Any, meant: ToolCall) -> None:
    assert called(arguments) == meant


def test_keys_keep_the_order_in_which_the_client_wrote_them() -> None:
    assert list(called('{"z": 1, "a": 2, "m": 3}').arguments) == ["z", "a", "m"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_replayed(name: str) -> None:
    [message] = conversation([{"role": "assistant", "content": "two", name: "one"}]).messages
    assert message == Message("assistant", (Thinking("one"), Text("two")))


def test_a_custom_call_is_replayed() -> None:
    call = {"id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": "x\ny"}}
    [message] = conversation([{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.blocks == (ToolCall("a", "apply_patch", {"input": "x\ny"}),)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("data:image/png;base64,AAAA", Image("image/png", "AAAA")),
        ("https://example.org/a,b.png", Image("", "https://example.org/a,b.png")),
    ],
)
def test_pictures(url: str, meant: Image) -> None:
    for form in ({"url": url}, url):
        part = {"type": "image_url", "image_url": form}
        assert conversation(user([part])).messages[0].blocks == (meant,)
        result = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "t"}, part]}
        assert conversation([result]).messages[0].blocks == (ToolResult("a", (Text("t"), meant)),)


def test_parts_that_cannot_be_read_become_a_note() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert "left out" in conversation(user([part])).messages[0].text


def test_neighbouring_results_are_one_message() -> None:
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "ab"]
    [message] = conversation(results).messages
    assert message == Message("tool", (ToolResult("a", (Text("a"),)), ToolResult("b", (Text("b"),))))


@pytest.mark.parametrize(
    ("messages", "fields", "name"),
    [
        ([], {}, "messages"),
        ([{"role": "robot"}], {}, "messages.0.role"),
        (user([{"text": "x"}]), {}, "messages.0.content.0.type"),
        (user([{"type": "text", "text": 5}]), {}, "messages.0.content.0.text"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], {}, "messages.0.tool_calls.0"),
        (user("x"), {"tools": [{"type": "function"}]}, "tools.0.function"),
        (user("x"), {"tools": [{"type": "custom"}]}, "tools.0.custom"),
        (user("x"), {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (user("x"), {"tool_choice": 3}, "tool_choice"),
        (user("x"), {"functions": [{}]}, "functions"),
        (user("x"), {"top_p": 2}, "top_p"),
        (user("x"), {"stop": ["a", ""]}, "stop.1"),
        (user("x"), {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_refusals_name_the_field(messages: Any, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        conversation(messages, **fields)
    assert caught.value.field == name
