"""Faults that people met on the way in: what the model is given to read for what a client sent, in all
protocols, with the real template, memory and engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ftagent.conversation import ToolSpec
from tests.engine.prompt.test_parsers import xml_call
from tests.gateway.clients import PROTOCOLS, QUESTION, WAYS, Answer, Asker, Protocol, asking

OFF: dict[Protocol, dict[str, Any]] = {
    "chat": {"reasoning_effort": "none"},
    "messages": {"thinking": {"type": "disabled"}},
    "responses": {"reasoning": {"effort": "none"}},
}
JSON_FIND = '<tool_call>\n{"name": "find", "arguments": {"q": "a  b é", "limit": 3}}\n</tool_call>'
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module", params=["qwen3_5_like", "qwen3_like"])
def shared(request: pytest.FixtureRequest) -> Iterator[Asker]:
    with asking(request.param) as asker:
        yield asker


@pytest.fixture
def either(shared: Asker) -> Asker:
    shared.engine.prompts.clear()
    return shared


@pytest.fixture
def xml() -> Iterator[Asker]:
    with asking("qwen3_5_like") as asker:
        yield asker


def replayed(protocol: Protocol, answer: Answer, results: list[Any], arguments: list[Any]) -> list[Any]:
    """The assistant's turn and the results, as a client sends them back; `arguments` in its own spelling."""
    if protocol == "chat":
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": spelled}}
            for id_, (name, _), spelled in zip(answer.ids, answer.calls, arguments, strict=True)
        ]
        turn = {"role": "assistant", "content": answer.content or None, "tool_calls": calls}
        turn["reasoning_content"] = answer.thinking
        found = zip(answer.ids, results, strict=True)
        return [turn, *({"role": "tool", "tool_call_id": id_, "content": text} for id_, text in found)]
    if protocol == "responses":
        return _items(answer, results, arguments)
    blocks: list[dict[str, Any]] = []
    if answer.thinking:
        blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": "x"})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    blocks += [
        {"type": "tool_use", "id": id_, "name": name, "input": json.loads(spelled)}
        for id_, (name, _), spelled in zip(answer.ids, answer.calls, arguments, strict=True)
    ]
    outcomes = [
        {"type": "tool_result", "tool_use_id": id_, "content": text}
        for id_, text in zip(answer.ids, results, strict=True)
    ]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": outcomes}]


def _items(answer: Answer, results: list[Any], arguments: list[Any]) -> list[Any]:
    items: list[Any] = []
    if answer.thinking:
        reasoning = {"type": "reasoning_text", "text": answer.thinking}
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [reasoning]})
    if answer.content:
        text = {"type": "output_text", "text": answer.content, "annotations": []}
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [text]})
    for id_, (name, _), spelled in zip(answer.ids, answer.calls, arguments, strict=True):
        items.append({"type": "function_call", "call_id": id_, "name": name, "arguments": spelled})
    for id_, text in zip(answer.ids, results, strict=True):
        items.append({"type": "function_call_output", "call_id": id_, "output": text})
    return items


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
def test_fifty_tool_turns_have_fifty_ids_and_every_result(
    either: Asker, protocol: Protocol, stream: bool
) -> None:
    messages: list[Any] = list(QUESTION)
    ids = set()
    for turn in range(50):
        either.engine.say(xml_call("ping"))
        answer = either.ask(protocol, stream, messages=messages, **OFF[protocol])
        ids |= set(answer.ids)
        messages += replayed(protocol, answer, [f"result {turn}."], ["{}"])
    either.engine.say("Done.")
    either.ask(protocol, stream, messages=messages, **OFF[protocol])
    assert len(ids) == 50
    text = either.engine.prompt_text()
    places = [text.index(f"result {turn}.") for turn in range(50)]
    assert places == sorted(places)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_id_in_two_turns_keeps_both_pairs(either: Asker, protocol: Protocol) -> None:
    messages: list[Any] = list(QUESTION)
    for word in ("one", "two"):
        answer = Answer("", "", (("find", None),), "tool_calls", ("call_1",))
        messages += replayed(protocol, answer, [f"found {word}"], [json.dumps({"q": word})])
    either.engine.say("Done.")
    either.ask(protocol, False, messages=messages)
    text = either.engine.prompt_text()
    places = [text.rindex(word) for word in ("found one", "found two")]
    assert text.count("found one") == text.count("found two") == 1
    assert places == sorted(places)


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
@pytest.mark.parametrize(
    ("template", "said", "off"),
    [
        ("qwen3_5_like", "Looking.\n\n" + xml_call("find", q="a  b é", limit="3"), True),
        ("qwen3_5_like", xml_call("find", q="a  b é", limit="3"), True),
        ("qwen3_5_like", "plan\n</think>\n\n" + xml_call("find", q="a  b é", limit="3"), False),
        ("qwen3_like", f"<think>\nplan\n</think>\n\n{JSON_FIND}", False),
    ],
)
def test_the_second_turn_begins_with_all_of_the_first(
    protocol: Protocol, stream: bool, template: str, said: str, off: bool
) -> None:
    """The client echoes the arguments reordered and minified; the model had written `limit` last."""
    with asking(template) as asker:
        engine = asker.engine
        engine.say(said)
        script = list(engine.runner.script)
        fields = OFF[protocol] if off else {}
        answer = asker.ask(protocol, stream, **fields)
        first = [*engine.prompts[-1], *script]
        echoed = json.dumps({"limit": 3, "q": "a  b é"}, separators=(",", ":"))
        engine.say("Done.")
        messages = [*QUESTION, *replayed(protocol, answer, ["1: a  b é"], [echoed])]
        later = asker.ask(protocol, stream, messages=messages, **fields)
    assert engine.prompts[-1][: len(first)] == first
    assert cached_in(protocol, later.usage) >= len(first) - 1


def cached_in(protocol: Protocol, usage: Any) -> int:
    cached: int
    match protocol:
        case "chat":
            cached = usage["prompt_tokens_details"]["cached_tokens"]
        case "messages":
            cached = usage["cache_read_input_tokens"]
        case "responses":
            cached = usage["input_tokens_details"]["cached_tokens"]
    return cached


def billing(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.332.{number}; cc_entrypoint=cli; cch={number:05x};"


def test_the_billing_line_does_not_change_the_prompt(either: Asker) -> None:
    systems: list[Any] = [
        f"{billing(1)}\nBe terse.",
        [{"type": "text", "text": billing(2)}, {"type": "text", "text": "Be terse."}],
        [{"type": "text", "text": f"{billing(77)}\nBe terse."}],
        "Be terse.",
    ]
    for system in systems:
        either.engine.say("Done.")
        either.ask("messages", False, system=system)
    assert all(prompt == either.engine.prompts[0] for prompt in either.engine.prompts)
    either.engine.say("Done.")
    either.ask("messages", False, messages=[{"role": "user", "content": f"What is\n{billing(3)}\n?"}])
    assert billing(3) in either.engine.prompt_text()


@pytest.mark.parametrize(
    ("protocol", "role"),
    [
        ("chat", "developer"),
        ("chat", "system"),
        ("messages", "system"),
        ("responses", "developer"),
        ("responses", "system"),
    ],
)
def test_an_instruction_in_the_middle_stays_there(either: Asker, protocol: Protocol, role: str) -> None:
    """One of the templates refuses a system message that does not come first."""
    turns: list[Any] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": role, "content": "INSTRUCTION B"},
        {"role": "user", "content": "three"},
    ]
    field: dict[str, Any] = {"system": "SYSTEM A"} if protocol == "messages" else {}
    first = [] if field else [{"role": "system", "content": "SYSTEM A"}]
    either.engine.say("Done.")
    either.ask(protocol, False, messages=[*first, *turns], **field, **OFF[protocol])
    text = either.engine.prompt_text()
    # Both templates take the markup of a thinking block away from replies that are past.
    before = text[: text.rindex("<think>")].encode()
    assert text.count("INSTRUCTION B") == text.count("SYSTEM A") == 1
    places = [text.rindex(word) for word in ("SYSTEM A", "one", "two", "INSTRUCTION B", "three")]
    assert places == sorted(places)
    either.engine.say("Done.")
    more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "four"}]
    either.ask(protocol, False, messages=[*first, *turns, *more], **field, **OFF[protocol])
    assert either.engine.prompt_text().encode().startswith(before)


@pytest.mark.parametrize(("protocol", "stream"), WAYS)
def test_a_picture_in_a_result_is_one_placeholder(
    either: Asker, protocol: Protocol, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    picture: dict[str, Any] = {"type": "image", "source": source}
    if protocol == "chat":
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    if protocol == "responses":
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    content = [{"type": "text", "text": "the screen:"}, picture]
    called = Answer("", "", (("ping", {}),), "tool_calls", ("call_1",))
    messages = [*QUESTION, *replayed(protocol, called, [content], ["{}"])]
    either.engine.say("Done.")
    either.ask(protocol, stream, messages=messages)
    text = either.engine.prompt_text()
    assert text.count("the screen:") == 1
    assert PIXEL not in text
    assert text[text.index("the screen:") :].lower().count("image") == 1
    assert len([record for record in caplog.records if "image" in record.message.lower()]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_what_the_engine_saw(xml: Asker, stream: bool) -> None:
    messages = [{"role": "user", "content": "x" * 900}, {"role": "user", "content": "y" * 100}]
    xml.engine.say("ab")
    xml.ask("chat", False, messages=messages, **OFF["chat"])
    for protocol in PROTOCOLS:
        xml.engine.say("ab")
        usage = xml.ask(protocol, stream, messages=messages, **OFF[protocol]).usage
        prompt = len(xml.engine.prompts[-1])
        cached = cached_in(protocol, usage)
        if protocol == "chat":
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, 3)
        elif protocol == "responses":
            assert (usage["input_tokens"], usage["output_tokens"]) == (prompt, 3)
        else:
            assert usage["input_tokens"] + cached == prompt
            assert (usage["cache_creation_input_tokens"], usage["output_tokens"]) == (0, 3)
        assert 900 <= cached < prompt


def test_a_prompt_over_the_limit_is_refused_and_a_long_wish_is_clamped() -> None:
    """Tokens are bytes here, so the lengths of the prompts can be set exactly: 9000 and 8000 of 8192."""
    with asking("qwen3_5_like", context=8192) as asker:
        asker.engine.say("Done.")
        asker.ask("chat", False, tools=())
        frame = len(asker.engine.prompts[-1]) - len("go")
        steps = len(asker.engine.runner.steps)
        long = [{"role": "user", "content": "x" * (9000 - frame)}]
        for protocol, stream in WAYS:
            refused = asker.post(protocol, long, (), stream=stream)
            assert refused.status_code == 400
            words = refused.json()["error"]["message"]
            assert "too long" in words
            assert "9000" in words
            assert "8192" in words
        assert len(asker.engine.runner.steps) == steps
        fitting = [{"role": "user", "content": "x" * (8000 - frame)}]
        for protocol, stream in WAYS:
            asker.engine.say(list(b"abc" * 64))
            answer = asker.ask(protocol, stream, messages=fitting, tools=(), max_tokens=32000)
            assert answer.finish == "length"
            assert len(asker.engine.prompts[-1]) == 8000
            assert len(answer.thinking + answer.content) == 192
        for messages, count in ((long, 9000), (fitting, 8000)):
            assert asker.count(messages) == asker.count_input(messages) == count


def test_effort_none_is_one_prompt_in_every_wording(either: Asker) -> None:
    """Each protocol's own way, and the ways of other local servers."""
    ways: list[tuple[Protocol, dict[str, Any]]] = [
        ("chat", {"reasoning_effort": "none"}),
        ("chat", {"reasoning": {"effort": "none"}}),
        ("chat", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("chat", {"enable_thinking": False}),
        ("messages", {"thinking": {"type": "disabled"}}),
        ("messages", {"output_config": {"effort": "none"}}),
        ("responses", {"reasoning": {"effort": "none"}}),
        ("responses", {"chat_template_kwargs": {"enable_thinking": False}}),
    ]
    for protocol, fields in ways:
        either.engine.say("Done.")
        either.ask(protocol, False, **fields)
    assert all(prompt == either.engine.prompts[0] for prompt in either.engine.prompts)
    either.engine.say("Done.")
    either.ask("chat", False, reasoning_effort="high")
    assert either.engine.prompts[-1] != either.engine.prompts[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_patch_comes_back_raw(either: Asker, stream: bool) -> None:
    """A free-form tool beside a function, a tool of the server and one of an unknown type."""
    patch = '*** Begin Patch\n+ é "quoted" \\n\n*** End Patch'
    tools: list[dict[str, Any]] = [
        {"type": "custom", "custom": {"name": "apply_patch", "description": "Applies a patch."}},
        {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}},
        {"type": "web_search"},
        {"type": "telepathy"},
    ]
    either.engine.say(xml_call("apply_patch", input=patch))
    reply = either.post("chat", tools=tools, stream=stream, **OFF["chat"])
    assert reply.status_code == 200, reply.text
    if not stream:
        choice = reply.json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": patch})
        assert choice["finish_reason"] == "tool_calls"
        return
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in map(json.loads, data) if event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    assert calls[0]["custom"]["name"] == "apply_patch"
    assert "".join(call["custom"].get("input") or "" for call in calls) == patch
    assert not any(delta.get("content") for delta in deltas)


@pytest.mark.parametrize("stream", [False, True])
def test_a_patch_comes_back_raw_as_an_item(either: Asker, stream: bool) -> None:
    patch = '*** Begin Patch\n+ é "quoted" \\n\n*** End Patch'
    tools: list[dict[str, Any]] = [
        {"type": "custom", "name": "apply_patch", "description": "Applies a patch."},
        {"type": "function", "name": "ping", "parameters": {"type": "object"}},
        {"type": "web_search"},
        {"type": "telepathy"},
    ]
    either.engine.say(xml_call("apply_patch", input=patch))
    reply = either.post("responses", tools=tools, stream=stream, **OFF["responses"])
    assert reply.status_code == 200, reply.text
    if not stream:
        (item,) = reply.json()["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", patch)
        return
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: {")]
    events = [json.loads(line) for line in data]
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert "".join(event["delta"] for event in deltas) == patch
    assert {event["type"] for event in deltas} == {"response.custom_tool_call_input.delta"}
    items = [event["item"] for event in events if "item" in event]
    assert {(item["id"], item["type"]) for item in items} == {(items[0]["id"], "custom_tool_call")}
    assert items[-1]["input"] == patch


def test_tools_keep_their_order_and_are_listed_once(either: Asker) -> None:
    tools = [ToolSpec("zeta", "", {"type": "object"}), ToolSpec("alpha", "", {"type": "object"})]
    for protocol in PROTOCOLS:
        either.engine.say("Done.")
        either.ask(protocol, False, tools=tools, **OFF[protocol])
    assert all(prompt == either.engine.prompts[0] for prompt in either.engine.prompts)
