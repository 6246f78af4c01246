"""Both official SDKs against the gateway in front of the real engine and the embedded model.

What the scripted conformance tests show for the wire, these show for the whole path: tokens to protocol.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock
from openai.types.chat import ChatCompletion

from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.gateway.server import Gateway, start_gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONTEXT = 8192
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
ASK_FILE = "Create a file named plums.txt with the text 'nine ripe plums'."
WRITE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
CALL = {"path": "plums.txt", "content": "nine ripe plums"}


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = start_engine(EngineOptions(context=CONTEXT))
    yield engine
    engine.close()
    engine.scheduler.check_integrity()


@pytest.fixture(scope="module")
def gateway(engine: LocalEngine) -> Iterator[Gateway]:
    with start_gateway(engine) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.token, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def chat(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token, max_retries=0) as client:
        yield client


def message(client: anthropic.Anthropic, streamed: bool, *turns: Any, **fields: Any) -> Message:
    """One reply of the Messages API; a plain string among the turns is the user speaking."""
    request: dict[str, Any] = {"model": "demo", "max_tokens": 200, **fields}
    request["messages"] = [{"role": "user", "content": t} if isinstance(t, str) else t for t in turns]
    if not streamed:
        reply = client.messages.create(**request)
        assert isinstance(reply, Message)
        return reply
    with client.messages.stream(**request) as stream:
        return stream.get_final_message()


def completion(client: openai.OpenAI, streamed: bool, *turns: Any, **fields: Any) -> ChatCompletion:
    """One reply of the Chat API, put together again by the SDK when streamed."""
    request: dict[str, Any] = {"model": "demo", "max_completion_tokens": 200, "temperature": 0, **fields}
    request["messages"] = [{"role": "user", "content": t} if isinstance(t, str) else t for t in turns]
    if not streamed:
        reply = client.chat.completions.create(**request)
        assert isinstance(reply, ChatCompletion)
        return reply
    with client.chat.completions.stream(stream_options={"include_usage": True}, **request) as stream:
        return stream.get_final_completion()


def texts(reply: Message) -> str:
    return "".join(block.text for block in reply.content if isinstance(block, TextBlock))


@STREAMED
def test_anthropic_text_and_thinking(claude: anthropic.Anthropic, streamed: bool) -> None:
    reply = message(claude, streamed, "What is ftagent?", thinking={"type": "adaptive"})
    assert "experts" in texts(reply)
    assert [block.thinking for block in reply.content if isinstance(block, ThinkingBlock)] != [""]
    assert isinstance(reply.content[0], ThinkingBlock)
    assert reply.stop_reason == "end_turn"
    silent = message(claude, streamed, "What is ftagent?", thinking={"type": "disabled"})
    assert not [block for block in silent.content if isinstance(block, ThinkingBlock)]


@STREAMED
def test_anthropic_tool_call_and_result(claude: anthropic.Anthropic, streamed: bool) -> None:
    tools = [{"name": "write_file", "description": "Create a file.", "input_schema": WRITE}]
    first = message(claude, streamed, ASK_FILE, tools=tools)
    calls = [block for block in first.content if isinstance(block, ToolUseBlock)]
    assert (first.stop_reason, [(call.name, call.input) for call in calls]) == (
        "tool_use",
        [("write_file", CALL)],
    )
    assistant = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "ok"}
    second = message(
        claude, streamed, ASK_FILE, assistant, {"role": "user", "content": [result]}, tools=tools
    )
    assert second.stop_reason == "end_turn"
    assert "plums.txt" in texts(second)
    read = second.usage.cache_read_input_tokens or 0
    assert read > second.usage.input_tokens, "the second turn resumes behind the first"


@STREAMED
def test_anthropic_stop_limit_and_usage(claude: anthropic.Anthropic, streamed: bool) -> None:
    off = {"thinking": {"type": "disabled"}}
    whole = texts(message(claude, False, "What is ftagent?", **off))
    word = whole.split()[5]
    reply = message(claude, streamed, "What is ftagent?", stop_sequences=[word], **off)
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", word)
    assert texts(reply) == whole[: whole.index(word)]
    short = message(claude, streamed, "What is ftagent?", max_tokens=5, **off)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 5)
    usage = short.usage
    prompt = (
        usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )
    turns: Any = [{"role": "user", "content": "What is ftagent?"}]
    counted = claude.messages.count_tokens(model="demo", messages=turns, thinking={"type": "disabled"})
    assert counted.input_tokens == prompt


def test_a_prompt_over_the_context_is_refused_with_both_numbers(
    claude: anthropic.Anthropic, chat: openai.OpenAI
) -> None:
    long = "plum " * CONTEXT
    turns: Any = [{"role": "user", "content": long}]
    tokens = claude.messages.count_tokens(model="demo", messages=turns).input_tokens
    with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {tokens} tokens > {CONTEXT}"):
        message(claude, False, long)
    with pytest.raises(openai.BadRequestError) as refused:
        completion(chat, False, long)
    assert refused.value.code == "context_length_exceeded"
    assert str(tokens) in refused.value.message
    assert str(CONTEXT) in refused.value.message


@STREAMED
def test_openai_text_thinking_and_usage(chat: openai.OpenAI, streamed: bool) -> None:
    reply = completion(chat, streamed, "What is q*?")
    choice = reply.choices[0]
    assert "PCIe" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert (choice.message.model_extra or {}).get("reasoning_content")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    silent = completion(chat, streamed, "What is q*?", reasoning_effort="none").choices[0].message
    assert not (silent.model_extra or {}).get("reasoning_content")


@STREAMED
def test_openai_tool_call_and_result(chat: openai.OpenAI, streamed: bool) -> None:
    function = {"name": "write_file", "description": "Create a file.", "parameters": WRITE}
    tools = [{"type": "function", "function": function}]
    first = completion(chat, streamed, ASK_FILE, tools=tools).choices[0]
    (call,) = first.message.tool_calls or []
    assert call.type == "function"
    assert (first.finish_reason, call.function.name) == ("tool_calls", "write_file")
    assert json.loads(call.function.arguments) == CALL
    assistant = {
        "role": "assistant",
        "content": first.message.content,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
    second = completion(chat, streamed, ASK_FILE, assistant, result, tools=tools).choices[0]
    assert second.finish_reason == "stop"
    assert "plums.txt" in (second.message.content or "")


@STREAMED
def test_openai_required_and_named_tools(chat: openai.OpenAI, streamed: bool) -> None:
    named = {"type": "function", "function": {"name": "set_timer"}}
    parameters = {
        "type": "object",
        "properties": {"seconds": {"type": "integer"}, "loop": {"type": "boolean"}},
        "required": ["seconds", "loop"],
        "additionalProperties": False,
    }
    tools = [
        {
            "type": "function",
            "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
        },
        {"type": "function", "function": {"name": "set_timer", "parameters": parameters}},
    ]
    choice = completion(chat, streamed, "What is ftagent?", tools=tools, tool_choice=named).choices[0]
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, set(arguments)) == ("set_timer", {"seconds", "loop"})
    assert isinstance(arguments["seconds"], int)
    assert isinstance(arguments["loop"], bool)
    forced = completion(chat, streamed, "Hello", tools=tools, tool_choice="required").choices[0]
    assert forced.message.tool_calls


WORDS = "ftagent expert slot cache router token plum is what the of how a who run file stop".split()


def random_body(rng: random.Random) -> dict[str, Any]:
    """A chat request with random words, limits, sampling, stops and tools; seeded."""
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": rng.randint(1, 24),
        "temperature": rng.choice((0, 0.7, 1.3)),
        "top_p": rng.choice((1.0, 0.9)),
        "seed": rng.randrange(1 << 31),
    }
    if rng.random() < 0.4:
        body["stop"] = rng.choice(([" the"], ["e", "expert"], ["."], "ftagent"))
    if rng.random() < 0.3:
        body["reasoning_effort"] = "none"
    if rng.random() < 0.3:
        function = {"name": "write_file", "parameters": WRITE}
        body["tools"] = [{"type": "function", "function": function}]
        body["tool_choice"] = rng.choice(("auto", "required"))
    return body


def joined(lines: Iterator[str]) -> dict[str, Any]:
    """A streamed chat reply put together by hand from its SSE lines."""
    text: dict[str, str] = {"content": "", "reasoning_content": ""}
    calls: dict[int, list[str]] = {}
    finish = None
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        for choice in json.loads(line[6:])["choices"]:
            for key in text:
                text[key] += choice["delta"].get(key) or ""
            for call in choice["delta"].get("tool_calls") or []:
                kept = calls.setdefault(call["index"], ["", ""])
                kept[0] += call["function"].get("name") or ""
                kept[1] += call["function"].get("arguments") or ""
            finish = choice["finish_reason"] or finish
    return {**text, "calls": [calls[index] for index in sorted(calls)], "finish": finish}


def test_streamed_equals_whole_for_200_random_requests(gateway: Gateway) -> None:
    rng = random.Random(20261130)
    headers = {"Authorization": f"Bearer {gateway.token}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=120) as client:
        for number in range(200):
            body = random_body(rng)
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
            said = reply["message"]
            functions = [call["function"] for call in said.get("tool_calls") or []]
            whole = {
                "content": said.get("content") or "",
                "reasoning_content": said.get("reasoning_content") or "",
                "calls": [[function["name"], function["arguments"]] for function in functions],
                "finish": reply["finish_reason"],
            }
            with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
                assert joined(stream.iter_lines()) == whole, f"request {number}: {body}"
