"""Reply forms as tables: which marker, seen in which state, does what.

A form is data. `parsers.ReplyParser` is the only reader of these tables, and it knows no model family: a new
form is a new table. Nothing here knows tokens, events or JSON Schema.

Sources: the chat templates of Qwen3, Qwen3-Coder and Qwen3.5 (both spellings of a call stand between
`<tool_call>` tags).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from ftagent.errors import ConfigError

ReplyForm = Literal["qwen3", "qwen3_5", "plain"]

Action = Literal[
    "switch",  # only the state changes: thinking or content begins
    "drop",  # a marker that belongs nowhere, or layout: consumed without a trace
    "literal",  # the marker is a word the model writes about, so it stays text
    "open",  # a call may begin; if none follows, the marker was text
    "call",  # a call of the captured name begins
    "end_call",
    "parameter",  # the captured parameter begins; its type comes from the tool's schema
    "text_parameter",  # the same, but the form itself says that the value is a string
    "json_parameter",  # the same, but the form itself says that the value is JSON
    "end_parameter",
    "json_call",  # a JSON object with the keys "name" and "arguments" begins
    "json_arguments",  # a JSON object that is the arguments themselves begins
]

Condition = Literal[
    "native",  # the marker is one added token of this vocabulary and came as that token
    "start",  # only white space stands before it in this block
    "line_start",  # only white space stands before it on its line
    "offered",  # the captured name is the name of an offered tool
    "tools",  # some tool is offered
    "next_parameter",  # at a line start, and the captured name is a declared parameter not given yet
]

Sink = Literal[
    "content",
    "thinking",
    "value",  # the value of a parameter
    "stray",  # text inside a call but outside its values: shown as content after the call
    "blank",  # only white space may stand here; anything else means that no call began
    "leave",  # only white space may stand here; anything else is content
    "json",
]


class Rule(NamedTuple):
    """The marker `opens`, or `opens` + a name + `closes`, performs `action` and leads to state `to`.

    `followed`: the rule holds only if, after white space, one of these strings comes next; "" is the end of
    the reply. `pairs`: the closer stays text when an earlier `pairs` stayed text.
    """

    opens: str
    action: Action
    to: str
    closes: str = ""
    when: tuple[Condition, ...] = ()
    followed: tuple[str, ...] = ()
    pairs: str = ""


class State(NamedTuple):
    """Rules, tried in order; text between markers goes to `sink`; a complete JSON object leads to `then`."""

    sink: Sink
    rules: tuple[Rule, ...]
    then: str = ""


class Spelling(NamedTuple):
    """How a call is written exactly as the templates write it: what a grammar has to enforce.

    `opens` head name `after_name` arguments `tail` `closes`. The arguments are one JSON object, unless there
    is a `parameter`: then they are parameters, each `parameter` name `after_parameter` value
    `end_parameter` and a newline.
    """

    opens: str
    head: str
    after_name: str
    tail: str
    closes: str
    parameter: str = ""
    after_parameter: str = ""
    end_parameter: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class FormTable:
    """States by name; "content" and "thinking" are where a reply may begin.

    `name_key` and `argument_keys` are the members of a JSON call. Without `spelling` calls cannot be
    enforced.
    """

    states: Mapping[str, State]
    spelling: Spelling | None = None
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")


_THINKING = (
    Rule("</think>", "switch", "content"),
    Rule("<think>", "drop", "thinking", when=("start",)),
)
_CONTENT = (
    Rule("<think>", "switch", "thinking", when=("start",)),
    Rule("<think>", "switch", "thinking", when=("native", "line_start")),
    Rule("<think>", "switch", "thinking", when=("line_start",), followed=("",)),
    Rule("<think>", "literal", "content"),
    Rule("</think>", "drop", "content", pairs="<think>"),
)

_OPEN = Rule("<tool_call>", "open", "call", when=("tools",))
_CLOSE = Rule("</tool_call>", "end_call", "content")
_FUNCTION = Rule("<function=", "call", "body", closes=">")
_PARAMETER = Rule("<parameter=", "parameter", "value", closes=">")

# Small models leave out closers. A closer inside a value counts only where the call can go on after it, so
# that a file about this very form survives.
_VALUE = (
    Rule(
        "</parameter>",
        "end_parameter",
        "body",
        followed=("<parameter=", "</function>", "</tool_call>", "<tool_call>", ""),
    ),
    Rule("</function>", "end_call", "after", followed=("</tool_call>", "")),
    Rule("</tool_call>", "end_call", "content", followed=("<tool_call>", "")),
    Rule("<parameter=", "parameter", "value", closes=">", when=("next_parameter",)),
)


_JSON_SPELLING = Spelling("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n", "</tool_call>")
_XML_SPELLING = Spelling(
    "<tool_call>",
    "\n<function=",
    ">\n",
    "</function>\n",
    "</tool_call>",
    parameter="<parameter=",
    after_parameter=">\n",
    end_parameter="\n</parameter>",
)


def _qwen(spelling: Spelling, *, bare_function: bool) -> FormTable:
    """Either spelling is read whichever was taught; a bare <function=...> only where it was taught."""
    bare = (_FUNCTION._replace(when=("offered",)),) if bare_function else ()
    content = (
        *_CONTENT,
        _OPEN,
        Rule("<tool_call>", "literal", "content"),
        Rule("</tool_call>", "drop", "content", pairs="<tool_call>"),
        *bare,
    )
    json_next = (Rule("{", "json_call", "json"), Rule("[", "drop", "call"))
    between = tuple(Rule(mark, "drop", "after") for mark in ("}", "]", ","))
    states = {
        "content": State("content", content),
        "thinking": State("thinking", (*_THINKING, _OPEN._replace(when=("native", "tools")))),
        "call": State("blank", (_FUNCTION, *json_next)),
        "body": State(
            "stray",
            (
                _PARAMETER,
                Rule("</function>", "end_call", "after"),
                _CLOSE,
                _FUNCTION,
                _OPEN,
                Rule("</parameter>", "drop", "body"),
            ),
        ),
        "value": State("value", _VALUE),
        "json": State("json", (_CLOSE, _OPEN), then="after"),
        "after": State("leave", (_CLOSE, _FUNCTION, _OPEN, json_next[0], *between)),
    }
    return FormTable(MappingProxyType(states), spelling)


FORMS: Mapping[str, FormTable] = MappingProxyType(
    {
        "qwen3": _qwen(_JSON_SPELLING, bare_function=False),
        "qwen3_5": _qwen(_XML_SPELLING, bare_function=True),
        "plain": FormTable(
            MappingProxyType(
                {"content": State("content", _CONTENT), "thinking": State("thinking", _THINKING)}
            )
        ),
    }
)


def detect_form(chat_template: str) -> ReplyForm:
    """The form that a chat template teaches. A template without tool calls is "plain"."""
    if "<tool_call>" not in chat_template:
        return "plain"
    return "qwen3_5" if "<function=" in chat_template else "qwen3"


def form_table(form: ReplyForm | FormTable) -> FormTable:
    """The table of a form. A table passes through. Raises ConfigError for an unknown name."""
    if isinstance(form, FormTable):
        return form
    if form not in FORMS:
        raise ConfigError(f"unknown reply form {form!r}: known are {', '.join(sorted(FORMS))}")
    return FORMS[form]
