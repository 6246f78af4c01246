"""Grammars of calls whose parameters are written one by one, each between markers, mostly as bare text.

Only strings in, strings out, like `lark`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.arguments import type_of
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling
from ftagent.engine.prompt.lark import COMPACT, Grammar, Strictness, escape, json_value, literal, regex
from ftagent.engine.prompt.shapes import Shape, shapes_of

_MAX_BITS = 64  # parameters that one parametric rule can count
_MAX_LENGTH = 1000  # longer length limits would cost more than they protect
_GAP = r"[ \t\r\n]*"
_EXTRA_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"
_BOOLEANS = ("true", "false", "True", "False")  # Python's spelling too: templates render it
_CONTAINERS = ("array", "object")


class Parameters:
    """The parameters of one tool: in any order, each at most once, the required ones all."""

    def __init__(
        self,
        grammar: Grammar,
        table: FormTable,
        spelling: Spelling,
        tool: ToolSpec,
        strictness: Strictness,
    ) -> None:
        self._grammar = grammar
        self._spelling = spelling
        self._root = tool.parameters
        self._strictness = strictness
        self.shapes = shapes_of(tool.parameters)
        names = dict.fromkeys(name for shape in self.shapes for name in shape.properties)
        self._not_text = _not_in_text(grammar, table.states["value"].rules, names)

    def shape(self, shape: Shape) -> str:
        """A rule for the parameters of one alternative and the end of the call."""
        if not shape.properties and shape.extra is None:
            return self._end  # a rule that counts nothing may not have a parameter
        ordered = sorted(shape.properties, key=lambda name: name not in shape.required)
        if len(ordered) > _MAX_BITS:
            return self._in_schema_order(shape)
        rule, required = self._grammar.new_name(), len(shape.required)
        options = [f"{self._end} %if is_ones([0:{required}])" if required else self._end]
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
        return self._grammar.add(" ".join([*parts, self._end]))

    @property
    def _end(self) -> str:
        return self._grammar.spell(self._spelling.tail)

    def _parameter(self, name: str, schema: Any) -> str:
        head = self._spelling.parameter + name
        return self._grammar.add(self._either(lambda after: self._grammar.spell(head + after), schema))

    def _extra(self, shape: Shape) -> str:
        declared = "|".join(escape(name) for name in shape.properties)
        name = f"{regex(_EXTRA_NAME)} & ~{regex(f'(?:{declared})')}" if declared else regex(_EXTRA_NAME)
        terminal = self._grammar.new_name().upper()
        self._grammar.define(terminal, name)
        head = f"{self._grammar.spell(self._spelling.parameter)} {terminal}"
        return self._grammar.add(
            self._either(lambda after: f"{head} {self._grammar.spell(after)}", shape.extra)
        )

    def _either(self, opening: Callable[[str], str], schema: Any) -> str:
        """A parameter whose value is bare text, or of another type. `opening` takes what follows the name."""
        texts, others = self._values(schema)
        as_text, as_json = self._spelling.after_parameter, self._spelling.before_json
        kinds = [(as_text, texts), (as_json, others)] if as_json else [(as_text, texts + others)]
        return " | ".join(f"{opening(after)} ({' | '.join(values)})" for after, values in kinds if values)

    # ---- values, each with the closer of its parameter

    def _values(self, schema: Any) -> tuple[list[str], list[str]]:
        """Alternatives of a value: those that are bare text, and those of other types."""
        value_type = type_of(schema, self._root)
        marked = bool(self._spelling.before_json)  # the form says which values are text
        if value_type.choices is not None:
            choices = value_type.choices
            strings = [choice for choice in choices if marked and isinstance(choice, str)]
            rest = [choice for choice in choices if not (marked and isinstance(choice, str))]
            return self._listed(strings), self._listed(rest)
        kinds = value_type.kinds
        if not kinds:
            return [self._text({}, starts=None)], [self._closed_json({}, None)] if marked else []
        if kinds == ("string",):
            return [self._text(schema, starts=None)], []
        if "string" in kinds:
            structured = [kind for kind in kinds if kind != "string" and (marked or kind in _CONTAINERS)]
            starts = "[\\[{]" if structured and not marked else None
            return [self._text({}, starts)], [self._closed_json(schema, structured)] if structured else []
        if kinds == ("boolean",):
            return [], [self._closed(_BOOLEANS[:2] if marked else _BOOLEANS)]
        return [], [self._closed_json(schema, None)]

    @property
    def _closer(self) -> str:
        return self._grammar.spell(self._spelling.end_parameter + self._spelling.after_value)

    def _listed(self, choices: Sequence[Any]) -> list[str]:
        return [self._closed(map(_spelled, choices))] if choices else []

    def _closed(self, values: Iterable[str]) -> str:
        return f"({' | '.join(literal(value) for value in values)}) {self._closer}"

    def _closed_json(self, schema: Any, kinds: Sequence[str] | None) -> str:
        return f"{self._json(schema, kinds)} {self._closer}"

    def _text(self, schema: Any, starts: str | None) -> str:
        """Bare text up to the first closer. `starts`: what its first visible character must not be.

        A closer that stands on a line of its own may also come at once, and then ends an empty value.
        """
        plain, native = self._grammar.split(self._spelling.end_parameter)
        closer = plain.lstrip()
        before = plain.removesuffix(closer)
        begin = f"(?:(?s:.*){escape(before)})?" if before else "(?s:.*)"
        terminal = self._grammar.new_name().upper()
        parts = [regex(begin + escape(closer))]
        if self._not_text:
            parts.append(f"~{regex(self._not_text)}")
        if starts is not None:
            parts.append("~" + regex(f"(?s:{_GAP}{starts}.*)"))
        limits = _text_limits(schema) if self._strictness == "exact" else []
        if limits:
            parts += [regex(limit + escape(plain)) for limit in limits]
        if limits and not native:  # then the value ends at its first closer, fitting or not
            parts.append("~" + regex(f"(?s:.*){escape(plain)}(?s:.+)"))
        self._grammar.define(terminal, " & ".join(parts))
        if native:
            return f"{terminal} {self._grammar.spell(native + self._spelling.after_value)}"
        text = self._grammar.add(terminal, "[lazy]")
        return f"{text} {literal(self._spelling.after_value)}" if self._spelling.after_value else text

    def _json(self, schema: Any, kinds: Sequence[str] | None) -> str:
        """JSON of `schema`, of certain kinds only if the schema allows others beside them."""
        if self._strictness == "names":
            allowed = kinds or type_of(schema, self._root).kinds
            return self._grammar.add(json_value({"type": list(allowed)}, COMPACT))
        document = {"allOf": [schema, {"type": list(kinds)}]} if kinds else dict(schema)
        for key in ("$defs", "definitions"):
            if key in self._root:
                document[key] = self._root[key]
        return self._grammar.add(json_value(document, COMPACT, lenient=self._strictness == "lenient"))


def _not_in_text(grammar: Grammar, rules: Iterable[Rule], names: Iterable[str]) -> str:
    """What the parser would take for the end of a value although the grammar would not: keep it out."""
    declared = "|".join(escape(name) for name in names)
    early = []
    for rule in rules:
        follows = [escape(mark) for mark in rule.followed if mark and not grammar.is_native(mark)]
        if grammar.is_native(rule.opens):
            continue
        if "next_parameter" in rule.when:
            if declared:
                early.append(f"(?s:.*\\n)?{escape(rule.opens)}(?:{declared}){escape(rule.closes)}(?s:.*)")
        elif follows:
            early.append(f"(?s:.*){escape(rule.opens)}{_GAP}(?:{'|'.join(follows)})(?s:.*)")
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
