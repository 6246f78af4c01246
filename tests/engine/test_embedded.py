"""The engine on the embedded model: forced calls, schemas, concurrent replies, turns that resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from ftagent.conversation import (
    Conversation,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
    ToolSpec,
)
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.events import Event, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallStart
from tests.support.toy_engine import collect, content, last

GREEDY = SamplingParams(temperature=0, max_tokens=150)
TOOLS = (
    ToolSpec(
        "find",
        "Search for words.",
        {
            "type": "object",
            "properties": {"q": {"type": "string"}, "limit": {"enum": [3, 12]}},
            "required": ["q", "limit"],
        },
    ),
    ToolSpec("ping", "Answer.", {"type": "object", "properties": {}}),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = start_engine(EngineOptions(threads=1, context=4096))
    yield engine
    engine.close()
    engine.scheduler.check_integrity()


def says(text: str) -> Message:
    return Message("user", (Text(text),))


def run(engine: LocalEngine, conversation: Conversation, params: SamplingParams = GREEDY) -> list[Event]:
    return asyncio.run(collect(engine.generate(GenerateRequest(conversation, params))))


def calls_of(events: list[Event]) -> list[ToolCall]:
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    arguments = [
        json.loads("".join(piece.arguments for piece in pieces if piece.index == start.index))
        for start in starts
    ]
    return [ToolCall(start.id, start.name, found) for start, found in zip(starts, arguments, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_required_call_comes_and_fits_its_schema(
    engine: LocalEngine, temperature: float, thinking: bool
) -> None:
    choice = ToolChoice("named", name="find", parallel=False)
    conversation = Conversation((says("Tell me what ftagent is."),), TOOLS, choice, thinking)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=400)
    events = run(engine, conversation, params)
    (call,) = calls_of(events)
    assert call.name == "find"
    assert set(call.arguments) == {"q", "limit"}
    assert call.arguments["limit"] in (3, 12)
    assert last(events).reason == "tool_calls"


def test_json_schema_holds(engine: LocalEngine) -> None:
    colour = {"colour": {"enum": ["red", "green"]}}
    schema = {"type": "object", "properties": colour, "required": ["colour"], "additionalProperties": False}
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=400, json_schema=json.dumps(schema))
    events = run(engine, Conversation((says("Say a colour."),), thinking=False), params)
    assert json.loads(content(events))["colour"] in ("red", "green")
    assert last(events).reason == "stop"


def test_four_at_once_give_the_tokens_they_give_alone(engine: LocalEngine) -> None:
    questions = ("What is ftagent?", "How do I stop a reply?", "Which keys are there?", "Hello!")
    conversations = [Conversation((says(question),)) for question in questions]

    async def together() -> list[list[Event]]:
        requests = [GenerateRequest(conversation, GREEDY) for conversation in conversations]
        return await asyncio.gather(*(collect(engine.generate(request)) for request in requests))

    crowd = [last(events).token_ids for events in asyncio.run(together())]
    engine.scheduler.prefix.clear()  # the engine is idle: nobody else uses it now
    assert crowd == [last(run(engine, conversation)).token_ids for conversation in conversations]


def test_second_turn_resumes_behind_the_first_reply(engine: LocalEngine) -> None:
    """Echoed as clients do it: keys in another order, thinking as a block."""
    choice = ToolChoice("required", parallel=False)
    first = Conversation((says("Search for cats, three at most."),), TOOLS, choice)
    events = run(engine, first)
    (call,) = calls_of(events)
    echo = ToolCall(call.id, call.name, dict(reversed(list(call.arguments.items()))))
    thoughts = "".join(event.text for event in events if isinstance(event, ThinkingDelta))
    words = "".join(event.text for event in events if isinstance(event, TextDelta))
    said = [Thinking(thoughts)] if thoughts else []
    reply = Message("assistant", (*said, *([Text(words)] if words else []), echo))
    result = Message("tool", (ToolResult(call.id, (Text("one cat"),)),))
    second = run(engine, Conversation((*first.messages, reply, result), TOOLS))
    usage = last(events).usage
    assert last(second).usage.cached_tokens >= usage.prompt_tokens + usage.completion_tokens - 1
