"""From the text of a tool parameter to its JSON value, led by the tool's JSON Schema.

The XML-like forms write every value as bare text; only the schema tells `90` the number from `90` the
string. A value that fits no declared type is delivered as the string it was: a call is never lost over it.
Knows no markers, no events and no grammar.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

_MAX_DEPTH = 16  # of $ref and combinator nesting; deeper schemas count as untyped
_COMBINATORS = ("allOf", "anyOf", "oneOf")
_KINDS = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}
_IMPLIED = (
    ("properties", "object"),
    ("additionalProperties", "object"),
    ("items", "array"),
    ("pattern", "string"),
    ("maxLength", "string"),
    ("minLength", "string"),
    ("minimum", "number"),
    ("maximum", "number"),
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a value may be: JSON types in the schema's order (none: untyped), and the allowed values."""

    kinds: tuple[str, ...] = ()
    choices: tuple[Any, ...] | None = None

    @property
    def streams(self) -> bool:
        """Whether every text is a string of this type, so that it can be sent before its end is known."""
        return self.choices is None and self.kinds == ("string",)

    def may_be(self, kind: str) -> bool:
        """Whether a value of that JSON type is allowed."""
        if self.choices is not None:
            return any(kind_of(choice) == kind for choice in self.choices)
        return not self.kinds or kind in self.kinds

    def may_be_json(self, first: str) -> bool:
        """Whether a text whose first visible character is `first` could be anything but a string."""
        if self.choices is not None or not self.kinds:
            return self.choices is not None or first in "[{"
        return self.kinds != ("string",) and (
            first in "[{n" or not {"integer", "number", "boolean"}.isdisjoint(self.kinds)
        )


class ToolSchema:
    """The parameters of one tool, looked up by name through $ref, allOf, anyOf and oneOf."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._root = parameters
        self._types: dict[str, ValueType] = {}

    def declares(self, name: str) -> bool:
        return next(self._declarations(name), None) is not None

    @property
    def only_parameter(self) -> str:
        """The name of the one parameter that the tool has; "" if it has none or several."""
        names = {name for shape in branches(self._root, self._root) for name in _names(shape)}
        return names.pop() if len(names) == 1 else ""

    def value_type(self, name: str) -> ValueType:
        """The type of parameter `name`; untyped when it is not declared or its schema cannot be read."""
        if name not in self._types:
            found = [type_of(schema, self._root) for schema in self._declarations(name)]
            if not found:
                extra = self._root.get("additionalProperties")
                found = [type_of(extra, self._root)]
            self._types[name] = _union(found)
        return self._types[name]

    def _declarations(self, name: str) -> Iterator[Any]:
        for shape in branches(self._root, self._root):
            properties = shape.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                yield properties[name]


def _names(schema: Mapping[str, Any]) -> list[str]:
    properties = schema.get("properties")
    return [name for name in properties if isinstance(name, str)] if isinstance(properties, Mapping) else []


def branches(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The schema itself and every schema that $ref, allOf, anyOf and oneOf put beside it, outermost first."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    yield schema
    if "$ref" in schema:
        yield from branches(resolve(schema["$ref"], root), root, depth + 1)
    for key in _COMBINATORS:
        options = schema.get(key)
        if isinstance(options, Sequence) and not isinstance(options, str):
            for option in options:
                yield from branches(option, root, depth + 1)


def resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a local reference ("#/...", RFC 6901) points to; None when it leads nowhere or outside."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, Sequence) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def type_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> ValueType:
    """The type a schema allows. Unreadable and too deep schemas are untyped."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ValueType()
    own = ValueType(_declared_kinds(schema), _declared_choices(schema))
    if own.kinds or own.choices is not None:
        return _nullable(schema, own)
    if "$ref" in schema:
        return _nullable(schema, type_of(resolve(schema["$ref"], root), root, depth + 1))
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list | tuple) and options:
            return _nullable(schema, _union(type_of(option, root, depth + 1) for option in options))
    parts = schema.get("allOf")
    if isinstance(parts, list | tuple):
        typed = (type_of(part, root, depth + 1) for part in parts)
        return _nullable(schema, next((part for part in typed if part != ValueType()), ValueType()))
    return ValueType()


def _declared_kinds(schema: Mapping[str, Any]) -> tuple[str, ...]:
    stated = schema.get("type")
    names = [stated] if isinstance(stated, str) else stated if isinstance(stated, list | tuple) else []
    lower = (name.lower() for name in names if isinstance(name, str))
    kinds = tuple(kind for name in lower if (kind := _ALIASES.get(name, name)) in _KINDS)
    if kinds or stated is not None or any(key in schema for key in ("enum", "const", "$ref", *_COMBINATORS)):
        return kinds
    return tuple(dict.fromkeys(kind for keyword, kind in _IMPLIED if keyword in schema))


def _declared_choices(schema: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    choices = schema.get("enum")
    return tuple(choices) if isinstance(choices, list | tuple) and choices else None


def _nullable(schema: Mapping[str, Any], found: ValueType) -> ValueType:
    """OpenAPI's `nullable: true` beside any other keyword adds null."""
    if schema.get("nullable") is not True or (not found.kinds and found.choices is None):
        return found
    kinds = found.kinds if "null" in found.kinds else (*found.kinds, "null")
    return ValueType(kinds, None if found.choices is None else (*found.choices, None))


def _union(types: Iterable[ValueType]) -> ValueType:
    """Any of `types`. One untyped alternative makes the whole untyped."""
    options = list(types)
    if not options or any(not option.kinds and option.choices is None for option in options):
        return ValueType()
    kinds = dict.fromkeys(kind for option in options for kind in _kinds_of(option))
    if all(option.choices is not None for option in options):
        return ValueType(tuple(kinds), tuple(choice for option in options for choice in option.choices or ()))
    return ValueType(tuple(kinds))


def _kinds_of(value: ValueType) -> tuple[str, ...]:
    return value.kinds or tuple(dict.fromkeys(kind_of(choice) for choice in value.choices or ()))


def kind_of(value: Any) -> str:
    """The JSON Schema name of a parsed value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for python, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, python):
            return name
    return "object"


def coerce(text: str, value_type: ValueType) -> str:
    """The JSON text of a value written as `text`; the string itself when no type fits. Never raises."""
    if value_type.choices is not None:
        chosen = _choose(text, value_type.choices)
        if chosen is not None:
            return chosen
    stripped = text.strip()
    kinds = value_type.kinds or ("array", "object", "string")
    if "null" in kinds and (stripped == "null" or (stripped == "None" and "string" not in kinds)):
        return "null"
    # A list or an object written out is meant as one, wherever the schema lists it; of the scalars, the
    # first that fits in the schema's own order.
    ordered = sorted(kinds, key=lambda kind: kind not in ("array", "object"))
    for kind in ordered:
        if kind == "string":
            break
        found = _as_kind(stripped, kind)
        if found is not None:
            return found
    if "string" not in kinds and len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        inner = parse_json(stripped)
        if isinstance(inner, str) and inner != text:
            return coerce(inner, ValueType(kinds))
    return quote(text)


def _choose(text: str, choices: tuple[Any, ...]) -> str | None:
    """The listed value that `text` spells: raw first, then as JSON."""
    stripped = text.strip()
    for spelling in (text, stripped):
        if any(isinstance(choice, str) and choice == spelling for choice in choices):
            return quote(spelling)
    value = parse_json({"True": "true", "False": "false", "None": "null"}.get(stripped, stripped))
    for choice in choices:
        if kind_of(choice) == kind_of(value) and choice == value:
            return dump_json(choice) if stripped[:1] in '"TFN' else stripped
    return None


def _as_kind(text: str, kind: str) -> str | None:
    """`text` as JSON text of `kind`, or None. Numbers and JSON keep the model's own spelling."""
    if kind == "boolean":
        return text.lower() if text.lower() in ("true", "false") else None
    if kind == "number":
        return text if _NUMBER.fullmatch(text) and parse_json(text) is not ... else None
    if kind == "integer":
        return _integer(text)
    if kind in ("array", "object"):
        return _container(text, list if kind == "array" else dict)
    return None


def _integer(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return text if parse_json(text) is not ... else None
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None


def _container(text: str, python: type) -> str | None:
    if text[:1] not in ("[", "{"):
        return None
    value = parse_json(text)
    if isinstance(value, python):
        return strict_text(text, value)
    try:
        value = ast.literal_eval(text)
        return dump_json(value) if isinstance(value, python) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def parse_json(text: str) -> Any:
    """The parsed value, or an Ellipsis (no JSON value) when `text` is not strict JSON.

    Numbers that common readers cannot hold (1e400, thousands of digits) do not count as JSON either.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return ...


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def strict_text(text: str, value: Any) -> str:
    """The JSON `text` of `value`; spelled anew when it names half a surrogate pair, which is no text."""
    strict = dump_json(value) if "\\u" in text else ""
    return strict if "\ufffd" in strict else text


def dump_json(value: Any) -> str:
    """JSON text in which U+FFFD stands for each lone surrogate. Raises ValueError for NaN and infinities."""
    return _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False, allow_nan=False))


def quote(text: str) -> str:
    """A JSON string. Joining the insides of quoted pieces quotes the joined text."""
    return dump_json(text)


class ValueWriter:
    """Turns the text of one parameter, as it comes, into pieces of its JSON value.

    With `layout` exactly one newline is dropped at each end (CR LF where the value begins with that); nothing
    else is touched. Pieces come early when the value can only be a string, else all at `close`.
    """

    def __init__(self, value_type: ValueType, layout: bool = True) -> None:
        self._type = value_type
        self._layout = layout
        self._waiting = ""  # text that may not be sent yet: the type is undecided, or a last newline
        self._streaming = False
        self._newline = ""  # of this value's layout; empty until its beginning is seen
        self._last = "\n"

    @property
    def at_line_start(self) -> bool:
        return self._last == "\n"

    def write(self, text: str) -> str:
        if not text:
            return ""
        self._last = text[-1]
        self._waiting += text
        if self._layout and not self._newline:
            if self._waiting == "\r":
                return ""
            self._newline = "\r\n" if self._waiting.startswith("\r\n") else "\n"
            self._waiting = self._waiting.removeprefix(self._newline)
        piece = ""
        if not self._streaming and self._decided():
            self._streaming = True
            piece = '"'
        if not self._streaming:
            return ""
        ready = self._waiting.removesuffix("\n") if self._layout else self._waiting
        if self._newline == "\r\n":
            ready = ready.removesuffix("\r")
        self._waiting = self._waiting[len(ready) :]
        return piece + quote(ready)[1:-1]

    def close(self) -> str:
        """The rest of the value."""
        rest = self._waiting
        if self._layout:
            newline = self._newline if rest.endswith(self._newline) else "\n"
            rest = rest.removesuffix(newline)
        return quote(rest)[1:] if self._streaming else coerce(rest, self._type)

    def _decided(self) -> bool:
        if self._type.streams:
            return True
        visible = self._waiting.lstrip()
        return bool(visible) and not self._type.may_be_json(visible[0])
