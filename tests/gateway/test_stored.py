"""Responses that are kept: conversations that go on by an id, items that are referred to, and the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ftagent.errors import BadRequest
from ftagent.gateway.stored import StoredResponses
from ftagent.gateway.wire_responses_items import Item
from tests.gateway.stage import HELLO, TOKEN, Stage
from tests.gateway.test_conformance_openai import CALLS, STREAMED
from tests.gateway.test_conformance_responses import TOOLS, ask, asked


@pytest.fixture
def client(stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stage.gateway.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


@STREAMED
def test_a_conversation_goes_on_by_the_id_of_its_last_response(
    client: openai.OpenAI, stage: Stage, streamed: bool
) -> None:
    stage.play(CALLS)
    first = ask(client, streamed, instructions="Be kind.", tools=TOOLS)
    results: list[Any] = [
        {"type": "function_call_output", "call_id": name, "output": name}
        for name in ("call_a", "call_b", "call_c")
    ]
    stage.play(HELLO)
    second = ask(client, streamed, previous_response_id=first.id, input=results, tools=TOOLS)
    ask(client, False, previous_response_id=second.id, input="more")
    roles = [message.role for message in asked(stage).messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"], "instructions are not carried over"
    assert len(asked(stage).messages[1].blocks) == 5
    assert asked(stage).messages[3].text == "Hello"
    assert client.responses.retrieve(second.id).output_text == "Hello"
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_an_item_can_be_referred_to(client: openai.OpenAI, stage: Stage) -> None:
    stage.play(CALLS)
    items = ask(client, False, tools=TOOLS).output
    ask(client, False, input=[{"type": "item_reference", "id": item.id} for item in items])
    assert len(asked(stage).messages[0].blocks) == 5


def test_what_is_not_stored_cannot_be_referred_to(client: openai.OpenAI, stage: Stage) -> None:
    reply = ask(client, False, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(reply.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, False, previous_response_id=reply.id)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, False, input=[{"type": "item_reference", "id": reply.output[0].id}])
    assert caught.value.param == "input.0.id"


def reply(number: int, text: str = "x") -> dict[str, Any]:
    item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": text}
    return {"id": f"resp_{number}", "output": [item]}


QUESTION = Item(role="user", content=[])


def test_the_oldest_responses_are_forgotten_first() -> None:
    stored = StoredResponses(most=3)
    for number in range(5):
        stored.add(reply(number), [QUESTION])
    assert [number for number in range(5) if stored.get(f"resp_{number}")] == [2, 3, 4]
    with pytest.raises(BadRequest, match="is not kept, only the last 3 are"):
        stored.past("resp_1")
    with pytest.raises(BadRequest) as caught:
        stored.resolve([QUESTION, Item(id="msg_1")])
    assert caught.value.field == "input.1.id"
    assert stored.resolve([Item(id="msg_2")])[0].content == stored.past("resp_2")[-1].content
    assert stored.remove("resp_2")
    assert not stored.remove("resp_2")


def test_long_conversations_count_whole_and_one_over_the_bound_is_not_kept() -> None:
    stored = StoredResponses(characters=10_000)
    stored.add(reply(0, "x" * 2000), [QUESTION])
    stored.add(reply(1, "x" * 2000), stored.past("resp_0"))
    assert stored.get("resp_0") is None
    assert stored.get("resp_1") is not None
    stored.add(reply(2, "x" * 20_000), [QUESTION])
    assert stored.get("resp_1") is not None
    assert stored.get("resp_2") is None


def test_a_conversation_of_thousands_of_items(client: openai.OpenAI, stage: Stage) -> None:
    """It is read beside the loop; what cannot be read in it is named all the same."""
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(2000)]
    first = ask(client, False, input=items)
    ask(client, False, input="more", previous_response_id=first.id)
    assert [message.text for message in asked(stage).messages[1998:]] == ["1998", "1999", "Hello", "more"]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, False, input=[*items, {"type": "hologram"}])
    assert caught.value.param == "input.2000.type"
