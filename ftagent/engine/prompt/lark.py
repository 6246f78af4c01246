"""Grammars as text, in llguidance's Lark dialect: thinking, calls of offered tools, structured content.

Only strings in, strings out: knows no vocabulary but the ids of marker tokens, and no matcher.
Source: llguidance's docs/syntax.md, parametric.md and json_schema.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.arguments import type_of
from ftagent.engine.prompt.forms import Spelling
from ftagent.engine.prompt.shapes import Shape, shapes_of

Strictness = Literal["exact", "lenient", "names"]
"""`lenient` leaves out JSON Schema keywords that cannot be compiled; `names` keeps only names and types."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ",[ ]?", "key_separator": ":[ ]?"}
_PRETTY = {"whitespace_pattern": r"[ ]{1,8}|\n[ ]{0,32}"}
_MAX_BITS = 64  # parameters that one parametric rule can count
_MAX_LENGTH = 1000  # longer length limits would cost more than they protect
_GAP = r"[ \t\r\n]*"
_EXTRA_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"
_BOOLEANS = ("true", "false", "True", "False")  # Python's spelling too: templates render it


class Grammar:
    """A grammar under construction, over a vocabulary where `added` markers are single tokens."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        self._rules: list[str] = []
        self._count = 0

    def is_native(self, marker: str) -> bool:
        return marker in self._added

    def marker(self, marker: str) -> str:
        """A marker: a token id if native, else its text."""
        return f"<[{self._added[marker]}]>" if marker in self._added else literal(marker)

    def new_name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def define(self, head: str, body: str) -> None:
        """`head` is a name with its options or parameter."""
        self._rules.append(f"{head}: {body}")

    def add(self, body: str, options: str = "") -> str:
        """Define a rule of a new name; that name."""
        name = self.new_name()
        self.define(name + options, body)
        return name

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def literal(text: str) -> str:
    """A quoted string of the dialect."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


def escape(text: str) -> str:
    """A regular expression that matches `text`."""
    return re.escape(text).replace("\\\n", "\\n")


def regex(pattern: str) -> str:
    """A regular expression of the dialect: slashes escaped, those that are escaped already left."""
    return "/" + re.sub(r"\\.|/", _escape_slash, pattern.replace("\n", "\\n"), flags=re.DOTALL) + "/"


def _escape_slash(found: re.Match[str]) -> str:
    return "\\/" if found.group() == "/" else found.group()


def json_value(schema: Any, style: Mapping[str, Any], *, lenient: bool = False) -> str:
    """JSON text that satisfies `schema`."""
    document = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
    document["x-guidance"] = {**style, "lenient": True} if lenient else style
    return "%json " + json.dumps(document, default=dict)


def content_json(schema: Any) -> str:
    """Structured content: white space where JSON allows it, but never without end."""
    return json_value(schema, _PRETTY)


def thinking(grammar: Grammar, closer: str) -> str:
    """Free text up to and with the closer of the thinking block, and blank lines."""
    gap = regex("\\n{0,2}")
    if grammar.is_native(closer):
        return f"{regex('(?s:.*)')} {grammar.marker(closer)} {gap}"
    free = grammar.add(regex(f"(?s:.*){escape(closer)}"), "[lazy]")
    return f"{free} {gap}"


def calls(call: str, *, parallel: bool) -> str:
    """One call, or any number of them from one on, a newline between two."""
    return f'{call} ("\\n" {call})*' if parallel else call


def call_body(grammar: Grammar, spelling: Spelling, tools: Sequence[tuple[ToolSpec, Strictness]]) -> str:
    """A call of one of `tools`, without its opening marker, up to and with its closing one."""
    options = [_tool(grammar, spelling, tool, strictness) for tool, strictness in tools]
    tail = grammar.marker(spelling.closes)
    return grammar.add(f"{literal(spelling.head)} ({' | '.join(options)}) {tail}")


def _tool(grammar: Grammar, spelling: Spelling, tool: ToolSpec, strictness: Strictness) -> str:
    opening = literal(tool.name + spelling.after_name)
    if spelling.parameter:
        writer = _Parameters(grammar, spelling, tool, strictness)
        return grammar.add(f"{opening} ({' | '.join(writer.shape(shape) for shape in writer.shapes)})")
    arguments = grammar.add(_arguments(tool.parameters, strictness))
    return grammar.add(f"{opening} {arguments} {literal(spelling.tail)}")


def _arguments(parameters: Mapping[str, Any], strictness: Strictness) -> str:
    if strictness == "names":
        return json_value({"type": "object"}, _COMPACT)
    schema = {"type": "object", **parameters}
    if not any(key in schema for key in ("additionalProperties", "$ref", "allOf", "anyOf", "oneOf")):
        schema["additionalProperties"] = False
    return json_value(schema, _COMPACT, lenient=strictness == "lenient")


class _Parameters:
    """The parameters of one tool of an XML-like form: any order, each at most once, the required ones all."""

    def __init__(self, grammar: Grammar, spelling: Spelling, tool: ToolSpec, strictness: Strictness) -> None:
        self._grammar = grammar
        self._spelling = spelling
        self._root = tool.parameters
        self._strictness = strictness
        self.shapes = shapes_of(tool.parameters)
        names = dict.fromkeys(name for shape in self.shapes for name in shape.properties)
        self._not_text = regex(_not_in_text(spelling, names, native=grammar.is_native(spelling.closes)))

    def shape(self, shape: Shape) -> str:
        """A rule for the parameters of one alternative and the end of the call."""
        if not shape.properties and shape.extra is None:
            return literal(self._spelling.tail)  # a rule that counts nothing may not have a parameter
        ordered = sorted(shape.properties, key=lambda name: name not in shape.required)
        if len(ordered) > _MAX_BITS:
            return self._in_schema_order(shape)
        rule, required = self._grammar.new_name(), len(shape.required)
        end = literal(self._spelling.tail)
        options = [f"{end} %if is_ones([0:{required}])" if required else end]
        for bit, name in enumerate(ordered):
            body = self._parameter(name, shape.properties[name])
            options.append(f"{body} {rule}::set_bit({bit}) %if bit_clear({bit})")
        if shape.extra is not None:
            options.append(f"{self._extra(shape)} {rule}::_")
        self._grammar.define(f"{rule}::_", " | ".join(options))
        return f"{rule}::0x0"

    def _in_schema_order(self, shape: Shape) -> str:
        parts = [
            self._parameter(name, schema) + ("" if name in shape.required else "?")
            for name, schema in shape.properties.items()
        ]
        return self._grammar.add(" ".join([*parts, literal(self._spelling.tail)]))

    def _parameter(self, name: str, schema: Any) -> str:
        opening = literal(self._spelling.parameter + name + self._spelling.after_parameter)
        return self._grammar.add(f"{opening} ({self._value(schema)})")

    def _extra(self, shape: Shape) -> str:
        declared = "|".join(escape(name) for name in shape.properties)
        name = f"{regex(_EXTRA_NAME)} & ~{regex(f'(?:{declared})')}" if declared else regex(_EXTRA_NAME)
        terminal = self._grammar.new_name().upper()
        self._grammar.define(terminal, name)
        opening, after = literal(self._spelling.parameter), literal(self._spelling.after_parameter)
        return self._grammar.add(f"{opening} {terminal} {after} ({self._value(shape.extra)})")

    # ---- values, each with the closer of its parameter

    def _value(self, schema: Any) -> str:
        """Alternatives of a value: bare text, listed values, JSON."""
        value_type = type_of(schema, self._root)
        if value_type.choices is not None:
            return self._closed([literal(_spelled(choice)) for choice in value_type.choices])
        kinds = value_type.kinds
        if not kinds or kinds == ("string",):
            return self._text(schema if kinds else {}, starts=None)
        if "string" in kinds:
            structured = [kind for kind in kinds if kind in ("array", "object")]
            text = self._text({}, starts="[\\[{]" if structured else None)
            return f"{text} | {self._closed([self._json(schema, structured)])}" if structured else text
        if kinds == ("boolean",):
            return self._closed([literal(word) for word in _BOOLEANS])
        return self._closed([self._json(schema, None)])

    def _closed(self, values: Iterable[str]) -> str:
        return f"({' | '.join(values)}) {literal(self._spelling.end_parameter + chr(10))}"

    def _text(self, schema: Any, starts: str | None) -> str:
        """Bare text up to the first closer. `starts`: what its first visible character must not be.

        The closer stands on a line of its own; at once after the opener it ends an empty value.
        """
        end = escape(self._spelling.end_parameter)
        closer = self._spelling.end_parameter.lstrip()
        before = self._spelling.end_parameter.removesuffix(closer)
        terminal = self._grammar.new_name().upper()
        parts = [regex(f"(?:(?s:.*){escape(before)})?{escape(closer)}"), f"~{self._not_text}"]
        if starts is not None:
            parts.append("~" + regex(f"(?s:{_GAP}{starts}.*)"))
        limits = _text_limits(schema) if self._strictness == "exact" else []
        if limits:  # then the value ends at its first closer, fitting or not
            parts += [regex(limit + end) for limit in limits]
            parts.append("~" + regex(f"(?s:.*){end}(?s:.+)"))
        self._grammar.define(terminal, " & ".join(parts))
        return f"{self._grammar.add(terminal, '[lazy]')} {literal(chr(10))}"

    def _json(self, schema: Any, kinds: Sequence[str] | None) -> str:
        """JSON of `schema`, of certain kinds only if the schema allows others beside them."""
        if self._strictness == "names":
            allowed = kinds or type_of(schema, self._root).kinds
            return self._grammar.add(json_value({"type": list(allowed)}, _COMPACT))
        document = {"allOf": [schema, {"type": list(kinds)}]} if kinds else dict(schema)
        for key in ("$defs", "definitions"):
            if key in self._root:
                document[key] = self._root[key]
        return self._grammar.add(json_value(document, _COMPACT, lenient=self._strictness == "lenient"))


def _not_in_text(spelling: Spelling, names: Iterable[str], *, native: bool) -> str:
    """What the parser would take for the end of a value although the grammar would not: keep it out."""
    closer = escape(spelling.end_parameter.strip())
    function = escape(spelling.tail.strip())
    parameter = escape(spelling.parameter)
    follows = [parameter, function] + ([] if native else [escape(spelling.closes), escape(spelling.opens)])
    early = [f"(?s:.*){closer}{_GAP}(?:{'|'.join(follows)})(?s:.*)"]
    if not native:
        early.append(f"(?s:.*){function}{_GAP}{escape(spelling.closes)}(?s:.*)")
        early.append(f"(?s:.*){escape(spelling.closes)}{_GAP}{escape(spelling.opens)}(?s:.*)")
    declared = "|".join(escape(name) for name in names)
    if declared:
        early.append(f"(?s:.*\\n)?{parameter}(?:{declared})>(?s:.*)")
    return "|".join(f"(?:{pattern})" for pattern in early)


def _text_limits(schema: Any) -> list[str]:
    """Expressions for the length and the pattern of a string, where they are cheap to enforce."""
    limits: list[str] = []
    if not isinstance(schema, Mapping):
        return limits
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    least = least if isinstance(least, int) else 0
    if isinstance(most, int) and least <= most <= _MAX_LENGTH:
        limits.append(f"(?s:.{{{least},{most}}})")
    elif 0 < least <= _MAX_LENGTH:
        limits.append(f"(?s:.{{{least},}})")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        head = "" if pattern.startswith("^") else "(?s:.*)"
        tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        # JSON Schema means ASCII digits and letters.
        inner = pattern.removeprefix("^").replace("\\d", "[0-9]").replace("\\w", "[A-Za-z0-9_]")
        limits.append(f"{head}(?:{inner.removesuffix('$') if not tail else inner}){tail}")
    return limits


def _spelled(choice: Any) -> str:
    """A listed value as the form writes it."""
    return choice if isinstance(choice, str) else json.dumps(choice, ensure_ascii=False)
