"""The official openai SDK against the gateway: what it is told is what the engine said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from ftagent.conversation import Conversation, Text, Thinking, ToolCall, ToolChoice, ToolResult
from ftagent.errors import EngineStopped, PromptTooLong, QueueFull
from ftagent.events import (
    Event,
    Failed,
    Logprobs,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from tests.gateway.stage import HELLO, TOKEN, Stage, done, eventually

STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "ping"}},
    {"type": "custom", "custom": {"name": "apply_patch", "description": "Patch files"}},
    {"type": "web_search"},
    {"type": "from_the_future", "settings": {}},
]
CALLS: list[Event] = [
    ThinkingDelta("Hmm."),
    TextDelta("Looking."),
    ToolCallStart(0, "call_a", "find"),
    ToolCallDelta(0, '{"q": '),
    ToolCallDelta(0, '"a b"}'),
    ToolCallEnd(0),
    ToolCallStart(1, "call_b", "ping"),
    ToolCallEnd(1),
    ToolCallStart(2, "call_c", "find"),
    ToolCallDelta(2, '{"q": "c"}'),
    ToolCallEnd(2),
    done("tool_calls"),
]


@pytest.fixture
def client(stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stage.gateway.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, streamed: bool, **fields: Any) -> ChatCompletion:
    """The reply; a streamed one is put together by the SDK's own accumulator."""
    request: dict[str, Any] = {"model": "any-name", "messages": [{"role": "user", "content": "hi"}], **fields}
    if not streamed:
        reply = client.chat.completions.create(**request)
        assert isinstance(reply, ChatCompletion)
        return reply
    with client.chat.completions.stream(stream_options={"include_usage": True}, **request) as stream:
        return stream.get_final_completion()


@STREAMED
def test_text(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    reply = ask(client, streamed)
    [choice] = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "Hello",
        "stop",
    )
    assert reply.model == "any-name"


@STREAMED
def test_usage_counts_cached_tokens_inside(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    usage = ask(client, streamed).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1000, 7, 1007)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 900
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 3


@STREAMED
def test_reasoning_and_parallel_calls(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(CALLS)
    [choice] = ask(client, streamed).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Hmm."
    calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("call_a", "find", '{"q": "a b"}'),
        ("call_b", "ping", "{}"),
        ("call_c", "find", '{"q": "c"}'),
    ]


def test_a_call_without_text_has_no_content(client: openai.OpenAI, stage: Stage) -> None:
    stage.play([ToolCallStart(0, "call_a", "ping"), ToolCallEnd(0), done("tool_calls")])
    assert ask(client, False).choices[0].message.content is None


@STREAMED
def test_an_empty_reply_is_empty_text(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play([done()])
    [choice] = ask(client, streamed).choices
    assert (choice.message.role, choice.message.content) == ("assistant", "")


def test_a_round_trip_of_tools(client: openai.OpenAI, stage: Stage) -> None:
    stage.play(CALLS)
    message = ask(client, False, tools=TOOLS).choices[0].message
    history: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        message.to_dict(),  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": "call_a", "content": "found"},
        {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "pong"}]},
        {"role": "tool", "tool_call_id": "call_c", "content": ""},
    ]
    stage.play(HELLO)
    ask(client, False, messages=history, tools=TOOLS)
    asked = stage.engine.requests[-1].prompt
    assert isinstance(asked, Conversation)
    assert [entry.role for entry in asked.messages] == ["system", "user", "assistant", "tool"]
    assert asked.messages[2].blocks == (
        Thinking("Hmm."),
        Text("Looking."),
        ToolCall("call_a", "find", {"q": "a b"}),
        ToolCall("call_b", "ping", {}),
        ToolCall("call_c", "find", {"q": "c"}),
    )
    assert asked.messages[3].blocks == (
        ToolResult("call_a", (Text("found"),)),
        ToolResult("call_b", (Text("pong"),)),
        ToolResult("call_c", ()),
    )
    assert [tool.name for tool in asked.tools] == ["find", "ping", "apply_patch"]


def test_a_free_form_tool_gets_its_text_raw(client: openai.OpenAI, stage: Stage) -> None:
    patch = "line one\nline two\nline three\n"
    stage.play(
        [
            ToolCallStart(0, "call_a", "apply_patch"),
            ToolCallDelta(0, '{"input":"line one\\nline two'),
            ToolCallDelta(0, '\\nline three\\n"}'),
            ToolCallEnd(0),
            done("tool_calls"),
        ]
    )
    [call] = ask(client, False, tools=TOOLS).choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", patch)
    request: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": TOOLS,
        "stream": True,
    }
    pieces = []
    for chunk in client.chat.completions.create(**request):
        pieces += [call.to_dict() for call in chunk.choices[0].delta.tool_calls or []]
    custom = {"name": "apply_patch", "input": patch}
    assert pieces == [{"index": 0, "id": "call_a", "type": "custom", "custom": custom}]


@STREAMED
@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("required", ToolChoice("required", None, False)),
        ("none", ToolChoice("none", None, False)),
        ({"type": "function", "function": {"name": "find"}}, ToolChoice("named", "find", False)),
        ({"type": "custom", "custom": {"name": "apply_patch"}}, ToolChoice("named", "apply_patch", False)),
    ],
)
def test_tool_choice(
    client: openai.OpenAI, stage: Stage, streamed: bool, choice: Any, meant: ToolChoice
) -> None:
    reply = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        stream=streamed,
    )
    if isinstance(reply, openai.Stream):
        list(reply)
    asked = stage.engine.requests[-1].prompt
    assert isinstance(asked, Conversation)
    assert asked.tool_choice == meant


@STREAMED
def test_stop_and_length(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play([TextDelta("one "), done("stop_sequence", "two")])
    assert ask(client, streamed, stop="two").choices[0].finish_reason == "stop"
    assert stage.engine.requests[-1].sampling.stop == ("two",)
    stage.play([TextDelta("one "), done("length")])
    if not streamed:
        assert ask(client, streamed, max_completion_tokens=5).choices[0].finish_reason == "length"
        assert stage.engine.requests[-1].sampling.max_tokens == 5


LOGPROBS: list[Event] = [
    Logprobs((TokenLogprob(3, "Hel", -0.5, ((3, "Hel", -0.5), (4, "Hal", -1.5))),)),
    TextDelta("Hel"),
    Logprobs((TokenLogprob(5, "lo", -0.25, ((5, "lo", -0.25),)), TokenLogprob(6, " é", -0.125))),
    TextDelta("lo é"),
    Logprobs((TokenLogprob(0, "<end>", -0.0625),)),
    done(),
]


@STREAMED
def test_chat_logprobs_cover_the_content(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(LOGPROBS)
    logprobs = ask(client, streamed, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert [(entry.token, entry.logprob) for entry in logprobs.content or []] == [
        ("Hel", -0.5),
        ("lo", -0.25),
        (" é", -0.125),
    ]
    assert logprobs.content is not None
    assert [(top.token, top.logprob) for top in logprobs.content[0].top_logprobs] == [
        ("Hel", -0.5),
        ("Hal", -1.5),
    ]
    assert logprobs.content[2].bytes == [0x20, 0xC3, 0xA9]
    assert stage.engine.requests[-1].sampling.top_logprobs == 2


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}, "tools": TOOLS}, "tool_choice"),
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"temperature": 3}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages.0.content.0.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    client: openai.OpenAI, stage: Stage, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, False, **fields)
    assert caught.value.param == name
    assert name in str(caught.value)
    assert stage.engine.requests == []


def test_prompt_too_long(client: openai.OpenAI, stage: Stage) -> None:
    for streamed in (False, True):
        stage.play([PromptTooLong(9000, 8192)])
        with pytest.raises(openai.BadRequestError, match="prompt is too long: 9000 tokens > 8192") as caught:
            ask(client, streamed)
        assert caught.value.code == "context_length_exceeded"


def test_a_full_queue_is_503_with_retry_after(client: openai.OpenAI, stage: Stage) -> None:
    stage.play([QueueFull("64 requests wait already", retry_after_s=3)])
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client, True)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "3"


@STREAMED
def test_a_fault_in_the_middle_reaches_the_client(
    client: openai.OpenAI, stage: Stage, streamed: bool
) -> None:
    for fault in (Failed("the device was lost"), EngineStopped("the device was lost")):
        stage.play([TextDelta("one"), fault])
        with pytest.raises(openai.APIError, match="the device was lost"):
            ask(client, streamed)


def test_models_tell_the_context(client: openai.OpenAI, stage: Stage) -> None:
    [model] = client.models.list().data
    assert model.id == "scripted"
    assert model.model_extra is not None
    assert model.model_extra["context_length"] == model.model_extra["max_model_len"] == 65536
    assert client.models.retrieve("some/name").id == "some/name"


def test_structured_output(client: openai.OpenAI, stage: Stage) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    ask(client, False, response_format=form)
    assert stage.engine.requests[-1].sampling.json_schema == '{"type":"object","properties":{"b":{},"a":{}}}'
    ask(client, False, response_format={"type": "json_object"})
    assert stage.engine.requests[-1].sampling.json_schema == '{"type":"object"}'


@pytest.mark.parametrize(
    ("body", "meant", "effort"),
    [
        ({}, None, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "high"}, True, "high"),
        ({"reasoning": {"effort": "none"}}, False, None),
        ({"reasoning": {"effort": "low"}}, True, "low"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, None),
        ({"enable_thinking": False}, False, None),
        ({"thinking": {"type": "disabled"}}, False, None),
    ],
)
def test_every_way_to_switch_thinking(
    client: openai.OpenAI, stage: Stage, body: dict[str, Any], meant: bool | None, effort: str | None
) -> None:
    ask(client, False, extra_body=body)
    asked = stage.engine.requests[-1].prompt
    assert isinstance(asked, Conversation)
    assert (asked.thinking, asked.effort) == (meant, effort)


def test_leaving_a_stream_stops_the_engine(client: openai.OpenAI, stage: Stage) -> None:
    stage.play([TextDelta("one"), 60.0, done()])
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with stream:
        assert next(iter(stream)).choices[0].delta.content == "one"
    assert eventually(lambda: stage.engine.active == 0 and stage.engine.closed_early == 1)
