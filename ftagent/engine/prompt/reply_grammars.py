"""Grammars of whole replies and of single calls, compiled as strictly as llguidance can.

A tool whose schema cannot be compiled is held to a looser grammar, with a warning: first without the keywords
that llguidance lacks, then to the names and types only. Its name is enforced in any case.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llguidance import LLMatcher

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt import lark, lark_calls
from ftagent.engine.prompt.forms import FormTable, Thoughts
from ftagent.engine.prompt.matchers import Compiler, GrammarError, Running
from ftagent.errors import BadRequest

log = logging.getLogger(__name__)

_LOOSER: tuple[lark.Strictness, ...] = ("lenient", "names")
_WHOLE_OBJECT = (
    *("if", "not", "dependentRequired", "dependentSchemas", "dependencies"),
    *("minProperties", "maxProperties", "patternProperties", "propertyNames"),
)
_Graded = Sequence[tuple[ToolSpec, lark.Strictness]]


class Calls(NamedTuple):
    """The calls that a reply may hold, in a form that has a spelling for them."""

    table: FormTable
    tools: Sequence[ToolSpec]
    parallel: bool

    @property
    def key(self) -> str:
        tools = [(tool.name, tool.parameters) for tool in self.tools]
        return json.dumps([self.table.spelling, tools, self.parallel], default=dict)


class Thinking(NamedTuple):
    """`open`: the reply begins inside a thinking block. `may_open`: it may begin with one of its own."""

    open: bool
    may_open: bool
    thoughts: Thoughts


def start_call(compiler: Compiler, calls: Calls) -> Running:
    """A match of one call, from right after its opening marker to its closing one."""

    def write(graded: _Graded) -> str:
        grammar = _grammar(compiler, calls.table)
        return grammar.text(_body(grammar, calls, graded))

    return compiler.start(f"call {calls.key}", lambda: _compile_calls(compiler, calls, write))


def start_calls(compiler: Compiler, thinking: Thinking, calls: Calls) -> Running:
    """A match of a whole reply that is nothing but calls, after thinking."""

    def write(graded: _Graded) -> str:
        grammar = _grammar(compiler, calls.table)
        return grammar.text(_after_thinking(grammar, thinking, _calls(grammar, calls, graded)))

    key = json.dumps(["calls", thinking, calls.key])
    return compiler.start(key, lambda: _compile_calls(compiler, calls, write))


def start_structured(
    compiler: Compiler, table: FormTable, thinking: Thinking, calls: Calls | None, schema: Any
) -> Running:
    """A match of a whole reply that is JSON of `schema`, or calls if there are any, after thinking.

    Raises BadRequest when the schema cannot be compiled.
    """

    def write(graded: _Graded) -> str:
        grammar = _grammar(compiler, table)
        body = grammar.add(_answer(grammar, thinking, lark.content_json(schema)))
        if calls is not None:
            body = grammar.add(f"{body} | {_calls(grammar, calls, graded)}")
        return grammar.text(_after_thinking(grammar, thinking, body))

    def build() -> LLMatcher:
        tools = [] if calls is None else _grade(compiler, calls)
        try:
            return compiler.compile(write(tools))
        except GrammarError as error:
            raise BadRequest(f"json_schema cannot be enforced: {error}", field="json_schema") from None

    return compiler.start(json.dumps(["json", thinking, calls and calls.key, schema]), build)


def start_words(compiler: Compiler, table: FormTable, thinking: Thinking) -> Running:
    """A match of a reply without calls, for forms that say before an answer that it is one."""

    def build() -> LLMatcher:
        grammar = _grammar(compiler, table)
        body = grammar.add(_answer(grammar, thinking, lark.regex("(?s:.*)")))
        return compiler.compile(grammar.text(_after_thinking(grammar, thinking, body)))

    return compiler.start(json.dumps(["words", thinking]), build)


def _grammar(compiler: Compiler, table: FormTable) -> lark.Grammar:
    return lark.Grammar({text: compiler.added[text] for text in table.words if text in compiler.added})


def _answer(grammar: lark.Grammar, thinking: Thinking, body: str) -> str:
    begins = thinking.thoughts.answer
    return f"{grammar.spell(begins)} {grammar.add(body)}" if begins else body


def _body(grammar: lark.Grammar, calls: Calls, graded: _Graded) -> str:
    return lark_calls.call_body(grammar, calls.table, graded, parallel=calls.parallel)


def _calls(grammar: lark.Grammar, calls: Calls, graded: _Graded) -> str:
    spelling = calls.table.spelling
    assert spelling is not None
    body = _body(grammar, calls, graded)
    return grammar.add(lark_calls.calls(grammar, spelling, body, parallel=calls.parallel))


def _after_thinking(grammar: lark.Grammar, thinking: Thinking, body: str) -> str:
    thoughts = thinking.thoughts
    if thinking.open:
        return f"{lark.thinking(grammar, thoughts)} {body}"
    if thinking.may_open and grammar.is_native(thoughts.opens) and grammar.is_native(thoughts.closes):
        return f"{grammar.spell(thoughts.opens)} {lark.thinking(grammar, thoughts)} {body} | {body}"
    return body


def _compile_calls(compiler: Compiler, calls: Calls, write: Callable[[_Graded], str]) -> LLMatcher:
    """The strictest grammar that compiles."""
    if calls.table.spelling is not None and calls.table.spelling.parameter:
        _warn_of_whole_object_rules(calls.tools)
    try:
        return compiler.compile(write([(tool, "exact") for tool in calls.tools]))
    except GrammarError:
        pass
    try:
        return compiler.compile(write(_grade(compiler, calls)))
    except GrammarError as error:
        log.warning("the tools' grammar is too large (%s); only names and types are enforced", error)
        return compiler.compile(write([(tool, "names") for tool in calls.tools]))


def _warn_of_whole_object_rules(tools: Sequence[ToolSpec]) -> None:
    """Forms that write parameters one by one have no place for rules about all of them together."""
    for tool in tools:
        if found := [keyword for keyword in _WHOLE_OBJECT if keyword in tool.parameters]:
            log.warning("schema of tool %s: not enforced at its top level: %s", tool.name, ", ".join(found))


def _grade(compiler: Compiler, calls: Calls) -> _Graded:
    """Each tool with the strictest grammar that compiles for it alone."""
    return [(tool, _strictness(compiler, calls.table, tool)) for tool in calls.tools]


def _strictness(compiler: Compiler, table: FormTable, tool: ToolSpec) -> lark.Strictness:
    reason = _refusal(compiler, table, tool, "exact")
    if not reason:
        return "exact"
    for looser in _LOOSER:
        if looser == "names" or not _refusal(compiler, table, tool, looser):
            log.warning("schema of tool %s is enforced loosely (%s): %s", tool.name, looser, reason)
            return looser
    return "names"


def _refusal(compiler: Compiler, table: FormTable, tool: ToolSpec, strictness: lark.Strictness) -> str:
    """Why the tool's grammar does not compile; "" if it does."""
    grammar = _grammar(compiler, table)
    text = grammar.text(_body(grammar, Calls(table, [tool], parallel=False), [(tool, strictness)]))
    try:
        compiler.compile(text)
    except GrammarError as error:
        return str(error)
    return ""
