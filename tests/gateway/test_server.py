"""The server: its port, its token, its end."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest

from ftagent.errors import ConfigError
from ftagent.gateway.server import start_gateway
from tests.gateway.stage import HELLO, Stage
from tests.gateway.test_streamed_equals_whole import BODY
from tests.support.scripted import ScriptedEngine


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request: HELLO)


def test_a_token_is_made_for_each_run() -> None:
    with start_gateway(engine()) as one, start_gateway(engine()) as two:
        assert one.token
        assert two.token
        assert one.token != two.token
        assert len(one.token) >= 32
        assert httpx.get(one.url + "/v1/models", headers={"x-api-key": two.token}).status_code == 401
        assert httpx.get(one.url + "/v1/models", headers={"x-api-key": one.token}).status_code == 200


def test_open_access_serves_without_a_token() -> None:
    with start_gateway(engine(), open_access=True) as gateway:
        assert gateway.token is None
        assert httpx.post(gateway.url + "/v1/messages", json=BODY).status_code == 200


def test_open_access_is_for_loopback_only() -> None:
    with pytest.raises(ConfigError, match=r"must listen on loopback, not on 0\.0\.0\.0"):
        start_gateway(engine(), host="0.0.0.0", open_access=True)


def test_listening_everywhere_serves_addresses_but_no_foreign_name() -> None:
    with start_gateway(engine(), host="0.0.0.0") as gateway:
        port = gateway.url.rpartition(":")[2]
        assert gateway.url == f"http://127.0.0.1:{port}"
        for name, status in (("192.0.2.7", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            reply = httpx.get(gateway.url + "/health", headers={"host": f"{name}:{port}"})
            assert reply.status_code == status


def test_closing_ends_a_stream_of_figures(caplog: pytest.LogCaptureFixture) -> None:
    gateway = start_gateway(engine(), open_access=True)
    with httpx.stream("GET", gateway.url + "/v1/stats/stream") as reply:
        lines = reply.iter_lines()
        assert next(lines) == "event: stats"
        gateway.close()
        assert len(list(lines)) < 20
    assert caplog.text == ""


def test_a_taken_port_is_one_clear_line(stage: Stage) -> None:
    with pytest.raises(
        ConfigError, match=f"cannot listen on 127.0.0.1 port {stage.port}: .*; choose another port"
    ):
        start_gateway(engine(), port=stage.port)


def test_an_address_of_another_machine_is_one_clear_line() -> None:
    for host in ("203.0.113.1", "no.such.host.invalid"):
        with pytest.raises(ConfigError, match=f"cannot listen on {host}"):
            start_gateway(engine(), host=host)


def test_close_frees_the_port_and_the_thread_and_may_be_called_twice() -> None:
    before = threading.active_count()
    gateway = start_gateway(engine())
    port = int(gateway.url.rpartition(":")[2])
    gateway.close()
    gateway.close()
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    with start_gateway(engine(), port=port) as again:
        assert again.url.endswith(f":{port}")


def test_ipv6_loopback() -> None:
    try:
        gateway = start_gateway(engine(), host="::1")
    except ConfigError:
        pytest.skip("no IPv6 loopback on this machine")
    with gateway:
        assert gateway.url.startswith("http://[::1]:")
        assert httpx.get(gateway.url + "/health").status_code == 200


def test_chunks_are_not_delayed(stage: Stage) -> None:
    # A socket that does not say it is TCP keeps Nagle's algorithm, which costs 40 ms for each event.
    assert stage.gateway.listener.proto == socket.IPPROTO_TCP
