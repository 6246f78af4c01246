"""Who is let in: by Host, by Origin, by token."""

from __future__ import annotations

import logging
import re

import pytest

from tests.gateway.stage import TOKEN, Stage
from tests.gateway.test_streamed_equals_whole import BODY

GUARDED = [
    "/v1/models",
    "/v1/stats",
    "/v1/stats/stream",
    "/metrics",
    "/nope",
    "/v1/messages",
    "/v1/chat/completions",
]


def raw_get(stage: Stage, path: str, *lines: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a request with exactly these header lines."""
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""])
    with stage.send(head.encode("latin-1")) as connection:
        seen = bytearray()
        while piece := connection.recv(65536):
            seen += piece
    status = re.match(rb"HTTP/1\.1 (\d{3})", seen)
    assert status is not None
    return int(status[1]), bytes(seen).partition(b"\r\n\r\n")[2].decode()


def host(stage: Stage) -> str:
    return f"Host: 127.0.0.1:{stage.port}"


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "line",
    [
        "X-Nothing: 1",
        "x-api-key: wrong",
        "x-api-key:",
        f"x-api-key: {TOKEN}x",
        f"x-api-key: {TOKEN[:-1]}",
        "x-api-key: \xff\xfe",
        "Authorization: Bearer wrong",
        f"Authorization: Basic {TOKEN}",
        f"Authorization: {TOKEN}",
    ],
)
def test_without_the_token_nothing_is_told(stage: Stage, path: str, line: str) -> None:
    status, body = raw_get(stage, path, host(stage), line)
    assert status == 401
    assert TOKEN not in body
    assert "error" in body


@pytest.mark.parametrize(
    "line", [f"x-api-key: {TOKEN}", f"Authorization: Bearer {TOKEN}", f"authorization: bearer  {TOKEN}"]
)
def test_the_token_opens(stage: Stage, line: str) -> None:
    assert raw_get(stage, "/v1/models", host(stage), line)[0] == 200


def test_one_right_header_of_two_is_enough(stage: Stage) -> None:
    lines = ("x-api-key: dummy", f"Authorization: Bearer {TOKEN}")
    assert raw_get(stage, "/v1/models", host(stage), *lines)[0] == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/api/hello", "/health"])
def test_probes_need_no_token(stage: Stage, path: str, method: str) -> None:
    assert raw_get(stage, path, host(stage), method=method)[0] == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_a_strange_host_is_refused(stage: Stage, path: str, name: str) -> None:
    line = "Host: " + name.format(port=stage.port)
    assert raw_get(stage, path, line, f"x-api-key: {TOKEN}")[0] == 403


@pytest.mark.parametrize(
    "name", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}", "127.9.9.9:{port}"]
)
def test_loopback_names_are_served(stage: Stage, name: str) -> None:
    line = "Host: " + name.format(port=stage.port)
    assert raw_get(stage, "/v1/models", line, f"x-api-key: {TOKEN}")[0] == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1:1",
        "https://127.0.0.1:{port}",
        "http://evil@127.0.0.1:{port}",
    ],
)
def test_a_foreign_origin_is_refused(stage: Stage, origin: str) -> None:
    line = "Origin: " + origin.format(port=stage.port)
    assert raw_get(stage, "/v1/models", host(stage), f"x-api-key: {TOKEN}", line)[0] == 403


def test_its_own_origin_is_served(stage: Stage) -> None:
    line = f"Origin: http://localhost:{stage.port}"
    assert raw_get(stage, "/v1/models", host(stage), f"x-api-key: {TOKEN}", line)[0] == 200


def test_the_token_is_never_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        stage.play([ValueError("broken")])
        assert stage.post("/v1/messages", BODY).status_code == 500
        raw_get(stage, "/v1/models", host(stage), "x-api-key: a-guess")
    assert TOKEN not in caplog.text
    assert "a-guess" not in caplog.text
