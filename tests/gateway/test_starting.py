"""A gateway that listens while the model is still being loaded: /health tells how far, work is refused."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ftagent.engine.api import LoadState
from ftagent.engine.starting import StartingEngine
from ftagent.events import Finished, TextDelta, Usage
from ftagent.gateway.server import start_gateway
from tests.support.scripted import ScriptedEngine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def starting() -> StartingEngine:
    return StartingEngine()


@pytest.fixture
def client(starting: StartingEngine) -> Iterator[httpx.Client]:
    with start_gateway(starting) as gateway:
        headers = {"authorization": f"Bearer {gateway.token}"}
        with httpx.Client(base_url=gateway.url, headers=headers) as client:
            yield client


def test_health_tells_how_far_loading_is(starting: StartingEngine, client: httpx.Client) -> None:
    reply = client.get("/health")
    assert reply.status_code == 503
    assert reply.json() == {"status": "loading", "phase": "checking", "bytes_read": 0, "bytes_total": 0}
    starting.tell(LoadState("reading", 3_000_000_000, 8_000_000_000))
    assert client.get("/health").json() == {
        "status": "loading",
        "phase": "reading",
        "bytes_read": 3_000_000_000,
        "bytes_total": 8_000_000_000,
    }
    starting.ready(ScriptedEngine(lambda _: ()))
    reply = client.get("/health")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
def test_work_is_refused_until_the_model_is_there(
    starting: StartingEngine, client: httpx.Client, path: str
) -> None:
    starting.tell(LoadState("reading", 41, 100))
    body = {"model": "m", "prompt": "x"} if path == "/v1/completions" else {**CHAT, "max_tokens": 5}
    reply = client.post(path, json=body)
    assert reply.status_code == 503
    assert "still being loaded (41 % of the weights are read); try again soon" in reply.text
    assert client.get("/v1/models").status_code == 503
    assert client.get("/metrics").status_code == 503
    starting.ready(ScriptedEngine(lambda _: (TextDelta("Yes"), Finished("stop", Usage(1, 1)))))
    assert client.post(path, json=body).status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == "scripted"
