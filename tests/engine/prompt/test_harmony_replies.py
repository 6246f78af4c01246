"""gpt-oss: recipients in every place, preambles, damaged headers. Oracle: recordings of openai-harmony."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from ftagent.conversation import ToolSpec
from tests.engine.prompt.call_forms import BY_FORM
from tests.engine.prompt.replies import Reply, Setup, join
from tests.support.record_harmony import FILE

SPEECH = BY_FORM["harmony"]
HARMONY = SPEECH.setup(cut=False)
BODY = '{"q":"a b","limit":3}'


@functools.cache
def recorded() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["replies"]
    return found


@pytest.mark.parametrize("number", range(len(recorded())))
def test_replies_are_read_as_openai_reads_them(number: int) -> None:
    case = recorded()[number]
    words: dict[bool, list[str]] = {True: [], False: []}
    calls = []
    for message in case["messages"]:
        if message["recipient"]:
            calls.append((message["recipient"].removeprefix("functions."), json.loads(message["text"])))
        else:
            words[message["channel"] == "analysis"].append(message["text"])
    reply = HARMONY.parse(case["text"], splits=12)
    assert (reply.thinking, reply.content) == ("\n\n".join(words[True]), "\n\n".join(words[False]))
    assert [(call.name, call.arguments) for call in reply.calls] == calls
    assert all(call.complete for call in reply.calls)


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.find<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find<|constrain|>json",
        "<|channel|>commentary to=functions.find json",
        "<|channel|>commentary to=functions.find",
        "<|channel|>commentary to=find <|constrain|>json",
        "<|start|>assistant to=functions.find<|channel|>commentary json",
        "<|channel|>commentary to=functions.find<|channel|>commentary json",
        "<|channel|>commentary<|channel|>commentary to=functions.find",
    ],
)
@pytest.mark.parametrize("thought", ["", "First I look."])
def test_one_call_wherever_its_recipient_stands(header: str, thought: str) -> None:
    before = SPEECH.thinks(thought) if thought else ""
    for end in ("", "<|call|>", "<|end|>", "<|return|>"):
        reply = HARMONY.parse(f"{before}{header}<|message|>{BODY}{end}")
        assert (reply.thinking, reply.content) == (thought, "")
        assert [(call.name, call.arguments) for call in reply.calls] == [("find", json.loads(BODY))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", Reply("", "Hello.", ())),
        ("to= is a prefix", Reply("", "to= is a prefix", ())),
        (" to=functions", Reply("", " to=functions", ())),
        ("<|channel|>final<|message|>Hi<|return|>", Reply("", "Hi", ())),
        ("<|channel|>final <|constrain|>JSON<|message|>{}", Reply("", "{}", ())),
        ("<|channel|>analysis<|message|>plan<|end|><|channel|>final<|message|>Hi", Reply("plan", "Hi", ())),
        ("<|channel|>analysis<|message|>plan<|return|>", Reply("plan", "", ())),
        ("<|channel|>analysis<|message|>cut her", Reply("cut her", "", ())),
        ("<|channel|>analysis", Reply("", "", ())),
        ("<|start|>assistant<|end|><|channel|>final<|message|>x", Reply("", "x", ())),
        ("<|end|>", Reply("", "", ())),
        ("<|message|>body only", Reply("", "body only", ())),
        (
            "<|channel|>commentary<|message|>One.<|end|><|start|>assistant"
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Two.",
            Reply("hm", "One.\n\nTwo.", ()),
        ),
    ],
)
def test_words_with_and_without_headers(text: str, expected: Reply) -> None:
    assert HARMONY.parse(text) == expected


def test_words_that_are_no_header_stay() -> None:
    reply = HARMONY.parse("The <|channel|> token & others.")
    assert reply == Reply("", "The <|channel|> token & others.", ())


def test_a_prompt_that_ends_inside_a_message() -> None:
    setup = SPEECH.setup(thinking_open=True, cut=False)
    text = f"plan<|end|><|start|>assistant<|channel|>commentary to=functions.find json<|message|>{BODY}"
    reply = setup.parse(text)
    assert (reply.thinking, reply.content, len(reply.calls)) == ("plan", "", 1)


@pytest.mark.parametrize(
    ("name", "body", "arguments"),
    [
        ("run", "ls -l | wc\n", {"command": "ls -l | wc\n"}),
        ("run", '{"command": "ls"}', {"command": "ls"}),
        ("python", "print(1)", {"arguments": "print(1)"}),
        ("set_timer", "[1, 2]", {"arguments": "[1, 2]"}),
        ("ping", "", {}),
    ],
)
def test_a_body_that_is_no_object_is_the_only_value(name: str, body: str, arguments: Any) -> None:
    run = ToolSpec("run", "", {"type": "object", "properties": {"command": {"type": "string"}}})
    setup: Setup = HARMONY._replace(tools=(run, *HARMONY.tools))
    reply = setup.parse(f"<|channel|>commentary to=functions.{name} code<|message|>{body}<|call|>")
    assert [(call.name, call.arguments) for call in reply.calls] == [(name, arguments)]
    assert reply.content == ""


def test_markers_as_ordinary_text_are_words() -> None:
    pieces = [("<|channel|>", True), ("analysis", False), ("<|message|>", True)]
    pieces += [("It ends with ", False), ("<|end|>", False), (".", False), ("<|end|>", True)]
    pieces += [("<|start|>", True), ("assistant", False), ("<|channel|>", True), ("final", False)]
    pieces += [("<|message|>", True), ("Yes.", False)]
    reply = join(HARMONY.events(pieces, SPEECH.markers))
    assert reply == Reply("It ends with <|end|>.", "Yes.", ())
