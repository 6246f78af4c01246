"""Grammars of tool calls, each in the spelling of its form. Only strings in, strings out, like `lark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.forms import FormTable, Spelling
from ftagent.engine.prompt.lark import COMPACT, Grammar, Strictness, json_value
from ftagent.engine.prompt.lark_parameters import Parameters


def calls(grammar: Grammar, spelling: Spelling, body: str, *, parallel: bool) -> str:
    """One call, or any number of them from one on. `body` is a rule as `call_body` gives it."""
    call = grammar.add(f"{grammar.spell(spelling.opens)} {body}")
    if not parallel or spelling.joins is not None or spelling.apart is None:
        return call
    apart = f"{grammar.spell(spelling.apart)} " if spelling.apart else ""
    return f"{call} ({apart}{call})*"


def call_body(
    grammar: Grammar, table: FormTable, tools: Sequence[tuple[ToolSpec, Strictness]], *, parallel: bool
) -> str:
    """A call of one of `tools`, without its opening marker, up to and with its closing one.

    Where a form writes all calls between one pair of markers: all of them.
    """
    spelling = table.spelling
    assert spelling is not None
    options = [_tool(grammar, table, spelling, tool, strictness) for tool, strictness in tools]
    head = f"{grammar.spell(spelling.head)} " if spelling.head else ""
    body = grammar.add(f"{head}({' | '.join(options)})")
    if parallel and spelling.joins is not None:
        joins = f"{grammar.spell(spelling.joins)} " if spelling.joins else ""
        body = f"{body} ({joins}{body})*"
    return grammar.add(f"{body} {grammar.spell(spelling.closes)}")


def _tool(
    grammar: Grammar, table: FormTable, spelling: Spelling, tool: ToolSpec, strictness: Strictness
) -> str:
    opening = grammar.spell(tool.name + spelling.after_name)
    if spelling.parameter:
        writer = Parameters(grammar, table, spelling, tool, strictness)
        return grammar.add(f"{opening} ({' | '.join(writer.shape(shape) for shape in writer.shapes)})")
    arguments = grammar.add(_arguments(tool.parameters, strictness))
    return grammar.add(f"{opening} {arguments} {grammar.spell(spelling.tail)}")


def _arguments(parameters: Mapping[str, Any], strictness: Strictness) -> str:
    if strictness == "names":
        return json_value({"type": "object"}, COMPACT)
    schema = {"type": "object", **parameters}
    if not any(key in schema for key in ("additionalProperties", "$ref", "allOf", "anyOf", "oneOf")):
        schema["additionalProperties"] = False
    return json_value(schema, COMPACT, lenient=strictness == "lenient")
