"""Faults that people met, from the model's token ids to the client's bytes: real tokenizer, template, parser,
engine and gateway; only the model's choice of tokens is prescribed. Each in all protocols, streamed and not.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.prompt.test_parsers import json_call, xml_call
from tests.gateway.clients import WAYS, Answer, Asker, asking
from tests.support.saying_engine import TEMPLATES, reply_ids

PLAN = "plan\n</think>\n\n"  # the XML-like template's prompt ends in an open thinking block
FORMS = ["qwen3_5_like", "qwen3_like"]


@pytest.fixture(scope="module", params=FORMS)
def either(request: pytest.FixtureRequest) -> Iterator[Asker]:
    with asking(request.param) as asker:
        yield asker


@pytest.fixture(scope="module")
def xml() -> Iterator[Asker]:
    with asking("qwen3_5_like") as asker:
        yield asker


def thought(asker: Asker, rest: str) -> str:
    """A reply that thinks first, in the form of this template."""
    return PLAN + rest if "enable_thinking is false" in source(asker) else "<think>\n" + PLAN + rest


def source(asker: Asker) -> str:
    return asker.engine.template_source


@pytest.mark.parametrize(
    ("text", "content"),
    [("Done.</tool_call>", "Done."), ("All set.\n<think>", "All set."), ("</tool_call>", "")],
)
def test_stray_markers_end_in_a_plain_answer(either: Asker, text: str, content: str) -> None:
    assert either.everywhere(thought(either, text)) == Answer("plan", content, (), "stop")
    assert either.everywhere(thought(either, text), tools=()) == Answer("plan", content, (), "stop")


@pytest.mark.parametrize("layout", ["\n", "\r\n"])
def test_a_bare_function_block_is_a_call(xml: Asker, layout: str) -> None:
    text = "Looking.\n\n<function=find>\n<parameter=q>\na b\n</parameter>\n</function>\n</tool_call>"
    answer = xml.everywhere(PLAN + text.replace("\n", layout))
    assert answer == Answer("plan", "Looking.", (("find", {"q": "a b"}),), "tool_calls")


def test_thinking_a_sentence_and_a_call(either: Asker) -> None:
    arguments = {"content": "    if ok:\n        go()\n", "path": "a.py"}
    for call in (xml_call, json_call):
        answer = either.everywhere(thought(either, "First I look.\n\n" + call("write_file", **arguments)))
        assert answer == Answer("plan", "First I look.", (("write_file", arguments),), "tool_calls")


@pytest.mark.parametrize("call", [xml_call, json_call])
def test_three_calls_stay_apart(either: Asker, call: object) -> None:
    assert callable(call)
    text = thought(either, "".join(call("find", q=q) for q in ("a", "b", "c")))
    assert either.everywhere(text).calls == tuple(("find", {"q": q}) for q in ("a", "b", "c"))
    for protocol, stream in WAYS:
        either.engine.say(text)
        assert len(set(either.ask(protocol, stream).ids)) == 3


def test_the_closer_in_backticks_does_not_end_thinking(xml: Asker) -> None:
    ids = [*reply_ids("I close with `", end=False), *b"</think>", *reply_ids("` later.", end=False)]
    answer = xml.everywhere([*ids, *reply_ids("\n</think>\n\n" + xml_call("ping"))])
    assert answer == Answer("I close with `</think>` later.", "", (("ping", {}),), "tool_calls")


def test_markers_in_the_prompt_do_not_set_the_first_state(xml: Asker) -> None:
    question = [{"role": "user", "content": "What do <tool_call>, <think> and </think> mean?"}]
    assert xml.everywhere("hmm", messages=question) == Answer("hmm", "", (), "stop")


def test_a_prompt_that_ends_with_closed_thinking_is_answered_in_content() -> None:
    text = (TEMPLATES / "qwen3_5_like.jinja").read_text(encoding="utf-8")
    closed = text.replace("if enable_thinking is defined and enable_thinking is false", "")
    assert closed != text
    with asking(closed) as asker:
        assert asker.everywhere("Paris.") == Answer("", "Paris.", (), "stop")


@pytest.mark.parametrize("stop", ["9.8", "\n", "plan"])
def test_a_stop_string_counts_in_content_only(either: Asker, stop: str) -> None:
    text = thought(either, "No.").replace("plan", "plan 9.8\n!")
    for protocol, stream in WAYS:
        either.engine.say(text)
        field = {"stop_sequences" if protocol == "messages" else "stop": [stop]}
        answer = either.ask(protocol, stream, **field)
        assert answer.said == Answer("plan 9.8\n!", "No.", (), "stop")


@pytest.mark.parametrize(
    "words", ["😀 한글 e\u0301 🏳\ufe0f", "👩\u200d👩\u200d👧", "\u2028\u0000\x7f", "日本語" * 50]
)
def test_characters_of_several_tokens_come_whole(either: Asker, words: str) -> None:
    call = xml_call("write_file", path=words, content=words)
    text = thought(either, words + call).replace("plan", words)
    expected = Answer(words, words, (("write_file", {"path": words, "content": words}),), "tool_calls")
    assert either.everywhere(text) == expected


@pytest.mark.parametrize(
    "text", [xml_call("ping"), json_call("ping"), '<tool_call>\n{"name": "ping"}\n</tool_call>']
)
def test_no_arguments_are_an_empty_object(either: Asker, text: str) -> None:
    assert either.everywhere(thought(either, text)).calls == (("ping", {}),)
    either.engine.say(thought(either, text))
    body = either.post("chat").json()
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    either.engine.say(thought(either, text))
    body = either.post("responses").json()
    assert [item["arguments"] for item in body["output"] if item["type"] == "function_call"] == ["{}"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-15", "2026-01-15"),
        ("1e400", "1e400"),
        ("9" * 4500, "9" * 4500),
        (r'"\ud83d"', "\ufffd"),
        ("7", 7),
    ],
)
def test_odd_scalars_keep_the_call(xml: Asker, value: str, expected: object) -> None:
    answer = xml.everywhere(PLAN + xml_call("find", q="x", limit=value))
    assert answer.calls == (("find", {"q": "x", "limit": expected}),)


def test_half_a_surrogate_pair_in_a_json_call(either: Asker) -> None:
    text = r'<tool_call>{"name": "find", "arguments": {"q": "\ud83d", "limit": 1e400}}</tool_call>'
    assert either.everywhere(thought(either, text)).calls == (("find", {"q": "\ufffd", "limit": "1e400"}),)
