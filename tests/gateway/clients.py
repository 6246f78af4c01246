"""The same question in all protocols, streamed and not, and their answers in one shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import httpx

from ftagent.conversation import ToolSpec
from ftagent.gateway.server import start_gateway
from tests.engine.prompt.replies import TOOLS
from tests.support.saying_engine import SayingEngine, saying_engine

Protocol = Literal["chat", "messages", "responses"]
PROTOCOLS: tuple[Protocol, ...] = ("chat", "messages", "responses")
WAYS = tuple((protocol, stream) for protocol in PROTOCOLS for stream in (False, True))
PATHS: dict[Protocol, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
QUESTION = [{"role": "user", "content": "go"}]
_FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "stop_sequence": "stop"}


class Answer(NamedTuple):
    """`calls` are names and parsed arguments. `finish` is in the words of chat completions."""

    thinking: str
    content: str
    calls: tuple[tuple[str, Any], ...]
    finish: str
    ids: tuple[str, ...] = ()
    usage: Any = None

    @property
    def said(self) -> Answer:
        return self._replace(ids=(), usage=None)


class Asker:
    """Asks one gateway; `engine` is the model behind it."""

    def __init__(self, engine: SayingEngine, client: httpx.Client) -> None:
        self.engine = engine
        self._client = client

    def post(
        self,
        protocol: Protocol,
        messages: Sequence[Any] = QUESTION,
        tools: Sequence[ToolSpec | dict[str, Any]] = TOOLS,
        timeout_s: float = 30,
        **fields: Any,
    ) -> httpx.Response:
        """`tools` that are no ToolSpec are sent as they are."""
        body = {**_body(protocol, messages), **fields}
        if tools:
            body["tools"] = [_tool(protocol, tool) for tool in tools]
        return self._client.post(PATHS[protocol], json=body, timeout=timeout_s)

    @contextmanager
    def stream(self, protocol: Protocol) -> Iterator[httpx.Response]:
        """A streamed reply whose body the caller reads; leaving closes the connection."""
        body = {**_body(protocol, QUESTION), "stream": True}
        with self._client.stream("POST", PATHS[protocol], json=body) as reply:
            yield reply

    def health(self) -> httpx.Response:
        return self._client.get("/health")

    def count(self, messages: Sequence[Any], **fields: Any) -> int:
        """What the count endpoint says."""
        body = {"model": "m", "messages": messages, **fields}
        reply = self._client.post("/v1/messages/count_tokens", json=body)
        assert reply.status_code == 200, reply.text
        found: int = reply.json()["input_tokens"]
        return found

    def count_input(self, messages: Sequence[Any], **fields: Any) -> int:
        """The same from the count endpoint of the Responses API."""
        body = {"model": "m", "input": messages, **fields}
        reply = self._client.post("/v1/responses/input_tokens", json=body)
        assert reply.status_code == 200, reply.text
        found: int = reply.json()["input_tokens"]
        return found

    def ask(self, protocol: Protocol, stream: bool, **fields: Any) -> Answer:
        if protocol == "chat" and stream:
            fields = {**fields, "stream_options": {"include_usage": True}}
        reply = self.post(protocol, stream=stream, **fields)
        assert reply.status_code == 200, reply.text
        if protocol == "chat":
            return _chat_stream(reply.text) if stream else _chat(reply.json())
        if protocol == "responses":
            return _responses_stream(reply.text) if stream else _responses(reply.json())
        return _messages_stream(reply.text) if stream else _messages(reply.json())

    def everywhere(self, reply: str | Sequence[int], **fields: Any) -> Answer:
        """The one answer that all protocols give, streamed and not."""
        answers = []
        for protocol, stream in WAYS:
            self.engine.say(reply)
            answers.append(self.ask(protocol, stream, **fields).said)
        assert answers[1:] == answers[:-1]
        return answers[0]


@contextmanager
def asking(template: str, context: int = 16384) -> Iterator[Asker]:
    headers = {"authorization": "Bearer token"}
    with (
        saying_engine(template, context) as engine,
        start_gateway(engine, token="token") as gateway,
        httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as client,
    ):
        yield Asker(engine, client)


def _tool(protocol: Protocol, tool: ToolSpec | dict[str, Any]) -> dict[str, Any]:
    if isinstance(tool, dict):
        return tool
    if protocol == "messages":
        return {"name": tool.name, "input_schema": tool.parameters}
    function = {"name": tool.name, "parameters": tool.parameters}
    return {"type": "function", **(function if protocol == "responses" else {"function": function})}


def _body(protocol: Protocol, messages: Sequence[Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9000, "input" if protocol == "responses" else "messages": messages}


def _events(text: str) -> Iterator[Any]:
    for line in text.split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield event


def _chat(body: Any) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    return Answer(
        message.get("reasoning_content") or "",
        message.get("content") or "",
        tuple((call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls),
        choice["finish_reason"],
        tuple(call["id"] for call in calls),
        body["usage"],
    )


def _chat_stream(text: str) -> Answer:
    thinking = content = finish = ""
    calls: list[list[str]] = []
    usage = None
    for event in _events(text):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            thinking += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls") or []:
                assert len(calls) - 1 <= call["index"] <= len(calls)
                if call["index"] == len(calls):
                    calls.append([call["id"], call["function"]["name"], ""])
                calls[-1][2] += call["function"].get("arguments") or ""
    parsed = tuple((name, json.loads(arguments)) for _, name, arguments in calls)
    return Answer(thinking, content, parsed, finish, tuple(call[0] for call in calls), usage)


def _messages(body: Any) -> Answer:
    blocks = body["content"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return Answer(
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        tuple((call["name"], call["input"]) for call in calls),
        _FINISH[body["stop_reason"]],
        tuple(call["id"] for call in calls),
        body["usage"],
    )


def _messages_stream(text: str) -> Answer:
    thinking = content = finish = ""
    calls: list[list[str]] = []
    usage = None
    for event in _events(text):
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls.append([event["content_block"]["id"], event["content_block"]["name"], ""])
            case "content_block_delta":
                delta = event["delta"]
                thinking += delta.get("thinking", "")
                content += delta.get("text", "")
                if delta["type"] == "input_json_delta":
                    calls[-1][2] += delta["partial_json"]
            case "message_delta":
                finish, usage = _FINISH[event["delta"]["stop_reason"]], event["usage"]
    # A block without input deltas keeps the empty object it began with.
    parsed = tuple((name, json.loads(arguments or "{}")) for _, name, arguments in calls)
    return Answer(thinking, content, parsed, finish, tuple(call[0] for call in calls), usage)


def _responses(body: Any) -> Answer:
    items = body["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    finish = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}[body["status"]]
    return Answer(
        "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]),
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        tuple((call["name"], json.loads(call["arguments"])) for call in calls),
        finish,
        tuple(call["call_id"] for call in calls),
        body["usage"],
    )


def _responses_stream(text: str) -> Answer:
    """Put together from deltas alone; the items that are sent at their end must say the same."""
    items: list[Any] = []
    pieces: list[str] = []
    response: Any = None
    for number, event in enumerate(_events(text)):
        assert event["sequence_number"] == number
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            pieces.append("")
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            pieces[-1] += event["delta"]
        elif kind == "response.output_item.done":
            item = event["item"]
            assert (item["id"], item["type"]) == (items[-1]["id"], items[-1]["type"])
            parts = item.get("content") or []
            said = "".join(part["text"] for part in parts) if parts else item.get("arguments", "")
            assert said == pieces[-1]
            items[-1] = item
        elif kind in ("response.completed", "response.incomplete"):
            response = event["response"]
    assert response["output"] == items
    return _responses(response)
