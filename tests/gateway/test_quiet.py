"""A quiet engine: streams stay alive by events that each official client understands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from ftagent.errors import PromptTooLong
from ftagent.events import Progress, TextDelta
from ftagent.gateway.reply import Timing
from tests.gateway.stage import HELLO, TOKEN, Stage, done, staged
from tests.gateway.test_streamed_equals_whole import BODY, sse_data

# The fault was seen with an interval of 5 s and 45 s to the first token; the same at a fiftieth of the time.
INTERVAL_S = 0.1
QUIET_S = 9 * INTERVAL_S


@pytest.fixture(scope="module")
def quiet_stage() -> Iterator[Stage]:
    with staged(Timing(keepalive=INTERVAL_S, admission=2.0)) as stage:
        yield stage


@pytest.mark.parametrize("progress", [False, True], ids=["silent", "progress"])
def test_anthropic_pings(quiet_stage: Stage, progress: bool) -> None:
    steps = (
        [step for n in range(9) for step in (INTERVAL_S, Progress("prefill", n, 9))]
        if progress
        else [QUIET_S]
    )
    quiet_stage.play([*steps, *HELLO])
    events = list(sse_data(quiet_stage.post("/v1/messages", {**BODY, "stream": True})))
    kinds = [event["type"] for event in events]
    first = kinds.index("content_block_start")
    assert kinds[0] == "message_start"
    assert kinds[1:first].count("ping") >= (4 if progress else 7)
    assert first >= (5 if progress else 8)
    assert kinds[-1] == "message_stop"


def test_the_official_clients_ignore_keepalives(quiet_stage: Stage) -> None:
    quiet_stage.play([QUIET_S / 2, TextDelta("Hel"), QUIET_S / 2, TextDelta("lo"), done()])
    url = quiet_stage.gateway.url
    with (
        anthropic.Anthropic(base_url=url, api_key=TOKEN, max_retries=0) as client,
        client.messages.stream(**BODY) as stream,
    ):
        assert stream.get_final_text() == "Hello"
    with openai.OpenAI(base_url=url + "/v1", api_key=TOKEN, max_retries=0) as other:
        with other.chat.completions.stream(**BODY) as chat:
            assert chat.get_final_completion().choices[0].message.content == "Hello"
        with other.responses.stream(model="m", input="hi") as responses:
            assert responses.get_final_response().output_text == "Hello"
        chunks = list(other.completions.create(model="m", prompt="x", stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"
        assert len(chunks) >= 8


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_openai_sends_empty_chunks(quiet_stage: Stage, path: str) -> None:
    quiet_stage.play([QUIET_S, *HELLO])
    body: dict[str, Any] = {**BODY, "prompt": "x", "stream": True}
    chunks = list(sse_data(quiet_stage.post(path, body)))
    choices = [chunk["choices"][0] for chunk in chunks]
    words = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
    assert words.index("Hel") >= 8
    assert all(choice["finish_reason"] is None for choice in choices[:-1])


def test_responses_say_that_they_are_in_progress(quiet_stage: Stage) -> None:
    """Codex gives a silent stream up, and takes comments for silence."""
    quiet_stage.play([QUIET_S, *HELLO])
    reply = quiet_stage.post("/v1/responses", {"model": "m", "input": "hi", "stream": True})
    events = list(sse_data(reply))
    kinds = [event["type"] for event in events]
    first = kinds.index("response.output_item.added")
    assert kinds[1:first].count("response.in_progress") >= 8
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len(reply.text.split("\n\n")) == len(events) + 1, "events only, no comments"
    assert kinds[-1] == "response.completed"


def test_a_refusal_of_responses_after_the_head_is_a_failed_response(quiet_stage: Stage) -> None:
    quiet_stage.play([3 * INTERVAL_S, PromptTooLong(9000, 8192)])
    reply = quiet_stage.post("/v1/responses", {"model": "m", "input": "hi", "stream": True})
    last = list(sse_data(reply))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "invalid_prompt"
    assert "prompt is too long: 9000 tokens > 8192 maximum" in last["response"]["error"]["message"]


def test_a_refusal_after_the_head_is_an_error_event(quiet_stage: Stage) -> None:
    quiet_stage.play([3 * INTERVAL_S, PromptTooLong(9000, 8192)])
    reply = quiet_stage.post("/v1/messages", {**BODY, "stream": True})
    assert reply.status_code == 200
    last = list(sse_data(reply))[-1]
    assert last["type"] == "error"
    assert "prompt is too long: 9000 tokens > 8192 maximum" in last["error"]["message"]


def test_a_whole_reply_waits_in_silence(quiet_stage: Stage) -> None:
    quiet_stage.play([QUIET_S, *HELLO])
    assert quiet_stage.post("/v1/messages", BODY).json()["content"] == [{"type": "text", "text": "Hello"}]
