"""Plain sockets: clients that leave, that read slowly, and servers that end while replies are open."""

from __future__ import annotations

import json
import re
import socket

import pytest

from ftagent.errors import EngineStopped
from ftagent.events import Event, Progress, TextDelta
from tests.gateway.stage import HELLO, Stage, done, eventually, staged
from tests.gateway.test_streamed_equals_whole import BODY

PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/completions", "/v1/responses"]
NEVER = 3600.0


def body_bytes(*, stream: bool, path: str = "/v1/messages") -> bytes:
    question = {"input" if path == "/v1/responses" else "prompt": "x"}
    return json.dumps({**BODY, **question, "stream": stream}).encode()


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    seen = bytearray()
    while mark not in seen[-70_000:]:  # a piece and the end of the one before
        piece = connection.recv(65536)
        assert piece, f"closed before {mark!r} came: {seen[-1000:]!r}"
        seen += piece
    return bytes(seen)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("first", [TextDelta("one"), Progress("prefill", 3, 10), None], ids=str)
def test_a_client_that_leaves_stops_the_engine(
    stage: Stage, path: str, stream: bool, first: Event | None
) -> None:
    stage.play([*([first] if first else []), NEVER])
    with stage.send(stage.request_bytes(path, body_bytes(stream=stream, path=path))) as connection:
        if stream and isinstance(first, TextDelta):
            read_until(connection, b"one")
        assert eventually(lambda: stage.engine.active == 1)
    assert eventually(lambda: stage.engine.active == 0 and stage.engine.closed_early == 1, timeout_s=2)


def test_a_half_closed_connection_counts_as_left(stage: Stage) -> None:
    stage.play([TextDelta("one"), NEVER])
    with stage.send(stage.request_bytes("/v1/messages", body_bytes(stream=True))) as connection:
        read_until(connection, b"one")
        connection.shutdown(socket.SHUT_WR)
        assert eventually(lambda: stage.engine.active == 0, timeout_s=2)


def test_a_body_that_comes_byte_by_byte_is_served(stage: Stage) -> None:
    raw = stage.request_bytes("/v1/messages", body_bytes(stream=False))
    with stage.send(raw[:10]) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw[10:]:
            connection.sendall(bytes([byte]))
        assert b"Hello" in read_until(connection, b"end_turn")


def test_a_slow_reader_gets_all_and_holds_up_nobody(stage: Stage) -> None:
    words = [f"<{n}>" + "x" * 1000 for n in range(4000)]
    stage.play([*map(TextDelta, words), done()])
    with stage.send(stage.request_bytes("/v1/messages", body_bytes(stream=True))) as slow:
        assert eventually(lambda: stage.engine.active == 1)
        stage.play(HELLO)
        assert stage.post("/v1/messages", BODY).status_code == 200
        assert stage.engine.active == 1  # the slow one has not been read yet
        seen = read_until(slow, b"message_stop")
    assert [int(number) for number in re.findall(rb"<(\d+)>", seen)] == list(range(4000))


def test_a_client_that_leaves_in_the_middle_of_its_body(stage: Stage) -> None:
    raw = stage.request_bytes("/v1/messages", body_bytes(stream=True))
    with stage.send(raw[:-5]):
        pass
    assert stage.post("/v1/messages", BODY).status_code == 200
    assert len(stage.engine.requests) == 1


def test_a_connection_serves_one_request_after_another(stage: Stage) -> None:
    raw = stage.request_bytes("/v1/messages", body_bytes(stream=True))
    with stage.send(raw) as connection:
        read_until(connection, b"0\r\n\r\n")
        connection.sendall(raw)
        read_until(connection, b"0\r\n\r\n")
    assert len(stage.engine.requests) == 2


def test_many_at_once(stage: Stage) -> None:
    stage.play([TextDelta("one"), NEVER])
    raw = stage.request_bytes("/v1/messages", body_bytes(stream=True))
    connections = [stage.send(raw) for _ in range(20)]
    for connection in connections:
        read_until(connection, b"one")
    assert stage.engine.active == 20
    for connection in connections:
        connection.close()
    assert eventually(lambda: stage.engine.active == 0 and stage.engine.closed_early == 20)


def test_a_dead_engine_tells_every_open_request(stage: Stage) -> None:
    stage.play([TextDelta("one"), EngineStopped("the worker ran out of memory")])
    streamed = stage.post("/v1/messages", {**BODY, "stream": True})
    whole = stage.post("/v1/chat/completions", BODY)
    stage.play([EngineStopped("the worker ran out of memory")])
    queued = stage.post("/v1/messages", {**BODY, "stream": True})
    stage.engine.health_now = "failed"
    health = stage.get("/health")
    assert [reply.status_code for reply in (streamed, whole, queued, health)] == [200, 503, 503, 503]
    assert all("the worker ran out of memory" in reply.text for reply in (streamed, whole, queued))
    assert health.json() == {"status": "failed"}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_closing_the_gateway_ends_open_replies(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with staged() as stage:
        stage.play([TextDelta("one"), NEVER])
        with stage.send(stage.request_bytes("/v1/messages", body_bytes(stream=stream))) as connection:
            assert eventually(lambda: stage.engine.active == 1)
            stage.gateway.close()
            assert stage.engine.active == 0
            rest = read_until(connection, b"the server is closing")
            while piece := connection.recv(65536):
                rest += piece
            assert b"message_stop" not in rest
    assert caplog.text == ""
