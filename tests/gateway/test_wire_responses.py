"""Responses items to conversations, where the SDK would not send the odd forms that agents do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftagent.conversation import Conversation, Image, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.gateway.body import parse_body
from ftagent.gateway.wire_responses import ResponsesRequest, understand
from ftagent.gateway.wire_responses_items import seal, unseal
from tests.gateway.stage import Stage
from tests.gateway.test_conformance_responses import TOOLS


def conversation(items: Any, **fields: Any) -> Conversation:
    body = json.dumps({"model": "m", "input": items, **fields}).encode()
    request = parse_body(ResponsesRequest, body)
    return understand(request, request.input).conversation


def test_a_string_is_what_the_user_says() -> None:
    parts = [{"type": "input_text", "text": "hi"}]
    assert conversation("hi") == conversation([{"type": "message", "role": "user", "content": parts}])


def test_items_of_one_reply_are_one_message_in_their_order() -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "plan"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "two"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x\ny"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
        {"type": "function_call_output", "call_id": "a", "output": "ok"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": None, "encrypted_content": "gAAA"},
        {"role": "user", "content": "on"},
    ]
    assert conversation(items).messages == (
        Message("user", (Text("go"),)),
        Message(
            "assistant",
            (
                Thinking("plan"),
                Text("one"),
                ToolCall("a", "f", {}),
                Text("two"),
                ToolCall("b", "patch", {"input": "x\ny"}),
            ),
        ),
        Message("tool", (ToolResult("b", (Text("done"),)), ToolResult("a", (Text("ok"),)))),
        Message("user", (Text("on"),)),
    )


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ('{"b": 1, "a": [true, null]}', ToolCall("a", "f", {"b": 1, "a": [True, None]})),
        ("", ToolCall("a", "f", {})),
        (None, ToolCall("a", "f", {})),
        ('{"b": ', ToolCall("a", "f", {}, raw='{"b": ')),
    ],
)
def test_arguments(arguments: Any, meant: ToolCall) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}
    assert conversation([call]).messages[0].blocks == (meant,)


@pytest.mark.parametrize(
    ("output", "meant"),
    [
        ("text", (Text("text"),)),
        (None, ()),
        ([{"type": "input_text", "text": "a"}], (Text("a"),)),
        ([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}], (Image("image/png", "AAAA"),)),
        (
            [{"type": "input_image", "file_id": "f"}],
            (Text("[input_image left out: this model reads text only]"),),
        ),
        ({"content": "x", "success": True}, (Text('{"content": "x", "success": true}'),)),
        ([{"stdout": "x", "stderr": ""}], (Text('[{"stdout": "x", "stderr": ""}]'),)),
    ],
)
def test_outputs_of_every_shape(output: Any, meant: tuple[Text | Image, ...]) -> None:
    item = {"type": "function_call_output", "call_id": "a", "output": output}
    assert conversation([item]).messages[0].blocks == (ToolResult("a", meant),)


def test_calls_of_another_servers_own_tools_stay_readable() -> None:
    items = [
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "a", "output": "x"},
    ]
    call, result = conversation(items).messages
    assert call.blocks == (ToolCall("a", "local_shell", {"type": "exec", "command": ["ls"]}),)
    assert result.blocks == (ToolResult("a", (Text("x"),)),)


def test_tools_that_come_later_stand_behind_the_others() -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    asked = conversation(
        ["go" and {"role": "user", "content": "go"}, late], tools=[{"type": "custom", "name": "p"}]
    )
    assert [tool.name for tool in asked.tools] == ["p", "late"]
    assert asked.messages[1] == Message("system", (Text("Available now: late."),))


def test_the_grammar_of_a_free_form_tool_is_told() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}
    [tool] = conversation("go", tools=[{"type": "custom", "name": "p", "format": form}]).tools
    assert tool.description == "The input must match this lark grammar:\nstart: /x+/"


@pytest.mark.parametrize("text", ["", "plan", "日本\n\x00"])
def test_what_is_sealed_can_be_read_again(text: str) -> None:
    assert unseal(seal(text)) == text


@pytest.mark.parametrize("sealed", [None, "", "gAAAAAB", "ftagent:%%%", "ftagent:/w==", "ftagent:YQ"])
def test_what_others_sealed_is_nothing(sealed: str | None) -> None:
    assert unseal(sealed) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"include": ["something.new"]}, "include.0"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nope"}, "tools": TOOLS}, "tool_choice"),
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "chatty"}}, "text.verbosity"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input.0.type"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input.0.name"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(stage: Stage, fields: dict[str, Any], name: str) -> None:
    reply = stage.post("/v1/responses", {"model": "m", "input": "hi", **fields})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == name
    assert reply.json()["error"]["message"].startswith(name)
    assert stage.engine.requests == []


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize("stream", ["true", "false"])
def test_what_is_repeated_is_json_whatever_was_sent(stage: Stage, number: str, stream: str) -> None:
    tool = f'{{"type": "function", "name": "f", "parameters": {{"x": [{number}]}}}}'
    body = f'{{"model": "m", "input": "x", "stream": {stream}, "tools": [{tool}]}}'
    headers = {"content-type": "application/json"}
    reply = stage.client.post("/v1/responses", content=body.encode(), headers=headers)
    assert reply.status_code == 200, reply.text
    assert '"parameters":{"x":[null]}' in reply.text
