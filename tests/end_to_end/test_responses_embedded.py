"""The Responses API in front of the real engine and the embedded model.

The SDK's types accept every event; what is streamed is what is whole, and what the chat API says.
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
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ftagent.engine.engine import start_engine
from ftagent.engine.options import EngineOptions
from ftagent.gateway.server import Gateway, start_gateway
from tests.end_to_end.test_sdks_embedded import (
    ASK_FILE,
    CALL,
    CONTEXT,
    STREAMED,
    WRITE,
    completion,
    message,
    random_body,
    texts,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    engine = start_engine(EngineOptions(context=CONTEXT))
    with start_gateway(engine) as gateway:
        yield gateway
    engine.close()
    engine.scheduler.check_integrity()


@pytest.fixture(scope="module")
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.token, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def chat(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token, max_retries=0) as client:
        yield client


def response(client: openai.OpenAI, streamed: bool, asked: Any, **fields: Any) -> Response:
    """One reply of the Responses API; each event of a stream is checked against the SDK's type."""
    request: dict[str, Any] = {"model": "demo", "max_output_tokens": 200, "temperature": 0, **fields}
    if not streamed:
        reply = client.responses.create(input=asked, **request)
        return Response.model_validate(reply.to_dict())
    events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    last: Any = None
    for event in client.responses.create(input=asked, stream=True, **request):
        last = events.validate_python(event.to_dict())
    assert last.type in ("response.completed", "response.incomplete")
    assert isinstance(last.response, Response)
    return last.response


@STREAMED
def test_responses_text_thinking_and_limit(chat: openai.OpenAI, streamed: bool) -> None:
    reply = response(chat, streamed, "What is q*?")
    assert "PCIe" in reply.output_text
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert reply.usage is not None
    assert reply.usage.output_tokens_details.reasoning_tokens > 0
    silent = response(chat, streamed, "What is q*?", reasoning={"effort": "none"}, max_output_tokens=5)
    assert [item.type for item in silent.output] == ["message"]
    assert silent.status == "incomplete"
    assert silent.usage is not None
    assert silent.usage.output_tokens == 5


@STREAMED
def test_responses_tool_call_and_result(chat: openai.OpenAI, streamed: bool) -> None:
    tools = [{"type": "function", "name": "write_file", "description": "Create a file.", "parameters": WRITE}]
    first = response(chat, streamed, ASK_FILE, tools=tools)
    call = first.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("write_file", CALL)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
    history = [{"role": "user", "content": ASK_FILE}, *(item.to_dict() for item in first.output), result]
    second = response(chat, streamed, history, tools=tools)
    assert "plums.txt" in second.output_text
    assert second.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached > second.usage.input_tokens / 2, "the second turn resumes behind the first"
    again = response(chat, streamed, [result], tools=tools, previous_response_id=first.id)
    assert again.output_text == second.output_text


def test_a_schema_means_the_same_in_all_protocols(claude: anthropic.Anthropic, chat: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "experts": {"type": "integer", "minimum": 0, "maximum": 99},
            "kind": {"enum": ["dense", "sparse"]},
        },
        "required": ["name", "experts", "kind"],
        "additionalProperties": False,
    }
    ask, form = "What is ftagent?", {"name": "facts", "schema": schema, "strict": True}
    config = {"format": {"type": "json_schema", "schema": schema}}
    off = {"thinking": {"type": "disabled"}, "extra_body": {"temperature": 0}}
    wish = {"type": "json_schema", "json_schema": form}
    text = {"format": {"type": "json_schema", **form}}
    said = completion(chat, True, ask, reasoning_effort="none", response_format=wish).choices[0].message
    replies = {
        texts(message(claude, True, ask, output_config=config, **off)),
        said.content,
        response(chat, True, ask, reasoning={"effort": "none"}, text=text).output_text,
    }
    assert len(replies) == 1
    found = json.loads(replies.pop() or "")
    assert set(found) == {"name", "experts", "kind"}
    assert isinstance(found["experts"], int)
    assert 0 <= found["experts"] <= 99
    assert found["kind"] in ("dense", "sparse")


def as_response(body: dict[str, Any]) -> dict[str, Any]:
    """The same request for the Responses API."""
    asked = {
        key: value for key, value in body.items() if key not in ("messages", "tools", "reasoning_effort")
    }
    asked["input"] = body["messages"]
    if "reasoning_effort" in body:
        asked["reasoning"] = {"effort": body["reasoning_effort"]}
    if "tools" in body:
        asked["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
    return asked


def test_streamed_responses_equal_whole_ones_and_chat(chat: openai.OpenAI, gateway: Gateway) -> None:
    rng = random.Random(20261201)
    headers = {"Authorization": f"Bearer {gateway.token}"}
    events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=120) as client:
        for number in range(40):
            body = random_body(rng)
            said = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
            asked = as_response(body)
            whole = client.post("/v1/responses", json=asked).raise_for_status().json()
            last: Any = None
            with client.stream("POST", "/v1/responses", json={**asked, "stream": True}) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: "):
                        last = json.loads(line[6:])
                        events.validate_python(last)
            assert parts(last["response"]) == parts(whole), f"request {number}: {asked}"
            message = said["message"]
            calls = [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in message.get("tool_calls") or []
            ]
            as_chat = [message.get("reasoning_content") or "", message.get("content") or "", calls]
            assert parts(whole)[:3] == as_chat, f"request {number}: {asked}"
            assert (whole["status"] == "incomplete") == (said["finish_reason"] == "length")


def parts(reply: dict[str, Any]) -> list[Any]:
    """What was thought, said and called, and how it ended."""
    items = reply["output"]
    texts = {
        kind: "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])
        for kind in ("reasoning", "message")
    }
    calls = [[item["name"], item["arguments"]] for item in items if item["type"] == "function_call"]
    return [texts["reasoning"], texts["message"], calls, reply["status"], reply["usage"]["output_tokens"]]
