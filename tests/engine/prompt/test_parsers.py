"""Faults that people met with local engines, each with its siblings."""

from __future__ import annotations

import json

import pytest

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.form_registry import FORMS
from ftagent.engine.prompt.parsers import ReplyForm, ReplyParser, detect_form
from ftagent.errors import ConfigError
from ftagent.events import TextDelta, ToolCallDelta, ToolCallStart
from tests.engine.prompt.replies import MARKERS, TOOLS, Reply, Setup, join

XML = Setup("qwen3_5")
JSON = Setup("qwen3")


def xml_call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def json_call(name: str, **values: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': values})}\n</tool_call>"


def only_call(reply: Reply) -> dict[str, object]:
    assert len(reply.calls) == 1
    assert reply.calls[0].complete
    arguments = reply.calls[0].arguments
    assert isinstance(arguments, dict)
    return arguments


# ---- R01: indentation and newlines of string values


@pytest.mark.parametrize(
    "value",
    [
        "    if ok:\n        go()\n",
        "",
        "\n",
        "\n\n",
        "  ",
        "\ttab",
        "a\r\nb",
        "trailing  \n",
        "\n    first line empty",
        'say "hi" \\n \\ é 🏳️ \u2028',
        "<b>bold</b> & </p> < / >",
        "</",
        "ls 2>&1 </",
        "x </parameter> y",
        "doc: `</parameter>` and <parameter=path> inline",
        "<tool_call>\nquoted </tool_call> in the middle",
        "<think> and </think>",
        "<function=find>\n<parameter=q>",
        "null",
        "007",
        '["a"]',
    ],
)
def test_string_values_keep_every_character(value: str) -> None:
    arguments = only_call(XML.parse(xml_call("write_file", path="a", content=value)))
    assert arguments == {"path": "a", "content": value}


def test_one_newline_dropped_at_each_end() -> None:
    text = xml_call("write_file", content="    if ok:\n        go()\n", path="p")
    assert only_call(XML.parse(text))["content"] == "    if ok:\n        go()\n"
    inline = "<tool_call><function=write_file><parameter=content> x </parameter></function></tool_call>"
    assert only_call(XML.parse(inline)) == {"content": " x "}


# ---- R04, R05


def test_an_odd_scalar_is_delivered_as_the_string_it_was() -> None:
    assert only_call(XML.parse(xml_call("find", q="x", limit="2026-01-15"))) == {
        "q": "x",
        "limit": "2026-01-15",
    }


def test_values_take_the_types_of_the_schema() -> None:
    assert only_call(XML.parse(xml_call("set_timer", seconds="90", loop="true", label="007"))) == {
        "seconds": 90,
        "loop": True,
        "label": "007",
    }
    properties = {
        "seconds": {"$ref": "#/$defs/count"},
        "loop": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "free": {},
        "other": {},
    }
    schema = {
        "$defs": {"count": {"type": "integer"}},
        "oneOf": [{"properties": {"x": {}}}, {"properties": properties}],
    }
    setup = Setup("qwen3_5", (ToolSpec("set_timer", "", schema),))
    text = xml_call("set_timer", seconds="90", loop="null", free='["a","b"]', other="123")
    assert only_call(setup.parse(text)) == {"seconds": 90, "loop": None, "free": ["a", "b"], "other": "123"}


def test_a_bare_function_block_is_a_call() -> None:
    text = "Looking.\n\n<function=find>\n<parameter=q>\na b\n</parameter>\n</function>\n</tool_call>"
    reply = XML.parse(text)
    assert reply.content == "Looking."
    assert only_call(reply) == {"q": "a b"}


def test_a_bare_function_of_an_unknown_tool_is_text() -> None:
    text = "Write `<function=name>` first."
    assert XML.parse(text) == Reply("", text, ())


def test_a_tagged_call_of_an_unknown_tool_is_delivered() -> None:
    reply = XML.parse(xml_call("search", q='["x"]', n="5"))
    assert reply.calls[0].name == "search"
    assert only_call(reply) == {"q": ["x"], "n": "5"}


# ---- R07: stray markers


@pytest.mark.parametrize("setup", [XML, JSON, Setup("qwen3_5", tools=())])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Done.</tool_call>", "Done."),
        ("All set.\n<think>", "All set."),
        ("</tool_call>", ""),
        ("</think>", ""),
        ("</think>\n\nParis.", "Paris."),
        ("Paris.</think>", "Paris."),
        ("a\n</tool_call>\nb", "a\n\nb"),
        ("<think>\n\n</think>\n\nParis.", "Paris."),
    ],
)
def test_stray_markers_lose_nothing(setup: Setup, text: str, content: str) -> None:
    reply = setup.parse(text)
    assert reply.calls == ()
    assert reply.thinking == ""
    assert reply.content.strip() == content


@pytest.mark.parametrize(
    "text",
    [
        "The `<tool_call>` tag is closed by `</tool_call>`.",
        "Wrap it in `<think>` and `</think>`, then go on.",
        "a < b, x<y>z, <tool, </tool_call, <function=, <function=\n",
        "<tool_call> is a tag",
        "<tool_call>\n<func tion=x>",
    ],
)
def test_markers_that_are_talked_about_stay(text: str) -> None:
    assert XML.parse(text) == Reply("", text, ())


def test_without_tools_a_call_is_text() -> None:
    text = xml_call("find", q="x") + " end"
    assert Setup("qwen3_5", tools=()).parse(text).content == text


# ---- R08, R09, R10


def test_thinking_then_a_sentence_then_a_call() -> None:
    call = xml_call("write_file", content="x = 1", path="a.py")
    reply = Setup("qwen3_5", thinking_open=True).parse(f"plan\n</think>\n\nFirst I look.\n\n{call}")
    assert (reply.thinking, reply.content) == ("plan", "First I look.")
    assert only_call(reply) == {"content": "x = 1", "path": "a.py"}


@pytest.mark.parametrize("own_opener", ["<think>", "<think>\n", "\n<think>\n"])
def test_the_model_opens_thinking_itself(own_opener: str) -> None:
    text = f"{own_opener}plan\n</think>\n\nParis."
    assert XML.parse(text) == Reply("plan", "Paris.", ())
    assert Setup("plain", tools=()).parse(text) == Reply("plan", "Paris.", ())
    assert Setup("qwen3", thinking_open=True).parse(text) == Reply("plan", "Paris.", ())


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
@pytest.mark.parametrize(("setup", "call"), [(XML, xml_call), (JSON, json_call)])
def test_parallel_calls_stay_apart(setup: Setup, call: object, between: str) -> None:
    assert callable(call)
    text = between.join(call("find", q=q) for q in ("a", "b", "c"))
    events = setup.events([(text, False)])
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [start.index for start in starts] == [0, 1, 2]
    assert len({start.id for start in starts}) == 3
    reply = setup.parse(text)
    assert [call.arguments for call in reply.calls] == [{"q": "a"}, {"q": "b"}, {"q": "c"}]
    assert reply.content == ""


def test_text_after_a_call_keeps_its_distance() -> None:
    reply = XML.parse(f"First.\n\n{xml_call('ping')}\n\nThen.")
    assert reply.content == "First.\n\nThen."
    assert [call.text for call in reply.calls] == ["{}"]


@pytest.mark.parametrize("form", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize("text", [xml_call("find", q="a b", limit="3"), json_call("find", q="a b", limit=3)])
def test_a_whole_call_in_one_delta_in_either_spelling(form: ReplyForm, text: str) -> None:
    assert only_call(Setup(form).parse(text)) == {"q": "a b", "limit": 3}


# ---- R11, R12, R13: thinking and native markers


def test_the_closer_as_ordinary_text_does_not_end_thinking() -> None:
    literal = [
        ("I close with `", False),
        ("</", False),
        ("think", False),
        (">", False),
        ("` later.\n", False),
    ]
    literal += [("A draft: <tool_call>\n<function=ping>\n</function>\n</tool_call>\n", False)]
    call = [("<tool_call>", True), ("\n<function=ping>\n</function>\n", False), ("</tool_call>", True)]
    setup = Setup("qwen3_5", thinking_open=True)
    reply = join(setup.events([*literal, ("</think>", True), ("\n\n", False), *call], MARKERS))
    assert reply.thinking == "".join(text for text, _ in literal).rstrip()
    assert "`</think>`" in reply.thinking
    assert reply.content == ""
    assert only_call(reply) == {}


def test_the_first_state_is_told_not_guessed() -> None:
    assert Setup("qwen3_5", thinking_open=True).parse("hmm") == Reply("hmm", "", ())
    assert Setup("qwen3_5", thinking_open=False).parse("Paris.") == Reply("", "Paris.", ())


def test_content_open_only_in_content() -> None:
    parser = ReplyParser("qwen3_5", TOOLS, thinking_open=True)
    seen = []
    for text in (
        "9.8",
        "</think>",
        "\n\nNo.",
        "<tool_call>",
        "\n<function=ping>",
        "</function></tool_call>",
        "x",
    ):
        parser.push(text)
        seen.append(parser.content_open)
    assert seen == [False, True, True, False, False, True, True]


def test_a_real_opener_inside_thinking_starts_a_call() -> None:
    call = [("<tool_call>", True), ("\n<function=ping>\n</function>\n", False), ("</tool_call>", True)]
    reply = join(Setup("qwen3_5", thinking_open=True).events([("so:\n", False), *call], MARKERS))
    assert reply.thinking == "so:"
    assert [call.name for call in reply.calls] == ["ping"]
    talk = [("the ", False), ("<tool_call>", True), (" tag", False), ("</think>", True), ("Yes.", False)]
    reply = join(Setup("qwen3_5", thinking_open=True).events(talk, MARKERS))
    assert reply == Reply("the <tool_call> tag", "Yes.", ())


def test_other_added_tokens_are_text() -> None:
    pieces = [("a", False), ("<|fim|>", True), ("b", False)]
    assert join(XML.events(pieces, MARKERS)).content == "a<|fim|>b"


# ---- R19, R20


def test_no_parameters_give_an_empty_object() -> None:
    for text in (xml_call("ping"), json_call("ping"), '<tool_call>{"name": "ping"}</tool_call>'):
        assert XML.parse(text).calls[0].text == "{}"


def test_long_strings_stream() -> None:
    parser = ReplyParser("qwen3_5", TOOLS, thinking_open=False)
    opening = parser.push("<tool_call>\n<function=write_file>\n<parameter=content>\n")
    assert opening[1:] == [ToolCallDelta(0, '{"content": "')]
    for word in ("one ", "two ", "three "):
        assert parser.push(word) == [ToolCallDelta(0, word)]
    parser = ReplyParser("qwen3", TOOLS, thinking_open=False)
    parser.push('<tool_call>\n{"name": "write_file", "arguments": {"content": "')
    assert parser.push("one ") == [ToolCallDelta(0, "one ")]


def test_text_flows_at_once() -> None:
    parser = ReplyParser("qwen3_5", TOOLS, thinking_open=False)
    assert parser.push("Hello") == [TextDelta("Hello")]
    assert parser.push(" a <b") == [TextDelta(" a <b")]
    assert parser.push(" <tool") == []
    assert parser.push("s>") == [TextDelta(" <tools>")]


def test_ids_are_unique() -> None:
    ids = set()
    for _ in range(50):
        events = XML.events([(xml_call("ping"), False)])
        ids |= {event.id for event in events if isinstance(event, ToolCallStart)}
    assert len(ids) == 50
    assert all(len(id_) == 29 and id_.startswith("call_") and int(id_[5:], 16) >= 0 for id_ in ids)


# ---- forgotten closers, and replies that are cut


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=find>\n<parameter=q>\na\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=q>\na\n</function>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=q>\na\n</tool_call>",
        '<tool_call>\n{"name": "find", "arguments": {"q": "a"}\n</tool_call>',
        '<tool_call>\n{"name": "find", "arguments": {"q": "a"\n</tool_call>',
        '<tool_call>\n{"name": "find", "arguments": {"q": "a"}}}\n</tool_call>',
        '<tool_call>\n[{"name": "find", "arguments": {"q": "a"}}]\n</tool_call>',
        '<tool_call>{"arguments": {"q": "a"}, "name": "find"}</tool_call>',
        '<tool_call>{"name": "find", "parameters": "{\\"q\\": \\"a\\"}"}</tool_call>',
        '<tool_call>{"name": "find", "q": "a"}</tool_call>',
        "<tool_call>{'name': 'find', 'arguments': {'q': 'a',}}</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=q>\na\n</parameter>\n</function>",
    ],
)
def test_sloppy_closers(text: str) -> None:
    reply = XML.parse(text)
    assert only_call(reply) == {"q": "a"}
    assert reply.content == ""


def test_a_parameter_without_closer_ends_at_the_next() -> None:
    body = "<parameter=q>\na\n<parameter=limit>\n3\n</parameter>\n</function>"
    text = f"<tool_call>\n<function=find>\n{body}\n</tool_call>"
    assert only_call(XML.parse(text)) == {"q": "a", "limit": 3}


def test_words_inside_a_call_come_after_it() -> None:
    text = "<tool_call>\n<function=find>\nhere:\n<parameter=q>\na\n</parameter>\n</function>\n</tool_call>"
    reply = XML.parse(text)
    assert reply.content == "here:"
    assert only_call(reply) == {"q": "a"}


CUT = xml_call("write_file", path="a.py", content="print(1)\nprint(2)")


@pytest.mark.parametrize("end", range(len(CUT)))
def test_a_cut_call_is_never_complete(end: int) -> None:
    reply = XML.parse("Go." + CUT[:end], splits=10)
    closed = CUT[:end].rstrip().endswith(("</function>", "</tool_call")) or "</function>" in CUT[:end]
    assert reply.content in ("Go.", "Go." + CUT[:end])
    assert [call.complete for call in reply.calls] == ([closed] if "_file>" in CUT[:end] else [])


def test_a_turn_that_the_model_ended_completes_the_call() -> None:
    setup = Setup("qwen3_5", cut=False)
    text = "<tool_call>\n<function=find>\n<parameter=q>\na"
    assert only_call(setup.parse(text)) == {"q": "a"}
    assert only_call(setup.parse('<tool_call>\n{"name": "find", "arguments": {"q": "a')) == {"q": "a"}


def test_a_cut_json_call() -> None:
    text = json_call("find", q="a b")
    for end in range(len("<tool_call>\n"), len(text)):
        calls = JSON.parse(text[:end], splits=3).calls
        named = '"find"' in text[:end]
        assert [call.complete for call in calls] == ([text[:end].find("}") > 0] if named else [])


def test_thinking_that_is_cut() -> None:
    assert Setup("qwen3_5", thinking_open=True).parse("one\ntwo </thi") == Reply("one\ntwo </thi", "", ())


def test_forms_are_told_from_templates() -> None:
    assert detect_form("{{ messages }}") == "plain"
    assert detect_form('<tool_call>\n{"name": ...') == "qwen3"
    assert detect_form("<tool_call>\n<function=...>") == "qwen3_5"


@pytest.mark.parametrize("form", sorted(FORMS))
def test_tables_lead_nowhere_unknown(form: ReplyForm) -> None:
    states = FORMS[form].states
    assert {"content", "thinking"} <= set(states)
    for state in states.values():
        assert {rule.to for rule in state.rules} <= set(states)
        assert (state.then in states) == (state.sink in ("json", "arguments"))


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="qwen3_5"):
        Setup("klingon").parse("x")  # type: ignore[arg-type]


def test_a_tool_without_a_schema() -> None:
    setup = Setup("qwen3_5", tools=(ToolSpec("run"),))
    assert only_call(setup.parse(xml_call("run", cmd="ls", env='{"A": 1}'))) == {"cmd": "ls", "env": {"A": 1}}
