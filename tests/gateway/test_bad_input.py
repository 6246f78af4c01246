"""Whatever is sent, the answer is a clean refusal in the protocol's own shape; the engine is untouched."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import Conversation
from ftagent.gateway.body import BODY_LIMIT, field_path, parse_body
from ftagent.gateway.errors import Refused
from ftagent.gateway.wire_anthropic import MessagesRequest
from tests.gateway.stage import TOKEN, Stage, staged
from tests.gateway.test_streamed_equals_whole import BODY

POSTS = [
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
]


def refused(reply: httpx.Response, status: int, path: str) -> str:
    """The message of a refusal, after checking its shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    error = body["error"]
    if path.startswith("/v1/messages"):
        assert (body["type"], set(body), set(error)) == ("error", {"type", "error"}, {"type", "message"})
    else:
        assert (set(body), set(error)) == ({"error"}, {"message", "type", "param", "code"})
    message = error["message"]
    assert isinstance(message, str)
    assert "\n" not in message
    return message


def post(
    stage: Stage, path: str, body: bytes, kind: str | None = "application/json", **headers: str
) -> httpx.Response:
    return stage.client.post(path, content=body, headers=headers | ({"content-type": kind} if kind else {}))


def repr_start(body: bytes) -> str:
    return repr(body[:40])


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"{}",
        b'{"model": "m"}',
        b"\xff\xfe{}",
        b'{"model": "\xff"}',
        b'{"model": "m", "messages": ' + b"[" * 100_000,
        b'{"model": "m", "messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"model": "m", "messages": [{"role": "user", "content": 1e999}]}',
        b'{"model": 5, "messages": "x", "prompt": {"a": 1}}',
    ],
    ids=repr_start,
)
def test_bodies_that_are_no_request(stage: Stage, path: str, body: bytes) -> None:
    refused(post(stage, path, body), 400, path)
    assert stage.engine.requests == []


@pytest.mark.parametrize("path", POSTS)
def test_deep_tool_input_is_refused_or_served(stage: Stage, path: str) -> None:
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"deep": deep}}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": "go"}]
    reply = stage.post(path, {"model": "m", "max_tokens": 5, "messages": messages, "prompt": "x"})
    assert reply.status_code in (200, 400)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize("path", POSTS)
def test_another_content_type(stage: Stage, path: str, kind: str | None) -> None:
    assert "application/json" in refused(post(stage, path, json.dumps(BODY).encode(), kind), 415, path)


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
)
def test_every_spelling_of_json(stage: Stage, kind: str) -> None:
    assert post(stage, "/v1/messages", json.dumps(BODY).encode(), kind).status_code == 200


def test_a_compressed_body(stage: Stage) -> None:
    refused(post(stage, "/v1/messages", b"xx", **{"content-encoding": "gzip"}), 415, "/v1/messages")


@pytest.mark.parametrize("path", POSTS)
def test_a_declared_size_over_the_limit_is_refused_unread(stage: Stage, path: str) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{stage.port}\r\nx-api-key: {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {BODY_LIMIT + 1}\r\n\r\n"
    )
    with stage.send(head.encode()) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_an_undeclared_size_over_the_limit_is_refused() -> None:
    chunks = (b" " * 400 for _ in range(10))
    with staged(body_limit=1000) as small:
        reply = small.client.post(
            "/v1/messages", content=chunks, headers={"content-type": "application/json"}
        )
        refused(reply, 413, "/v1/messages")


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/messages/", "/v1/messages/batches", "/v1/embeddings", "/..%2f"]
)
def test_unknown_paths(stage: Stage, path: str) -> None:
    refused(stage.post(path, {}), 404, path)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_wrong_methods(stage: Stage, path: str, method: str) -> None:
    reply = stage.client.request(method, path)
    assert reply.headers["allow"] == "POST"
    refused(reply, 405, path)


def test_errors_of_shared_paths_follow_the_client(stage: Stage) -> None:
    reply = stage.get("/v1/nope", **{"anthropic-version": "2023-06-01"})
    assert reply.json()["type"] == "error"
    assert "type" not in stage.get("/v1/nope").json()


def test_half_a_surrogate_pair_does_not_wedge_a_session(stage: Stage) -> None:
    # JavaScript sends what it cut through the middle of an emoji as an escape that no decoder accepts.
    text = rb"cut \ud83d here, whole \ud83d\ude00, \\ud83d as typed, \udc00\""
    body = b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "' + text + b'"}]}'
    assert post(stage, "/v1/messages", body).status_code == 200
    asked = stage.engine.requests[-1].prompt
    assert isinstance(asked, Conversation)
    assert asked.messages[0].text == 'cut \ufffd here, whole \U0001f600, \\ud83d as typed, \ufffd"'


def test_field_paths_leave_out_branches_of_unions() -> None:
    assert field_path(("messages", 0, "content", 1, "@text", "text")) == "messages.0.content.1.text"
    assert field_path(("prompt", "list[int]", 3)) == "prompt.3"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    *(
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "metadata",
        "max_tokens",
    ),
    *(
        "stream",
        "stop",
        "stop_sequences",
        "temperature",
        "top_k",
        "prompt",
        "logprobs",
        "response_format",
        "n",
    ),
]
BLOCKS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "thinking", "image", "tool_use", "tool_result", "document", "image_url"]
        )
    },
    optional=dict.fromkeys(
        ("text", "thinking", "source", "id", "name", "input", "tool_use_id", "content"), JSON
    ),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
        optional={
            "content": st.lists(BLOCKS | JSON, max_size=3) | JSON,
            "tool_calls": JSON,
            "tool_call_id": JSON,
        },
    ),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(POSTS), changes=st.dictionaries(st.sampled_from(FIELDS), JSON), messages=MESSAGES)
def test_random_bodies_never_break_the_gateway(
    shared_stage: Stage, path: str, changes: dict[str, Any], messages: Any
) -> None:
    body = {"model": "m", "max_tokens": 5, "prompt": "x", "messages": messages, **changes}
    reply = post(shared_stage, path, json.dumps(body).encode())
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:
        refused(reply, 400, path)


ITEM_TYPES = [
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "item_reference"),
    *("custom_tool_call_output", "local_shell_call", "tool_search_call", "tool_search_output", "compaction"),
]
TOOL_TYPES = ["function", "custom", "namespace", "tool_search", "web_search"]
RESPONSE_FIELDS = [
    *("instructions", "tool_choice", "reasoning", "text", "include", "previous_response_id", "store", "n"),
    *("truncation", "metadata", "max_output_tokens", "top_logprobs", "stream", "stream_options", "prompt"),
]
ITEM_FIELDS = (
    *("id", "role", "content", "summary", "encrypted_content", "call_id", "name", "namespace", "arguments"),
    *("input", "output", "action", "operation", "tools"),
)


def typed(types: list[str], fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.sampled_from(types)}, optional=dict.fromkeys(fields, JSON))


@settings(max_examples=300, deadline=None)
@given(
    items=st.lists(typed(ITEM_TYPES, ITEM_FIELDS) | JSON, max_size=3),
    tools=st.lists(
        typed(TOOL_TYPES, ("name", "description", "parameters", "format", "tools", "execution")), max_size=2
    ),
    changes=st.dictionaries(st.sampled_from(RESPONSE_FIELDS), JSON, max_size=2),
)
def test_random_items_never_break_the_gateway(
    shared_stage: Stage, items: Any, tools: Any, changes: dict[str, Any]
) -> None:
    body = {"model": "m", "input": items, "tools": tools, **changes}
    reply = post(shared_stage, "/v1/responses", json.dumps(body).encode())
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:
        assert refused(reply, 400, "/v1/responses")


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(Refused):
        parse_body(MessagesRequest, body)
