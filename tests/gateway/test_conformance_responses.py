"""The official openai SDK against /v1/responses: what it is told is what the engine said, item by item."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ftagent.conversation import Conversation, Text, Thinking, ToolCall, ToolChoice, ToolResult
from ftagent.errors import EngineStopped, PromptTooLong, QueueFull
from ftagent.events import Event, Failed, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from tests.gateway.stage import HELLO, TOKEN, Stage, done, eventually
from tests.gateway.test_conformance_openai import CALLS, LOGPROBS, STREAMED
from tests.gateway.test_streamed_equals_whole import sse_data

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATCH = "line one\nline two\nline three\n"
TOOLS: list[Any] = [
    {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "function", "name": "ping"},
    {"type": "custom", "name": "apply_patch", "description": "Patch files"},
    {"type": "web_search"},
    {"type": "from_the_future", "settings": {}},
]


@pytest.fixture
def client(stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stage.gateway.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, streamed: bool, **fields: Any) -> Response:
    """The reply; of a streamed one, what the SDK's accumulator made of it."""
    request: dict[str, Any] = {"model": "any-name", "input": "hi", **fields}
    if not streamed:
        reply = client.responses.create(**request)
        assert isinstance(reply, Response)
        return Response.model_validate(reply.to_dict())
    with client.responses.stream(**request) as stream:
        last = None
        for event in stream:
            last = event
        assert last is not None
        assert last.type in ("response.completed", "response.incomplete")
        return Response.model_validate(last.response.to_dict())


def events_of(stage: Stage, **fields: Any) -> list[Any]:
    """The events of a stream as they are on the wire, each accepted by the SDK's type."""
    reply = stage.post("/v1/responses", {"model": "m", "input": "hi", "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    events = list(sse_data(reply))
    for number, event in enumerate(events):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    return events


def asked(stage: Stage) -> Conversation:
    prompt = stage.engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    return prompt


@STREAMED
def test_text(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    reply = ask(client, streamed)
    assert (reply.status, reply.output_text, reply.model) == ("completed", "Hello", "any-name")
    [item] = reply.output
    assert (item.type, (item.id or "")[:4]) == ("message", "msg_")


@STREAMED
def test_usage_counts_cached_tokens_inside(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    usage = ask(client, streamed).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1000, 7, 1007)
    assert usage.input_tokens_details.cached_tokens == 900
    assert usage.output_tokens_details.reasoning_tokens == 3


@STREAMED
def test_reasoning_a_message_and_calls_are_items(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(CALLS)
    reasoning, message, *calls = ask(client, streamed, tools=TOOLS).output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or []] == ["Hmm."]
    assert reasoning.summary == []
    assert message.type == "message"
    functions = [call for call in calls if call.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments, call.status) for call in functions] == [
        ("call_a", "find", '{"q": "a b"}', "completed"),
        ("call_b", "ping", "{}", "completed"),
        ("call_c", "find", '{"q": "c"}', "completed"),
    ]


@STREAMED
def test_reasoning_is_its_own_summary_where_one_is_asked_for(
    client: openai.OpenAI, stage: Stage, streamed: bool
) -> None:
    """As Codex asks: the summary, and all of it sealed for the next request."""
    stage.play(CALLS)
    fields = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False}
    reasoning = ask(client, streamed, **fields).output[0]
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["Hmm."]
    sealed: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": reasoning.encrypted_content,
    }
    for item in (reasoning.to_dict(), sealed):
        ask(client, False, input=[item, {"role": "user", "content": "on"}])
        assert asked(stage).messages[0].blocks == (Thinking("Hmm."),)


def test_every_event_names_its_item(stage: Stage) -> None:
    """From the first event of an item to its last there is one id and one place."""
    stage.play(CALLS)
    events = events_of(stage, tools=TOOLS)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert {event["response"]["id"] for event in events if "response" in event} == {
        events[0]["response"]["id"]
    }
    ids: dict[int, set[str]] = {}
    for event in events[2:-1]:
        name = event["item"]["id"] if "item" in event else event["item_id"]
        ids.setdefault(event["output_index"], set()).add(name)
    output = events[-1]["response"]["output"]
    assert ids == {index: {item["id"]} for index, item in enumerate(output)}
    done_items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done_items == output


def test_what_is_streamed_is_what_is_whole(stage: Stage) -> None:
    stage.play(CALLS)
    streamed = events_of(stage, tools=TOOLS)[-1]["response"]
    whole = stage.post("/v1/responses", {"model": "m", "input": "hi", "tools": TOOLS}).json()
    assert without_names(streamed) == without_names(whole)
    assert [tool["type"] for tool in whole["tools"]] == ["function", "function", "custom"]


def without_names(response: dict[str, Any]) -> dict[str, Any]:
    """Without what no two replies share: ids and times."""
    text = json.dumps(response).replace(response["id"].removeprefix("resp_"), "")
    same: dict[str, Any] = json.loads(text)
    return {**same, "created_at": 0, "completed_at": 0}


@STREAMED
def test_a_free_form_tool_gets_its_text_raw(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(
        [
            ToolCallStart(0, "call_a", "apply_patch"),
            ToolCallDelta(0, '{"input":"line one\\nline two'),
            ToolCallDelta(0, '\\nline three\\n"}'),
            ToolCallEnd(0),
            done("tool_calls"),
        ]
    )
    [item] = ask(client, streamed, tools=TOOLS).output
    assert item.type == "custom_tool_call"
    assert (item.name, item.call_id, item.input) == ("apply_patch", "call_a", PATCH)


@STREAMED
def test_a_tool_of_a_namespace_keeps_both_names(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    inner = {"type": "function", "name": "ping", "parameters": {"type": "object"}}
    tools = [{"type": "namespace", "name": "crew", "description": "", "tools": [inner]}, TOOLS[1]]
    stage.play([ToolCallStart(0, "call_a", "crew__ping"), ToolCallEnd(0), done("tool_calls")])
    [item] = ask(client, streamed, tools=tools).output
    assert item.type == "function_call"
    assert (item.name, item.namespace, item.arguments) == ("ping", "crew", "{}")
    assert [tool.name for tool in asked(stage).tools] == ["crew__ping", "ping"]
    ask(client, False, tools=tools, input=[item.to_dict()])
    assert asked(stage).messages[0].blocks == (ToolCall("call_a", "crew__ping", {}),)


@STREAMED
def test_a_search_that_the_client_does_brings_tools_in(
    client: openai.OpenAI, stage: Stage, streamed: bool
) -> None:
    tools: list[Any] = [{"type": "tool_search", "execution": "client", "description": "", "parameters": {}}]
    stage.play(
        [
            ToolCallStart(0, "call_a", "tool_search"),
            ToolCallDelta(0, '{"query":"x"}'),
            ToolCallEnd(0),
            done("tool_calls"),
        ]
    )
    [item] = ask(client, streamed, tools=tools).output
    assert item.type == "tool_search_call"
    assert (item.execution, item.arguments) == ("client", {"query": "x"})
    found = {"type": "tool_search_output", "call_id": "call_a", "tools": [TOOLS[0]]}
    ask(client, False, tools=tools, input=[item.to_dict(), found])
    call, result = asked(stage).messages
    assert call.blocks == (ToolCall("call_a", "tool_search", {"query": "x"}),)
    assert result.blocks == (ToolResult("call_a", (Text("Available now: find."),)),)
    assert [tool.name for tool in asked(stage).tools] == ["tool_search", "find"]


def test_a_round_trip_of_tools(client: openai.OpenAI, stage: Stage) -> None:
    stage.play(CALLS)
    items = [item.to_dict() for item in ask(client, True, tools=TOOLS).output]
    history: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        *items,
        {"type": "function_call_output", "call_id": "call_a", "output": "found"},
        {
            "type": "function_call_output",
            "call_id": "call_b",
            "output": [{"type": "input_text", "text": "pong"}],
        },
        {"type": "function_call_output", "call_id": "call_c", "output": ""},
    ]
    stage.play(HELLO)
    ask(client, False, input=history, tools=TOOLS, instructions="Be kind.")
    messages = asked(stage).messages
    assert [message.role for message in messages] == ["system", "system", "user", "assistant", "tool"]
    assert (messages[0].text, messages[1].text) == ("Be kind.", "Be brief.")
    assert messages[3].blocks == (
        Thinking("Hmm."),
        Text("Looking."),
        ToolCall("call_a", "find", {"q": "a b"}),
        ToolCall("call_b", "ping", {}),
        ToolCall("call_c", "find", {"q": "c"}),
    )
    assert messages[4].blocks == (
        ToolResult("call_a", (Text("found"),)),
        ToolResult("call_b", (Text("pong"),)),
        ToolResult("call_c", ()),
    )
    assert [tool.name for tool in asked(stage).tools] == ["find", "ping", "apply_patch"]


@STREAMED
def test_the_limit_makes_it_incomplete(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    cut: list[Event] = [TextDelta("So "), ToolCallStart(0, "call_a", "find"), ToolCallDelta(0, '{"q": "a')]
    stage.play([*cut, done("length")])
    reply = ask(client, streamed, max_output_tokens=16, tools=TOOLS)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    message, call = reply.output
    assert (message.type, message.status) == ("message", "completed")  # type: ignore[union-attr]
    assert (call.type, call.status) == ("function_call", "incomplete")  # type: ignore[union-attr]
    assert stage.engine.requests[-1].sampling.max_tokens == 16


def test_a_fault_in_the_middle_fails_the_response(stage: Stage) -> None:
    for fault in (Failed("the device was lost"), EngineStopped("the device was lost")):
        stage.play([TextDelta("one"), fault])
        last = events_of(stage)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "the device was lost"}
        whole = stage.post("/v1/responses", {"model": "m", "input": "hi"})
        assert whole.status_code >= 500
        assert "the device was lost" in whole.text


def test_prompt_too_long(client: openai.OpenAI, stage: Stage) -> None:
    for streamed in (False, True):
        stage.play([PromptTooLong(9000, 8192)])
        with pytest.raises(openai.BadRequestError, match="prompt is too long: 9000 tokens > 8192") as caught:
            ask(client, streamed)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_a_full_queue_is_503_with_retry_after(client: openai.OpenAI, stage: Stage) -> None:
    stage.play([QueueFull("64 requests wait already", retry_after_s=3)])
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client, True)
    assert caught.value.response.headers["retry-after"] == "3"


@STREAMED
def test_logprobs_where_they_are_included(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(LOGPROBS)
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [item] = ask(client, streamed, **fields).output
    assert item.type == "message"
    [part] = item.content
    assert part.type == "output_text"
    assert [(entry.token, entry.logprob) for entry in part.logprobs or []] == [
        ("Hel", -0.5),
        ("lo", -0.25),
        (" é", -0.125),
    ]
    assert stage.engine.requests[-1].sampling.top_logprobs == 2
    stage.play(LOGPROBS)
    deltas = [event for event in events_of(stage, **fields) if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for delta in deltas for entry in delta["logprobs"]] == ["Hel", "lo", " é"]


@pytest.mark.parametrize(
    ("choice", "meant", "left"),
    [
        ("required", ToolChoice("required", None, False), 3),
        ("none", ToolChoice("none", None, False), 3),
        ({"type": "function", "name": "find"}, ToolChoice("named", "find", False), 3),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("named", "apply_patch", False), 3),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "ping"}, {"type": "web_search"}],
            },
            ToolChoice("required", None, False),
            1,
        ),
    ],
)
def test_tool_choice(client: openai.OpenAI, stage: Stage, choice: Any, meant: ToolChoice, left: int) -> None:
    reply = ask(client, True, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert asked(stage).tool_choice == meant
    assert len(asked(stage).tools) == left
    assert reply.parallel_tool_calls is False


def test_structured_output(client: openai.OpenAI, stage: Stage) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form: Any = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    reply = ask(client, True, text={"format": form, "verbosity": "low"})
    assert stage.engine.requests[-1].sampling.json_schema == '{"type":"object","properties":{"b":{},"a":{}}}'
    assert reply.text is not None
    assert reply.text.to_dict() == {"format": form, "verbosity": "low"}
    ask(client, False, text={"format": {"type": "json_object"}})
    assert stage.engine.requests[-1].sampling.json_schema == '{"type":"object"}'


@pytest.mark.parametrize(
    ("fields", "meant", "effort"),
    [
        ({}, None, None),
        ({"reasoning": {"effort": "none"}}, False, None),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, True, "high"),
        ({"reasoning": {"summary": "auto"}}, None, None),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, False, None),
    ],
)
def test_the_thinking_switch(
    client: openai.OpenAI, stage: Stage, fields: dict[str, Any], meant: bool | None, effort: str | None
) -> None:
    client.responses.create(model="m", input="hi", **fields)
    assert (asked(stage).thinking, asked(stage).effort) == (meant, effort)


def test_tokens_of_the_input_are_counted(client: openai.OpenAI, stage: Stage) -> None:
    counted = client.responses.input_tokens.count(model="m", input="four", instructions="five5")
    assert counted.input_tokens == 9
    assert stage.engine.requests == []


def test_leaving_a_stream_stops_the_engine(client: openai.OpenAI, stage: Stage) -> None:
    stage.play([TextDelta("one"), 60.0, done()])
    with client.responses.create(model="m", input="hi", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    assert eventually(lambda: stage.engine.active == 0 and stage.engine.closed_early == 1)
