"""Siblings of the collected faults about prompts and usage: other sizes, other places, several at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.clients import PROTOCOLS, QUESTION, Answer, Asker, Protocol, asking
from tests.gateway.test_prompts_end_to_end import OFF, PIXEL, replayed

MANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEMPLATES = ["qwen3_5_like", "qwen3_like"]


@pytest.fixture(scope="module", params=TEMPLATES)
def shared(request: pytest.FixtureRequest) -> Iterator[Asker]:
    with asking(request.param) as asker:
        yield asker


@pytest.fixture
def asker(shared: Asker) -> Asker:
    shared.engine.prompts.clear()
    return shared


def ask(asker: Asker, protocol: Protocol, **fields: Any) -> Any:
    asker.engine.say("Done.")
    return asker.ask(protocol, False, **OFF[protocol], **fields).usage


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("turns", [3, 9])
def test_one_id_in_many_turns_keeps_every_pair(asker: Asker, protocol: Protocol, turns: int) -> None:
    """R20, and the prompt does not depend on the ids."""
    prompts = []
    for ids in (["call_1"] * turns, [f"call_{turn}" for turn in range(turns)]):
        messages: list[Any] = list(QUESTION)
        for turn, id_ in enumerate(ids):
            answer = Answer("", "", (("find", None),), "tool_calls", (id_,))
            messages += replayed(protocol, answer, [f"found<{turn}>"], [json.dumps({"q": f"q<{turn}>"})])
        ask(asker, protocol, messages=messages)
        text = asker.engine.prompt_text()
        places = [text.rindex(f"{word}<{turn}>") for turn in range(turns) for word in ("q", "found")]
        assert places == sorted(places)
        assert all(text.count(f"found<{turn}>") == 1 for turn in range(turns))
        prompts.append(asker.engine.prompts[-1])
    assert prompts[0] == prompts[1]


@MANY
@given(
    digits=st.lists(st.text("0123456789abcdef", min_size=3, max_size=5), min_size=2, max_size=4),
    more=st.sampled_from(["", " cc_is_subagent=true;", " cch=00000;"]),
    shapes=st.lists(st.sampled_from(["string", "blocks", "one block"]), min_size=4, max_size=4),
)
def test_no_billing_line_of_any_value_or_shape_is_in_the_prompt(
    asker: Asker, digits: list[str], more: str, shapes: list[str]
) -> None:
    """R22."""
    asker.engine.prompts.clear()
    for value, shape in zip(digits, shapes, strict=False):
        line = f"x-anthropic-billing-header: cc_version=2.1.332.{value}; cc_entrypoint=cli;{more}"
        whole = f"{line}\nBe terse."
        blocks = [{"type": "text", "text": line}, {"type": "text", "text": "Be terse."}]
        system = {"string": whole, "blocks": blocks, "one block": [{"type": "text", "text": whole}]}[shape]
        ask(asker, "messages", system=system)
    assert all(prompt == asker.engine.prompts[0] for prompt in asker.engine.prompts)
    assert "billing" not in asker.engine.prompt_text()


@MANY
@given(places=st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True), cut=st.integers(1, 6))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_instructions_at_any_place_stay_there(
    asker: Asker, protocol: Protocol, places: list[int], cut: int
) -> None:
    """R23: several of them, between any two messages; with each turn the prompt is only continued."""
    role = "system" if protocol == "messages" else "developer"
    turns: list[Any] = []
    for number in range(7):
        if number in places:
            turns.append({"role": role, "content": f"RULE<{number}>"})
        turns.append({"role": "assistant" if number % 2 else "user", "content": f"turn<{number}>"})
    ask(asker, protocol, messages=turns)
    text = asker.engine.prompt_text()
    words = [turn["content"] for turn in turns]
    assert all(text.count(word) == 1 for word in words)
    said = [text.index(word) for word in words if not (word.startswith("RULE<0>"))]
    assert said == sorted(said)
    until = turns.index({"role": "user", "content": f"turn<{cut // 2 * 2}>"}) + 1
    ask(asker, protocol, messages=turns[:until])
    shorter = asker.engine.prompt_text()
    assert text.startswith(shorter[: shorter.rindex(f"turn<{cut // 2 * 2}>")])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("order", ["p", "pp", "tpt", "ptp", "ttpp"])
def test_pictures_anywhere_in_a_result(
    asker: Asker, protocol: Protocol, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R24: a placeholder for each, in its place, and one warning for the request."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    url = f"data:image/png;base64,{PIXEL}"
    picture: dict[str, Any] = {"type": "image", "source": source}
    words = "text"
    if protocol == "chat":
        picture = {"type": "image_url", "image_url": {"url": url}}
    elif protocol == "responses":
        picture, words = {"type": "input_image", "image_url": url}, "input_text"
    content = [
        picture if kind == "p" else {"type": words, "text": f"word<{place}>"}
        for place, kind in enumerate(order)
    ]
    called = Answer("", "", (("ping", {}),), "tool_calls", ("call_1",))
    ask(asker, protocol, messages=[*QUESTION, *replayed(protocol, called, [content], ["{}"])])
    text = asker.engine.prompt_text()
    assert PIXEL not in text
    found = text[text.rindex("go") :]
    assert found.lower().count("[image") == order.count("p")
    marks = [place for place, kind in enumerate(order) if kind == "t"]
    assert [found.count(f"word<{place}>") for place in marks] == [1] * len(marks)
    if order == "ptp":
        assert found.index("[image") < found.index("word<1>") < found.rindex("[image")
    assert len([record for record in caplog.records if "image" in record.message.lower()]) == 1


@MANY
@given(sizes=st.lists(st.integers(1, 400), min_size=2, max_size=4))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_usage_adds_up_at_every_size(asker: Asker, protocol: Protocol, sizes: list[int]) -> None:
    """R27: each prompt goes on behind the one before; what is reused and what is not is the whole prompt."""
    asker.engine.prompts.clear()
    messages: list[Any] = []
    for number, size in enumerate(sizes):
        messages.append({"role": "user", "content": f"{size}-{number} " + "x" * size})
        usage = ask(asker, protocol, messages=messages)
        prompt = len(asker.engine.prompts[-1])
        if protocol == "messages":
            cached, out = usage["cache_read_input_tokens"], usage["output_tokens"]
            assert usage["input_tokens"] + cached + usage["cache_creation_input_tokens"] == prompt
        elif protocol == "chat":
            cached, out = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
            assert usage["prompt_tokens"] == prompt
            assert usage["total_tokens"] == prompt + out
        else:
            cached, out = usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
            assert usage["input_tokens"] == prompt
            assert usage["total_tokens"] == prompt + out
        assert out == len("Done.") + 1
        assert 0 <= cached < prompt
        messages.append({"role": "assistant", "content": "Done."})


@pytest.mark.parametrize("limit", [600, 1024, 5000])
def test_the_limit_is_exact(limit: int) -> None:
    """R28: one token of reply must be left; with less room the prompt is refused with both numbers."""
    with asking("qwen3_5_like", context=limit) as asker:
        asker.engine.say("Done.")
        asker.ask("chat", False, tools=())
        frame = len(asker.engine.prompts[-1]) - len("go")
        steps = len(asker.engine.runner.steps)
        for length in (limit, limit + 1, 3 * limit):
            messages = [{"role": "user", "content": "x" * (length - frame)}]
            for protocol in PROTOCOLS:
                refused = asker.post(protocol, messages, ())
                assert refused.status_code == 400
                assert "too long" in refused.text
                assert str(length) in refused.text
            assert asker.count(messages) == length
        assert len(asker.engine.runner.steps) == steps, "the engine is untouched"
        for room in (1, 2, 50):
            messages = [{"role": "user", "content": "x" * (limit - room - frame)}]
            for protocol in PROTOCOLS:
                asker.engine.say(list(b"a" * room))
                assert asker.ask(protocol, False, messages=messages, tools=()).finish == "length"
            assert asker.count(messages) == limit - room
