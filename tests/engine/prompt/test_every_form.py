"""The collected faults in every form: each reply is fed whole, by character, by token, at random places."""

from __future__ import annotations

from typing import Any

import pytest

from ftagent.engine.prompt.form_registry import FORMS
from ftagent.events import ToolCallDelta, ToolCallStart
from tests.engine.prompt.call_forms import BY_FORM, SPEECHES, Speech
from tests.engine.prompt.replies import Reply, join

each = pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.form)


def only_call(reply: Reply) -> Any:
    assert len(reply.calls) == 1, reply
    assert reply.calls[0].complete
    return reply.calls[0].arguments


def test_every_known_form_is_tested() -> None:
    assert {speech.form for speech in SPEECHES} == set(FORMS) - {"plain"}


VALUES = (
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
    "null",
    "007",
    '["a"]',
    '{"name": "find"}',
    "`</parameter>` and </arg_value> x",
    "to=functions.find",
)


@each
@pytest.mark.parametrize("value", VALUES)
def test_string_values_keep_every_character(speech: Speech, value: str) -> None:
    reply = speech.setup().parse(speech.call("write_file", path="a", content=value), splits=40)
    assert only_call(reply) == {"path": "a", "content": value}
    assert reply.content == ""


@each
def test_values_have_the_types_of_the_schema(speech: Speech) -> None:
    text = speech.call("set_timer", seconds=90, loop=True, label="007")
    assert only_call(speech.setup().parse(text)) == {"seconds": 90, "loop": True, "label": "007"}


@each
def test_an_odd_scalar_keeps_the_call(speech: Speech) -> None:
    text = speech.call("find", q="x", limit="2026-01-15")
    assert only_call(speech.setup().parse(text)) == {"q": "x", "limit": "2026-01-15"}


@each
def test_thinking_a_sentence_and_a_call(speech: Speech) -> None:
    call = speech.call("write_file", content="x = 1", path="a.py")
    text = speech.thinks("plan") + speech.words("First I look.") + call
    reply = speech.setup().parse(text)
    assert reply.thinking == "plan"
    assert reply.content == ("" if speech.form == "llama3" else "First I look.")
    assert only_call(reply) == {"content": "x = 1", "path": "a.py"}


@each
def test_parallel_calls_stay_apart(speech: Speech) -> None:
    if not speech.parallel:
        pytest.skip("one call a reply in this form")
    text = speech.calls([("find", {"q": q, "limit": 1}) for q in ("a", "b", "c")])
    events = speech.setup().events([(text, False)])
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [start.index for start in starts] == [0, 1, 2]
    assert len({start.id for start in starts}) == 3
    reply = speech.setup().parse(text)
    assert [call.arguments for call in reply.calls] == [{"q": q, "limit": 1} for q in ("a", "b", "c")]
    assert reply.content == ""


@each
def test_a_whole_call_in_one_delta(speech: Speech) -> None:
    events = speech.setup().events([(speech.call("find", q="a b", limit=3), False)])
    assert only_call(join(events)) == {"q": "a b", "limit": 3}


@each
def test_no_parameters_give_an_empty_object(speech: Speech) -> None:
    reply = speech.setup().parse(speech.call("ping"))
    assert [(call.name, call.text, call.complete) for call in reply.calls] == [("ping", "{}", True)]
    assert reply.content == ""


@each
def test_without_tools_calls_are_text(speech: Speech) -> None:
    if speech.form == "harmony":
        pytest.skip("a header is no text in this form")
    text = speech.call("find", q="a")
    assert speech.setup()._replace(tools=()).parse(text) == Reply("", text, ())


@each
def test_the_end_of_a_turn_completes_what_lacks_only_its_closers(speech: Speech) -> None:
    whole = speech.call("find", q="abc", limit=3)
    for end in range(whole.index("limit") + 9, len(whole)):
        reply = speech.setup(cut=False).parse(whole[:end], splits=3)
        assert [call.complete for call in reply.calls] == [True]
        assert reply.calls[0].arguments["q"] == "abc"


@each
def test_a_cut_call_is_never_complete_too_early(speech: Speech) -> None:
    whole = speech.call("write_file", path="a.py", content="print(1)\nprint(2)")
    arguments = {"path": "a.py", "content": "print(1)\nprint(2)"}
    for end in range(len(whole)):
        for call in speech.setup().parse(whole[:end], splits=2).calls:
            assert call.name == "write_file"
            if call.complete:
                assert call.arguments == arguments


@each
def test_long_strings_stream(speech: Speech) -> None:
    whole = speech.call("write_file", content="one two three")
    pieces = [
        (whole[: whole.index("one ") + 4], False),
        ("two ", False),
        (whole[whole.index("three") :], False),
    ]
    sent = [event.arguments for event in speech.setup().events(pieces) if isinstance(event, ToolCallDelta)]
    assert any(text.endswith("two ") for text in sent)


@each
def test_words_flow_at_once(speech: Speech) -> None:
    if speech.form == "harmony":
        pytest.skip("words have a header first")
    assert speech.setup().parse("Hello a < b & 2 > 1 {x} [1]\n\n    code()\n") == Reply(
        "", "Hello a < b & 2 > 1 {x} [1]\n\n    code()\n", ()
    )


# ---- markers where they do not belong

CLOSERS = {
    "qwen3": "</tool_call>",
    "qwen3_5": "</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁call▁end｜>",
    "deepseek_v32": "</｜DSML｜function_calls>",
    "deepseek_v4": "</｜DSML｜tool_calls>",
    "deepseek_v41": "</｜DSML｜ calls>",
    "glm4": "</tool_call>",
    "glm5": "</tool_call>",
    "minimax_m2": "</minimax:tool_call>",
    "harmony": "<|end|>",
    "mistral": "[/THINK]",
    "llama3": "</think>",
}


@each
def test_stray_closers_lose_nothing(speech: Speech) -> None:
    closer, setup = CLOSERS[speech.form], speech.setup(cut=False)
    assert setup.parse(f"Done.{closer}") == Reply("", "Done.", ())
    assert setup.parse(closer) == Reply("", "", ())
    assert setup.parse(f"{closer}Done.") == Reply("", "Done.", ())
    call = speech.call("find", q="a", limit=1)
    reply = setup.parse(call + closer)
    assert reply.content == ""
    assert only_call(reply) == {"q": "a", "limit": 1}


OUTER = {
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v32": ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
    "deepseek_v4": ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"),
    "deepseek_v41": ("<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>"),
    "minimax_m2": ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
}


@pytest.mark.parametrize("speech", [s for s in SPEECHES if s.form in OUTER], ids=lambda speech: speech.form)
@pytest.mark.parametrize("kept", [(False, False), (False, True), (True, False)])
def test_a_call_whose_outer_markers_were_left_out(speech: Speech, kept: tuple[bool, bool]) -> None:
    opens, closes = OUTER[speech.form]
    inner = speech.call("find", q="a b", limit=3).removeprefix(opens).removesuffix(closes)
    whole = f"Looking.\n\n{opens if kept[0] else ''}{inner}{closes if kept[1] else ''}"
    reply = speech.setup(cut=False).parse(whole)
    assert reply.content == "Looking."
    assert only_call(reply) == {"q": "a b", "limit": 3}


@each
def test_markers_of_ordinary_tokens_stay_in_thinking(speech: Speech) -> None:
    """A vocabulary that has the markers as tokens: only those count."""
    call = speech.call("ping")
    closer = "<|end|>" if speech.form == "harmony" else "[/THINK]" if speech.form == "mistral" else "</think>"
    pieces = [(f"I close with `{closer}`, I call with {call} later.", False), (closer, True), ("Yes.", False)]
    markers = speech.markers | {"<think>", "</think>"}
    if speech.form == "harmony":
        pieces[2:] = [("<|start|>", True), ("assistant", False), ("<|channel|>", True), ("final", False)]
        pieces += [("<|message|>", True), ("Yes.", False)]
    reply = join(speech.setup(thinking_open=True).events(pieces, markers))
    assert reply.thinking == pieces[0][0]
    assert (reply.content, reply.calls) == ("Yes.", ())


def test_a_second_object_of_arguments_is_no_part_of_the_first() -> None:
    call = '{"name": "find", "arguments": {"q": "a"}, "arguments": {"q": "b"}, "id": 1, "why": "c"}'
    reply = BY_FORM["qwen3"].setup(cut=False).parse(f"<tool_call>{call}")
    assert only_call(reply) == {"q": "a"}
    assert reply.content == '"arguments": {"q":"b"}, "why": "c"'
