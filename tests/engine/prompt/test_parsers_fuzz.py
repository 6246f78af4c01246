"""Random replies: nothing is thrown, cuts do not matter, and no word is lost."""

from __future__ import annotations

import itertools
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.form_registry import FORMS as KNOWN
from ftagent.engine.prompt.form_registry import ReplyForm
from ftagent.engine.prompt.forms import FormTable, Rule, State
from tests.engine.prompt.call_forms import BY_FORM
from tests.engine.prompt.replies import MARKERS, TOOLS, Reply, Setup, join

COMMON = ("{", "}", "[", "]", ",", '"', "\\", "<", ">", "\n", "\n\n", " ", '{"name": ', '"ping"', '"}}')
QWEN = (
    *sorted(MARKERS),
    "<function=find>",
    "<function=nobody>",
    "</function>",
    "<parameter=q>",
    "<parameter=limit>",
    "</parameter>",
    '{"name": "find", "arguments": {"q": "',
)
DSML = (
    *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜function_calls>", "<｜DSML｜ calls>"),
    *('<｜DSML｜invoke name="find">', "</｜DSML｜invoke>", "</｜DSML｜parameter>", "<｜DSML｜", "</"),
    *('<｜DSML｜parameter name="q" string="true">', '<｜DSML｜parameter name="limit" string="false">'),
)
DEEPSEEK = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "function", "find", "```json\n", "```", '{"q": "'),
)
GLM = (
    *("<tool_call>find\n", "<tool_call>find", "</tool_call>", "<arg_key>q</arg_key>\n<arg_value>"),
    *("<arg_key>limit</arg_key><arg_value>", "</arg_value>", "<arg_key>", "</arg_key>", "<arg_value>"),
)
MINIMAX = (
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="find">', "<invoke name=nobody>"),
    *("</invoke>", '<parameter name="q">', '<parameter name="limit">', "</parameter>"),
)
HARMONY = (
    *("<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>"),
    *("<|start|>assistant", "<|end|>", "<|call|>", "<|return|>", "<|message|>", "<|channel|>", "<|start|>"),
    *(
        "<|channel|>commentary to=functions.find <|constrain|>json<|message|>",
        " to=functions.find",
        '{"q": "',
    ),
)
LLAMA = (
    "<|python_tag|>",
    '{"name": "find", "parameters": {"q": "',
    '{"name": "Alice", "parameters": 1',
    "; ",
)
MISTRAL = ("[TOOL_CALLS]", "[TOOL_CALLS]find[ARGS]", "[ARGS]", "[THINK]", "[/THINK]", '{"q": "')
THINK = ("<think>", "</think>")
FRAGMENTS: dict[ReplyForm, tuple[str, ...]] = {
    "qwen3": QWEN,
    "qwen3_5": QWEN,
    "plain": QWEN,
    "deepseek_v3": DEEPSEEK + THINK,
    "deepseek_v31": DEEPSEEK + THINK,
    "deepseek_v32": DSML + THINK,
    "deepseek_v4": DSML + THINK,
    "deepseek_v41": DSML + THINK,
    "glm4": GLM + THINK,
    "glm5": GLM + THINK,
    "minimax_m2": MINIMAX + THINK,
    "harmony": HARMONY,
    "llama3": LLAMA + THINK,
    "mistral": MISTRAL,
}
FORMS = st.sampled_from(sorted(FRAGMENTS))


@st.composite
def _spoken(draw: st.DrawFn) -> tuple[ReplyForm, list[str]]:
    """A form, and fragments of it with words between them."""
    form = draw(FORMS)
    fragment = st.sampled_from(FRAGMENTS[form]) | st.sampled_from(COMMON) | st.just("WORD")
    return form, draw(st.lists(fragment, max_size=16))


SPOKEN = _spoken()


def _reply(parts: list[str]) -> str:
    """The parts joined, each WORD made different from all others."""
    return "".join(f"w{index}w" if part == "WORD" else part for index, part in enumerate(parts))


def _output(reply: Reply) -> str:
    calls = (f"\n{call.name} {call.text}" for call in reply.calls)
    return "".join([reply.thinking, "\n", reply.content, *calls])


def test_every_form_is_here() -> None:
    assert set(FRAGMENTS) == set(KNOWN)


@given(SPOKEN, st.booleans(), st.booleans(), st.data())
@settings(max_examples=700, deadline=None)
def test_cuts_do_not_matter(
    spoken: tuple[ReplyForm, list[str]], thinking: bool, cut: bool, data: st.DataObject
) -> None:
    form, parts = spoken
    text = _reply(parts)
    setup = Setup(form, TOOLS, thinking, cut)
    whole = join(setup.events([(text, False)]))
    assert join(setup.events([(char, False) for char in text])) == whole
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6))), len(text)]
    assert join(setup.events([(text[a:b], False) for a, b in itertools.pairwise(edges)])) == whole
    for call in whole.calls:
        if call.complete:
            assert isinstance(call.arguments, dict)


@given(SPOKEN, st.booleans())
@settings(max_examples=700, deadline=None)
def test_no_word_is_lost_or_doubled(spoken: tuple[ReplyForm, list[str]], thinking: bool) -> None:
    """The model ended its turn, so that nothing is left out for being cut."""
    form, parts = spoken
    text = _reply(parts)
    output = _output(join(Setup(form, TOOLS, thinking, cut=False).events([(text, False)])))
    for word in re.findall(r"w\d+w", text):
        assert output.count(word) == 1, (word, output)


@given(SPOKEN, st.booleans())
@settings(max_examples=500, deadline=None)
def test_native_markers_never_come_from_text(spoken: tuple[ReplyForm, list[str]], thinking: bool) -> None:
    form, parts = spoken
    text = _reply(parts)
    markers = BY_FORM[form].markers | MARKERS if form in BY_FORM else MARKERS
    reply = join(Setup(form, TOOLS, thinking).events([(text, False)], markers | {"[THINK]", "[/THINK]"}))
    if thinking:  # its closer never comes as a token
        assert reply.content == ""
        assert reply.calls == ()
        assert reply.thinking.split() == text.split()


@given(st.text(max_size=60), FORMS, st.booleans())
@settings(max_examples=400, deadline=None)
def test_text_without_markers_comes_out_whole(text: str, form: ReplyForm, thinking: bool) -> None:
    text = text.replace("<", "(").replace("[", "(")
    reply = join(Setup(form, TOOLS, thinking).events([(char, False) for char in text]))
    if thinking:  # white space around a thinking block is layout
        assert reply.thinking.strip(" \t\r\n") == text.strip(" \t\r\n")
        assert text.endswith(reply.thinking)
    else:
        assert reply.content == text


def _dsml() -> FormTable:
    """A form that is not ours yet, as a later table would state it: only rows, no code."""
    close = Rule("</｜DSML｜parameter>", "end_parameter", "invoke")
    string = Rule('<｜DSML｜parameter name="', "text_parameter", "value", closes='" string="true">')
    other = Rule('<｜DSML｜parameter name="', "json_parameter", "value", closes='" string="false">')
    invoke = Rule('<｜DSML｜invoke name="', "call", "invoke", closes='">')
    think = Rule("</think>", "switch", "content")
    return FormTable(
        {
            "content": State(
                "content", (Rule("<｜DSML｜function_calls>", "open", "calls", when=("tools",)),)
            ),
            "thinking": State("thinking", (think,)),
            "calls": State("leave", (invoke, Rule("</｜DSML｜function_calls>", "end_call", "content"))),
            "invoke": State("stray", (string, other, Rule("</｜DSML｜invoke>", "end_call", "calls"))),
            "value": State("value", (close,)),
        }
    )


def test_a_later_form_is_only_a_table() -> None:
    tools = (ToolSpec("run", "", {"properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}}),)
    text = (
        "plan\n</think>\nGo.\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="run">\n'
        '<｜DSML｜parameter name="cmd" string="true">ls 2>&1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>"
    )
    reply = Setup(_dsml(), tools, thinking_open=True).parse(text)
    assert (reply.thinking, reply.content) == ("plan", "Go.")
    assert [json.loads(call.text) for call in reply.calls] == [{"cmd": "ls 2>&1", "n": 5}]
