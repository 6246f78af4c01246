"""Random replies: put together by the SDKs, the streamed one is the one that was not streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ftagent.events import (
    Event,
    Finished,
    FinishReason,
    Progress,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from tests.gateway.stage import TOKEN, Stage

ANTHROPIC_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | WORDS,
    lambda inner: st.lists(inner, max_size=2),
)


@st.composite
def calls(draw: st.DrawFn) -> list[Any]:
    """One call: its start without a number, and its arguments cut at random places."""
    arguments = draw(st.none() | st.dictionaries(WORDS, JSON_VALUES, max_size=3))
    text = "" if arguments is None else json.dumps(arguments, ensure_ascii=draw(st.booleans()))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [draw(st.sampled_from(["find", "ping", "write_file"])), pieces]


@st.composite
def replies(draw: st.DrawFn) -> list[Event]:
    segments = draw(
        st.lists(st.builds(ThinkingDelta, WORDS) | st.builds(TextDelta, WORDS) | calls(), max_size=8)
    )
    events: list[Event] = [Progress("prefill", 1, 2)]
    index = 0
    for segment in segments:
        if isinstance(segment, list):
            name, pieces = segment
            events += [
                ToolCallStart(index, f"call_{index}", name),
                *(ToolCallDelta(index, piece) for piece in pieces),
                ToolCallEnd(index),
            ]
            index += 1
        else:
            events.append(segment)
    cached = draw(st.integers(0, 50))
    usage = Usage(cached + draw(st.integers(1, 50)), draw(st.integers(0, 50)), cached)
    reason: FinishReason = draw(st.sampled_from(get_args(FinishReason)))
    return [*events, Finished(reason, usage, "###" if reason == "stop_sequence" else None)]


def said(events: list[Event], kind: type[TextDelta] | type[ThinkingDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def arguments_said(events: list[Event]) -> list[Any]:
    """The arguments of each call, read by the standard library."""
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            texts[event.index] = ""
        elif isinstance(event, ToolCallDelta):
            texts[event.index] += event.arguments
    return [json.loads(text or "{}") for text in texts.values()]


def sse_data(response: httpx.Response) -> Iterator[Any]:
    for event in response.text.split("\n\n"):
        for line in event.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def anthropic_client(shared_stage: Stage) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared_stage.gateway.url, api_key=TOKEN, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def openai_client(shared_stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_stage.gateway.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(events=replies())
def test_anthropic(shared_stage: Stage, anthropic_client: anthropic.Anthropic, events: list[Event]) -> None:
    shared_stage.play(events)
    whole = anthropic_client.messages.create(**BODY)
    assert isinstance(whole, Message)
    with anthropic_client.messages.stream(**BODY) as stream:
        streamed = stream.get_final_message()
    raw = shared_stage.post("/v1/messages", {**BODY, "stream": True})
    for data in sse_data(raw):
        ANTHROPIC_EVENT.validate_python(data)
    assert Message.model_validate(whole.to_dict()).content == whole.content
    assert streamed.to_dict() | {"id": ""} == whole.to_dict() | {"id": ""}
    assert "".join(b.text for b in whole.content if b.type == "text") == said(events, TextDelta)
    assert "".join(b.thinking for b in whole.content if b.type == "thinking") == said(events, ThinkingDelta)
    assert [b.input for b in whole.content if b.type == "tool_use"] == arguments_said(events)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(events=replies())
def test_chat(shared_stage: Stage, openai_client: openai.OpenAI, events: list[Event]) -> None:
    shared_stage.play(events)
    whole = openai_client.chat.completions.create(**BODY)
    raw = shared_stage.post(
        "/v1/chat/completions", {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    )
    chunks = list(sse_data(raw))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert isinstance(whole, ChatCompletion)
    ChatCompletion.model_validate(whole.to_dict())
    [choice] = whole.choices
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == (choice.message.content or "")
    assert (choice.message.content or "") == said(events, TextDelta)
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert reasoning == (choice.message.model_extra or {}).get("reasoning_content", "")
    assert reasoning == said(events, ThinkingDelta)
    calls_seen = joined_calls(deltas)
    assert calls_seen == [call.to_dict() for call in choice.message.tool_calls or []]
    assert [json.loads(call["function"]["arguments"]) for call in calls_seen] == arguments_said(events)
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert [finish for finish in finishes if finish] == [choice.finish_reason]
    assert whole.usage is not None
    assert chunks[-1]["usage"] == whole.usage.to_dict()


def joined_calls(deltas: list[Any]) -> list[Any]:
    """What a client's accumulator makes of the pieces: the first has id and name, all have arguments."""
    calls: list[Any] = []
    for delta in deltas:
        for piece in delta.get("tool_calls") or []:
            if "id" in piece:
                assert piece["index"] == len(calls)
                calls.append({key: value for key, value in piece.items() if key != "index"})
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(events=replies(), summary=st.booleans())
def test_responses(
    shared_stage: Stage, openai_client: openai.OpenAI, events: list[Event], summary: bool
) -> None:
    shared_stage.play(events)
    body: dict[str, Any] = {
        "model": "m",
        "input": "hi",
        "reasoning": {"summary": "auto" if summary else None},
    }
    whole = shared_stage.post("/v1/responses", body).json()
    raw = list(sse_data(shared_stage.post("/v1/responses", {**body, "stream": True})))
    for number, data in enumerate(raw):
        RESPONSE_EVENT.validate_python(data)
        assert data["sequence_number"] == number
    last = raw[-1]["response"]
    assert nameless(last, last) == nameless(whole, whole)
    assert [nameless(item, last) for item in joined_items(raw)] == [
        nameless(item, whole) for item in whole["output"]
    ]
    with openai_client.responses.stream(**body) as stream:
        assert list(stream)[-1].type == raw[-1]["type"]
    assert Response.model_validate(whole).output_text == said(events, TextDelta)
    thoughts = [item["content"] or item["summary"] for item in whole["output"] if item["type"] == "reasoning"]
    assert "".join(part["text"] for parts in thoughts for part in parts) == said(events, ThinkingDelta)
    called = [json.loads(item["arguments"]) for item in whole["output"] if item["type"] == "function_call"]
    assert called == arguments_said(events)


def nameless(value: Any, response: Any) -> Any:
    """`value` without the name of its response, and without times."""
    text = json.dumps(value).replace(response["id"].removeprefix("resp_"), "")
    value = json.loads(text)
    return {key: item for key, item in value.items() if key not in ("created_at", "completed_at")}


def joined_items(events: list[Any]) -> list[Any]:
    """What a client makes of the deltas alone: each text, or the arguments, of each item."""
    items: list[Any] = []
    for event in events:
        kind, item = event["type"], items[-1] if items else {}
        if kind == "response.output_item.added":
            items.append(event["item"])
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            where = "summary" if "summary" in kind else "content"
            item[where].append(event["part"])
        elif kind.endswith(("text.delta", "summary_text.delta")):
            (item["summary"] if "summary" in kind else item["content"])[-1]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.output_item.done":
            item["status"] = event["item"]["status"]
    return items


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(WORDS, max_size=8), reason=st.sampled_from(["stop", "length"]))
def test_completions(shared_stage: Stage, pieces: list[str], reason: Any) -> None:
    shared_stage.play([*map(TextDelta, pieces), Finished(reason, Usage(1, 2))])
    body = {"model": "m", "prompt": "x"}
    whole = Completion.model_validate(shared_stage.post("/v1/completions", body).json())
    raw = shared_stage.post("/v1/completions", {**body, "stream": True})
    choices = [data["choices"][0] for data in sse_data(raw)]
    assert "".join(choice["text"] for choice in choices) == whole.choices[0].text == "".join(pieces)
    assert choices[-1]["finish_reason"] == whole.choices[0].finish_reason == reason
