"""DSML (DeepSeek V3.2, V4, V4.1): closers glued to values, types, markup that must not be shown."""

from __future__ import annotations

from typing import Any

import pytest

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.parsers import ReplyParser
from ftagent.events import TextDelta, ThinkingDelta, ToolCallStart
from tests.engine.prompt.call_forms import BY_FORM, Speech, dsml
from tests.engine.prompt.replies import Reply, Setup, join

FORMS = [BY_FORM["deepseek_v32"], BY_FORM["deepseek_v4"], BY_FORM["deepseek_v41"]]
each = pytest.mark.parametrize("speech", FORMS, ids=lambda speech: speech.form)
RUN = ToolSpec("run", "", {"properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}})


def setup(speech: Speech, cut: bool = True) -> Setup:
    return speech.setup(cut=cut)._replace(tools=(RUN,))


@each
@pytest.mark.parametrize("command", ["ls 2>&1", "ls 2>&1 </", "a < b", "</｜", "x｜DSML", "1>&2 <"])
def test_a_closer_glued_to_the_value_stays_outside(speech: Speech, command: str) -> None:
    text = speech.call("run", cmd=command, n=5)
    reply = setup(speech).parse(text)
    assert [(call.arguments, call.complete) for call in reply.calls] == [({"cmd": command, "n": 5}, True)]
    assert reply.content == ""
    # As tokens of a real vocabulary: `</` is glued to what stands before it, the mark is a token of its own.
    pieces = [(part, part == "｜DSML｜") for part in _tokens(text)]
    for native in (frozenset(), speech.markers):
        assert join(setup(speech).events(pieces, frozenset(native))) == reply


def _tokens(text: str) -> list[str]:
    parts = text.split("｜DSML｜")
    between = [piece for part in parts for piece in (part, "｜DSML｜")]
    return [piece for piece in between[:-1] if piece]


@each
def test_markup_is_never_shown_and_the_call_comes_once(speech: Speech) -> None:
    text = "plan</think>I look.\n\n" + speech.call("run", cmd="ls 2>&1", n=5)
    for pieces in ([text], list(text), _tokens(text)):
        parser = ReplyParser(speech.form, (RUN,), thinking_open=True)
        events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
        shown = [event.text for event in events if isinstance(event, TextDelta | ThinkingDelta)]
        assert "".join(shown) == "planI look."
        assert sum(isinstance(event, ToolCallStart) for event in events) == parser.calls == 1


@pytest.mark.parametrize("spelled", [dsml("function_calls"), dsml("tool_calls"), dsml("calls", " ")])
@each
def test_each_version_reads_the_spelling_of_the_others(speech: Speech, spelled: Any) -> None:
    text = spelled([("run", {"cmd": "a"}), ("run", {"n": 1})])
    reply = setup(speech).parse(text)
    assert [call.arguments for call in reply.calls] == [{"cmd": "a"}, {"n": 1}]
    assert reply.content == ""


def value(string: str, text: str, kind: dict[str, Any]) -> Any:
    tool = ToolSpec("run", "", {"properties": {"v": kind}})
    body = f'<｜DSML｜invoke name="run">\n<｜DSML｜parameter name="v"{string}>{text}</｜DSML｜parameter>\n'
    whole = f"<｜DSML｜tool_calls>\n{body}</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    (call,) = Setup("deepseek_v4", (tool,)).parse(whole, splits=20).calls
    return call.arguments["v"]


@pytest.mark.parametrize(
    ("string", "text", "kind", "expected"),
    [
        (' string="true"', "90", {"type": "string"}, "90"),
        (' string="true"', "90", {}, "90"),
        (' string="true"', '["a"]', {}, '["a"]'),
        (' string="true"', "90", {"type": "integer"}, 90),  # the schema knows better
        (' string="false"', "90", {"type": "string"}, "90"),
        (' string="false"', "90", {}, 90),
        (' string="false"', "null", {}, None),
        (' string="false"', '{"a": [1, 2.5]}', {"type": "object"}, {"a": [1, 2.5]}),
        (' string="false"', "2026-01-15", {"type": "integer"}, "2026-01-15"),
        (' string="false"', '"quoted"', {}, "quoted"),
        ("", "90", {"type": "integer"}, 90),
        ("", "90", {"type": "string"}, "90"),
        (' string="true"', " \n two \n", {"type": "string"}, " \n two \n"),
    ],
)
def test_types_come_from_the_form_and_the_schema(
    string: str, text: str, kind: dict[str, Any], expected: Any
) -> None:
    found = value(string, text, kind)
    assert found == expected
    assert type(found) is type(expected)


def test_a_file_about_this_form_survives() -> None:
    content = 'Use <｜DSML｜parameter name="x" string="true"> and </｜DSML｜parameter> like this.'
    speech = BY_FORM["deepseek_v4"]
    reply = speech.setup().parse(speech.call("write_file", path="a", content=content))
    assert [call.arguments for call in reply.calls] == [{"path": "a", "content": content}]


def test_markup_of_ordinary_tokens_is_text() -> None:
    speech = BY_FORM["deepseek_v4"]
    text = speech.call("run", cmd="ls")
    assert join(setup(speech).events([(text, False)], speech.markers)) == Reply("", text, ())


def test_a_call_inside_thinking() -> None:
    speech = BY_FORM["deepseek_v32"]
    pieces = [("so:\n\n", False)]
    pieces += [(part, part in speech.markers) for part in _tokens(speech.call("run", cmd="ls"))]
    reply = join(setup(speech)._replace(thinking_open=True).events(pieces, speech.markers))
    assert reply.thinking == "so:"
    assert [call.arguments for call in reply.calls] == [{"cmd": "ls"}]
