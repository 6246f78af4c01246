"""The official anthropic SDK against the gateway: what it is told is what the engine said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock

from ftagent.conversation import Conversation, Text, Thinking, ToolCall, ToolResult
from ftagent.errors import EngineStopped, PromptTooLong, QueueFull
from ftagent.events import Event, Failed, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from tests.gateway.stage import HELLO, TOKEN, Stage, done, eventually

STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
WEATHER: ToolParam = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL: list[Event] = [
    ThinkingDelta("The user wants "),
    ThinkingDelta("weather."),
    TextDelta("Let me look."),
    ToolCallStart(0, "call_a", "weather"),
    ToolCallDelta(0, '{"city": "Os'),
    ToolCallDelta(0, 'lo"}'),
    ToolCallEnd(0),
    ToolCallStart(1, "call_b", "ping"),
    ToolCallEnd(1),
    done("tool_calls"),
]


@pytest.fixture
def client(stage: Stage) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stage.gateway.url, api_key=TOKEN, max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, streamed: bool, **fields: Any) -> Message:
    request: dict[str, Any] = {
        "model": "any-name",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }
    if not streamed:
        reply = client.messages.create(**request)
        assert isinstance(reply, Message)
        return reply
    with client.messages.stream(**request) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


@STREAMED
def test_text(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play(HELLO)
    reply = ask(client, streamed)
    assert [(block.type, block.text) for block in reply.content if isinstance(block, TextBlock)] == [
        ("text", "Hello")
    ]
    assert (reply.role, reply.model, reply.stop_reason, reply.stop_sequence) == (
        "assistant",
        "any-name",
        "end_turn",
        None,
    )


@STREAMED
def test_usage_counts_cached_tokens_apart(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    usage = ask(client, streamed).usage
    assert usage.input_tokens == 100
    assert usage.cache_read_input_tokens == 900
    assert usage.cache_creation_input_tokens == 0
    assert usage.output_tokens == 7


@STREAMED
def test_thinking_and_calls(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play(CALL)
    reply = ask(client, streamed, tools=[WEATHER])
    thinking, text, weather, ping = reply.content
    assert isinstance(thinking, ThinkingBlock)
    assert thinking.thinking == "The user wants weather."
    assert thinking.signature
    assert isinstance(text, TextBlock)
    assert text.text == "Let me look."
    assert isinstance(weather, ToolUseBlock)
    assert (weather.id, weather.name, weather.input) == ("call_a", "weather", {"city": "Oslo"})
    assert isinstance(ping, ToolUseBlock)
    assert (ping.id, ping.input) == ("call_b", {})
    assert reply.stop_reason == "tool_use"


@STREAMED
def test_a_round_trip_of_tools(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play(CALL)
    reply = ask(client, streamed, tools=[WEATHER])
    stage.play(HELLO)
    history: list[MessageParam] = [
        {"role": "user", "content": "hi"},
        reply.to_param(),
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_a", "content": "12 degrees"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_b",
                    "content": [{"type": "text", "text": "pong"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    ask(client, streamed, tools=[WEATHER], messages=history)
    asked = stage.engine.requests[-1].prompt
    assert isinstance(asked, Conversation)
    assert [message.role for message in asked.messages] == ["user", "assistant", "tool", "user"]
    signature = next(block for block in reply.content if isinstance(block, ThinkingBlock)).signature
    assert asked.messages[1].blocks == (
        Thinking("The user wants weather.", signature),
        Text("Let me look."),
        ToolCall("call_a", "weather", {"city": "Oslo"}),
        ToolCall("call_b", "ping", {}),
    )
    assert asked.messages[2].blocks == (
        ToolResult("call_a", (Text("12 degrees"),)),
        ToolResult("call_b", (Text("pong"),)),
    )


@STREAMED
def test_stop_sequence(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play([TextDelta("one "), done("stop_sequence", "two")])
    reply = ask(client, streamed, stop_sequences=["two"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "two")
    assert stage.engine.requests[-1].sampling.stop == ("two",)


@STREAMED
def test_a_reply_cut_by_length(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play(
        [ToolCallStart(0, "call_a", "weather"), ToolCallDelta(0, '{"city": "Oslo", "d'), done("length")]
    )
    reply = ask(client, streamed)
    assert reply.stop_reason == "max_tokens"
    assert isinstance(reply.content[0], ToolUseBlock)
    assert reply.content[0].input == {"city": "Oslo"}


@STREAMED
def test_an_empty_reply_has_one_empty_text(client: anthropic.Anthropic, stage: Stage, streamed: bool) -> None:
    stage.play([done()])
    assert [block.type for block in ask(client, streamed).content] == ["text"]


def test_prompt_too_long_has_both_numbers(client: anthropic.Anthropic, stage: Stage) -> None:
    for streamed in (False, True):
        stage.play([PromptTooLong(9000, 8192)])
        with pytest.raises(
            anthropic.BadRequestError, match="prompt is too long: 9000 tokens > 8192 maximum"
        ) as caught:
            ask(client, streamed)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_a_full_queue_is_overload_with_retry_after(client: anthropic.Anthropic, stage: Stage) -> None:
    stage.play([QueueFull("64 requests wait already", retry_after_s=3)])
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client, True)
    assert caught.value.status_code == 529
    assert caught.value.response.headers["retry-after"] == "3"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "overloaded_error"


@STREAMED
def test_a_fault_in_the_middle_reaches_the_client(
    client: anthropic.Anthropic, stage: Stage, streamed: bool
) -> None:
    for fault in (Failed("the device was lost"), EngineStopped("the device was lost")):
        stage.play([TextDelta("one"), fault])
        with pytest.raises(anthropic.APIStatusError, match="the device was lost"):
            ask(client, streamed)


def test_a_stopped_engine_is_503(client: anthropic.Anthropic, stage: Stage) -> None:
    stage.play([EngineStopped("the worker ended")])
    with pytest.raises(anthropic.APIStatusError, match="the worker ended") as caught:
        ask(client, True)
    assert caught.value.status_code == 503


def test_validation_names_the_field(client: anthropic.Anthropic, stage: Stage) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.text"):
        ask(client, False, messages=[{"role": "user", "content": [{"type": "text"}]}])
    assert stage.engine.requests == []


def test_a_wrong_token_is_an_authentication_error(stage: Stage) -> None:
    with (
        anthropic.Anthropic(base_url=stage.gateway.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        ask(client, False)


def test_a_bearer_token_is_accepted(stage: Stage) -> None:
    with anthropic.Anthropic(
        base_url=stage.gateway.url, auth_token=TOKEN, api_key=None, max_retries=0
    ) as client:
        assert ask(client, False).stop_reason == "end_turn"


def test_count_tokens_counts_the_same_conversation(client: anthropic.Anthropic, stage: Stage) -> None:
    counted = client.messages.count_tokens(
        model="m", system="abc", messages=[{"role": "user", "content": "four"}], tools=[WEATHER]
    )
    assert counted.input_tokens == 7  # the scripted engine counts characters
    assert stage.engine.requests == []


def test_models(client: anthropic.Anthropic, stage: Stage) -> None:
    [model] = list(client.models.list())
    assert model.id == "scripted"
    assert model.max_input_tokens == 65536
    assert client.models.retrieve("claude-like-name").id == "claude-like-name"


def test_structured_output_reaches_the_engine(client: anthropic.Anthropic, stage: Stage) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    stage.play([TextDelta('{"title": "x"}'), done()])
    ask(client, True, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert stage.engine.requests[-1].sampling.json_schema == (
        '{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]}'
    )


def test_leaving_a_stream_stops_the_engine(client: anthropic.Anthropic, stage: Stage) -> None:
    stage.play([TextDelta("one"), 60.0, done()])
    with client.messages.stream(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        assert next(iter(stream.text_stream)) == "one"
        assert stage.engine.active == 1
    assert eventually(lambda: stage.engine.active == 0 and stage.engine.closed_early == 1)
