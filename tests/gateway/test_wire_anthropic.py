"""Anthropic requests to conversations: equal meanings give equal conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftagent.conversation import Conversation, Image, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.engine.api import GenerateRequest
from ftagent.errors import BadRequest
from ftagent.gateway.body import parse_body
from ftagent.gateway.wire_anthropic import MessagesRequest, conversation_of, generate_request

TINY_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def request(messages: Any = "hi", **fields: Any) -> MessagesRequest:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": "m", "max_tokens": 100, "messages": messages, **fields}
    return parse_body(MessagesRequest, json.dumps(body).encode())


def conversation(messages: Any = "hi", **fields: Any) -> Conversation:
    return conversation_of(request(messages, **fields))


def generated(messages: Any = "hi", **fields: Any) -> GenerateRequest:
    return generate_request(request(messages, **fields), "msg_1")


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "input_schema": {"type": "object"}, **fields}


def test_a_string_equals_a_list_of_one_block() -> None:
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert conversation("hi") == conversation([{"role": "user", "content": [marked]}])
    assert conversation(system="be brief") == conversation(system=[{"type": "text", "text": "be brief"}])
    assert conversation("hi", metadata={"user_id": "x"}, context_management={"edits": []}) == conversation(
        "hi"
    )


def test_blocks_keep_their_edges() -> None:
    blocks = [{"type": "text", "text": text} for text in ("a", "b", "")]
    asked = conversation([{"role": "user", "content": blocks}], system=blocks)
    assert asked.messages == (
        Message("system", (Text("a"), Text("b"))),
        Message("user", (Text("a"), Text("b"))),
    )


def test_a_system_message_stays_where_it_stands() -> None:
    asked = conversation(
        [
            {"role": "user", "content": "one"},
            {
                "role": "system",
                "content": [{"type": "text", "text": "B"}],
                "output_config": {"effort": "high"},
            },
            {"role": "assistant", "content": "two"},
            {"role": "system", "content": "C"},
            {"role": "user", "content": "three"},
        ],
        system="A",
    )
    assert [(message.role, message.text) for message in asked.messages] == [
        ("system", "A"),
        ("user", "one"),
        ("system", "B"),
        ("assistant", "two"),
        ("system", "C"),
        ("user", "three"),
    ]


def test_results_and_words_of_one_turn_become_messages_in_order() -> None:
    def result(call_id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": call_id}

    content = [result("a"), result("b"), {"type": "text", "text": "note"}, result("c")]
    asked = conversation([{"role": "user", "content": content}, {"role": "user", "content": [result("d")]}])
    assert [(message.role, len(message.blocks)) for message in asked.messages] == [
        ("tool", 2),
        ("user", 1),
        ("tool", 2),  # neighbouring results are one message, whoever sent them apart
    ]


def test_a_picture_in_a_result_is_kept_as_a_picture() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": TINY_PNG}
    content = [{"type": "text", "text": "shot"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True}
    [message] = conversation([{"role": "user", "content": [result]}]).messages
    assert message == Message("tool", (ToolResult("a", (Text("shot"), Image("image/png", TINY_PNG)), True),))


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_may_be_empty(content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": content}
    assert conversation([{"role": "user", "content": [result]}]).messages[0].blocks == (ToolResult("a", ()),)


def test_thinking_comes_back_whatever_its_signature() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"b": 1, "a": 2}},
    ]
    asked = conversation([{"role": "assistant", "content": content}, {"role": "user", "content": "go"}])
    assert asked.messages[0].blocks == (Thinking("hm"), ToolCall("t", "f", {"b": 1, "a": 2}))
    [call] = [block for block in asked.messages[0].blocks if isinstance(block, ToolCall)]
    assert list(call.arguments) == ["b", "a"]


def test_one_id_in_two_turns_keeps_both_pairs() -> None:
    def turn(answer: str) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": "same", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "same", "content": answer}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]

    asked = conversation([{"role": "user", "content": "go"}, *turn("one"), *turn("two")])
    results = [
        block for message in asked.messages for block in message.blocks if isinstance(block, ToolResult)
    ]
    assert results == [ToolResult("same", (Text("one"),)), ToolResult("same", (Text("two"),))]


def test_deferred_tools_join_when_a_result_refers_to_them() -> None:
    tools = [
        tool("read"),
        tool("later", defer_loading=True),
        tool("placeholder", defer_loading=True),
        tool("write"),
    ]
    assert [spec.name for spec in conversation(tools=tools).tools] == ["read", "write"]
    reference = {"type": "tool_reference", "tool_name": "later"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [reference]}
    asked = conversation([{"role": "user", "content": [result]}], tools=tools)
    assert [spec.name for spec in asked.tools] == ["read", "write", "later"]


def test_deferred_tools_are_offered_when_only_the_server_could_search() -> None:
    tools = [{"type": "tool_search_tool_bm25_20251119", "name": "search"}, tool("later", defer_loading=True)]
    assert [spec.name for spec in conversation(tools=tools).tools] == ["later"]


def test_tools_of_the_server_are_left_out() -> None:
    tools = [{"type": "web_search_20260318", "name": "web_search"}, tool("read", type="custom")]
    [spec] = conversation(tools=tools).tools
    assert (spec.name, spec.description, spec.parameters) == ("read", "does read", {"type": "object"})


@pytest.mark.parametrize(
    ("choice", "mode", "name", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "read"}, "named", "read", True),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_tool_choice(choice: Any, mode: str, name: str | None, parallel: bool) -> None:
    asked = conversation(tools=[tool("read")], tool_choice=choice).tool_choice
    assert (asked.mode, asked.name, asked.parallel) == (mode, name, parallel)


@pytest.mark.parametrize(
    ("fields", "thinking", "effort"),
    [
        ({}, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, True, None),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, False, "low"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "none"}}, False, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, True, "max"),
        ({"output_config": {"effort": "high"}}, None, "high"),
        ({"output_config": {"format": None}}, None, None),
    ],
)
def test_thinking_switch_and_effort(
    fields: dict[str, Any], thinking: bool | None, effort: str | None
) -> None:
    asked = conversation(**fields)
    assert (asked.thinking, asked.effort) == (thinking, effort)


def test_sampling_and_session() -> None:
    asked = generated(
        stop_sequences=["a", "b"],
        temperature=0,
        top_p=0.5,
        top_k=7,
        metadata={"user_id": json.dumps({"device_id": "d", "session_id": "s"})},
    )
    assert asked.sampling.stop == ("a", "b")
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0, 0.5, 7)
    assert (asked.sampling.max_tokens, asked.session, asked.id) == (100, "s", "msg_1")
    assert generated(metadata={"user_id": "not json"}).session == ""
    assert generated(metadata={"user_id": "[" * 5000}).session == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "words"}, "words"),
        ({"type": "content", "content": [{"type": "text", "text": "words"}]}, "words"),
        ({"type": "base64", "media_type": "application/pdf", "data": "AAAA"}, "left out"),
    ],
)
def test_documents_become_text(source: dict[str, Any], words: str) -> None:
    block = {"type": "document", "source": source, "title": "T"}
    assert words in conversation([{"role": "user", "content": [block]}]).messages[0].text


def test_blocks_of_other_servers_tools_are_passed_over() -> None:
    content = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "found"},
    ]
    asked = conversation([{"role": "assistant", "content": content}, {"role": "user", "content": "go"}])
    assert asked.messages[0].blocks == (Text("found"),)


@pytest.mark.parametrize(
    ("messages", "fields", "name"),
    [
        ([], {}, "messages"),
        ([{"role": "robot", "content": "x"}], {}, "messages.0.role"),
        ([{"role": "user"}], {}, "messages.0.content"),
        ([{"role": "user", "content": 5}], {}, "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], {}, "messages.0.content.0.text"),
        ([{"role": "user", "content": ["x"]}], {}, "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], {}, "messages.0.content.0.type"),
        (
            [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}],
            {},
            "messages.0.content.0",
        ),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "The"}], {}, "messages"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": None}, "max_tokens"),
        ("x", {"model": ""}, "model"),
        ("x", {"temperature": -1}, "temperature"),
        ("x", {"stop_sequences": [""]}, "stop_sequences.0"),
        ("x", {"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ("x", {"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ("x", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ("x", {"tools": [tool("f"), tool("f")]}, "tools"),
        ("x", {"tool_choice": {"type": "any"}}, "tool_choice"),
        ("x", {"tool_choice": {"type": "tool", "name": "g"}, "tools": [tool("f")]}, "tool_choice"),
        ("x", {"thinking": {"type": "sometimes"}}, "thinking.type"),
        ("x", {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ("x", {"container": {"skills": []}}, "container"),
        ("x", {"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
    ],
)
def test_refusals_name_the_field(messages: Any, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        generated(messages, **fields)
    assert caught.value.field == name


def test_the_shape_that_claude_code_sends() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    asked = generated(
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "reminder"}, {"type": "text", "text": "task"}],
            },
            {"role": "system", "content": [{"type": "text", "text": "# Environment", **mark}]},
        ],
        system=[
            {"type": "text", "text": "You are an agent.", **mark},
            {"type": "text", "text": "More.", **mark},
        ],
        tools=[tool("Write"), tool("Placeholder", defer_loading=True)],
        metadata={"user_id": '{"session_id":"abc"}'},
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        safeguards=[{"type": "x"}],
        stream=True,
    )
    assert isinstance(asked.prompt, Conversation)
    assert [message.role for message in asked.prompt.messages] == ["system", "user", "system"]
    assert [len(message.blocks) for message in asked.prompt.messages] == [2, 2, 1]
    assert [spec.name for spec in asked.prompt.tools] == ["Write"]
    assert asked.session == "abc"
