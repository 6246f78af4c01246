"""Reply forms as tables: which marker, seen in which state, does what.

A form is data. `parsers.ReplyParser` is the only reader of these tables, and it knows no model family: a new
form is a new table (see `families`). Nothing here knows tokens, events or JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    "header",  # a message's header begins or goes on; if none follows, it was text
    "message",  # the header is complete: it says what the message is (see `headers`)
]

Condition = Literal[
    "native",  # the marker is one added token of this vocabulary, or holds one, and came as that token
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
    "arguments",  # before a call's arguments; text that no rule reads is the call's one value as it is
    "header",  # words of a message's header
]


class Rule(NamedTuple):
    """The marker `opens`, or `opens` + a name + `closes`, performs `action` and leads to state `to`.

    A line break in `closes` stands for any white space, or none. `named`: a name without white space follows,
    and nothing closes it. `followed`: the rule holds only if, after white space, one of these strings comes
    next; "" is the end of the reply. `pairs`: the closer stays text when an earlier `pairs` stayed text.
    """

    opens: str
    action: Action
    to: str
    closes: str = ""
    when: tuple[Condition, ...] = ()
    followed: tuple[str, ...] = ()
    pairs: str = ""
    named: bool = False


class State(NamedTuple):
    """Rules, tried in order; text between markers goes to `sink`; a complete JSON object, or text where
    arguments must stand, leads to `then`."""

    sink: Sink
    rules: tuple[Rule, ...]
    then: str = ""


class Spelling(NamedTuple):
    """How a call is written exactly as the templates write it: what a grammar has to enforce.

    `opens` head name `after_name` arguments `tail` `closes`. With `joins`, all calls of a reply stand between
    one `opens` and one `closes`, `joins` between two; without, `apart` stands between two whole calls; None:
    a reply holds one call at most. The arguments are one JSON object, unless there is a `parameter`: then
    they are parameters, each `parameter` name `after_parameter` value `end_parameter` `after_value`. A value
    that is not a bare string has `before_json` in place of `after_parameter`, if there is one.
    `bars`: the marker without which no call can be written; "" if there is none.
    """

    opens: str
    head: str
    after_name: str
    tail: str
    closes: str
    parameter: str = ""
    after_parameter: str = ""
    end_parameter: str = ""
    after_value: str = "\n"
    before_json: str = ""
    joins: str | None = None
    apart: str | None = "\n"
    bars: str = ""


class Thoughts(NamedTuple):
    """How thinking is enclosed, and what is written between it and a call or an `answer`."""

    opens: str = "<think>"
    closes: str = "</think>"
    resumes: str = ""
    answer: str = ""


THINK_TAGS = Thoughts()


@dataclass(frozen=True, slots=True, eq=False)
class FormTable:
    """States by name; "content" and "thinking" are where a reply may begin.

    `tokens`: markers, or parts of some, that vocabularies hold as single added tokens; so does each rule's
    `opens`. `name_key` and `argument_keys` are the members of a JSON call; `offered_only`: an object that
    names no offered tool is text. `value_layout`: a line break at each end of a value belongs to the form.
    `paragraphs`: a reply may hold several messages of one kind; they are shown as paragraphs. Without
    `spelling` calls cannot be enforced. `stops`: tokens that end a reply, where the checkpoint's own files
    do not say it. `efforts`: what the template understands as reasoning effort, ascending.
    """

    states: Mapping[str, State]
    spelling: Spelling | None = None
    tokens: tuple[str, ...] = ()
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    offered_only: bool = False
    value_layout: bool = False
    paragraphs: bool = False
    thoughts: Thoughts = THINK_TAGS
    stops: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """Everything that counts only as a token where the vocabulary has it as one."""
        opened = (rule.opens for state in self.states.values() for rule in state.rules)
        return frozenset(opened) | frozenset(self.tokens)
