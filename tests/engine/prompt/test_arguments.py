"""Text to JSON values, led by a schema. Expected values are written out by hand or checked by jsonschema."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.prompt.arguments import ToolSchema, ValueType, ValueWriter, coerce

TIMER: dict[str, Any] = {
    "type": "object",
    "$defs": {"seconds": {"type": "integer"}, "a/b": {"$ref": "#/$defs/seconds"}},
    "properties": {
        "seconds": {"$ref": "#/$defs/a~1b"},
        "loop": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "label": {"type": "string"},
        "free": {},
        "other": {"description": "says no type"},
    },
}


def value(schema: Any, text: str) -> Any:
    """The value of parameter `p` of type `schema` written as `text`."""
    return json.loads(coerce(text, ToolSchema({"properties": {"p": schema}}).value_type("p")))


@pytest.mark.parametrize("wrap", ["plain", "oneOf", "anyOf", "allOf", "$ref"])
def test_types_are_found_through_every_wrapping(wrap: str) -> None:
    schema: dict[str, Any] = TIMER
    if wrap == "$ref":
        schema = {"$defs": {**TIMER["$defs"], "all": TIMER}, "$ref": "#/$defs/all"}
    elif wrap != "plain":
        schema = {"$defs": TIMER["$defs"], wrap: [{"type": "object", "properties": {"x": {}}}, TIMER]}
    texts = {"seconds": "90", "loop": "null", "label": "007", "free": '["a","b"]', "other": "123"}
    tool = ToolSchema(schema)
    values = {name: json.loads(coerce(text, tool.value_type(name))) for name, text in texts.items()}
    assert values == {"seconds": 90, "loop": None, "label": "007", "free": ["a", "b"], "other": "123"}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, "90", 90),
        ({"type": "integer"}, " 90 ", 90),
        ({"type": "integer"}, "-3", -3),
        ({"type": "integer"}, "90.0", 90),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, '"90"', 90),
        ({"type": "integer"}, "007", "007"),
        ({"type": "integer"}, "9.5", "9.5"),
        ({"type": "integer"}, "2026-01-15", "2026-01-15"),
        ({"type": "integer"}, "", ""),
        ({"type": "integer"}, "٣", "٣"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "number"}, "1.50", 1.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "Infinity", "Infinity"),
        ({"type": "number"}, ".5", ".5"),
        ({"type": "number"}, "1e400", "1e400"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "integer"}, "9" * 400, int("9" * 400)),
        ({"type": "array"}, "[1e400]", "[1e400]"),
        ({"type": "array"}, r'["\ud83d", "\ud83d\ude00"]', ["\ufffd", "😀"]),
        ({"type": "array"}, r"['\ud83d']", ["\ufffd"]),
        ({"type": "integer"}, r'"\ud83d"', "\ufffd"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '"x"', '"x"'),
        ({"type": "string"}, "[1]", "[1]"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", "None"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "['a', True, None]", ["a", True, None]),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "array"}, "{}", "{}"),
        ({"type": "object"}, ' {"a": {"b": 1e2}} ', {"a": {"b": 100.0}}),
        ({"type": "object"}, "{'a': 1}", {"a": 1}),
        ({"type": "object"}, "{'a': 1", "{'a': 1"),
        ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "a", "a"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["integer", "string"]}, "5", 5),
        ({"type": ["integer", "string"]}, "five", "five"),
        ({"enum": ["fast", "slow"]}, "fast", "fast"),
        ({"enum": ["fast", "slow"]}, '"fast"', "fast"),
        ({"enum": ["fast", "slow"]}, "medium", "medium"),
        ({"enum": [1, 2, None, True]}, "2", 2),
        ({"enum": [1, 2, None, True]}, "null", None),
        ({"enum": [1, 2, None, True]}, "True", True),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": [1, 2], "type": "integer"}, "3", 3),
        ({"const": 5}, "5", 5),
        ({"const": "null"}, "null", "null"),
        ({"allOf": [{"description": "x"}, {"type": "integer"}]}, "5", 5),
        ({"minimum": 1}, "5", 5),
        ({"items": {"type": "string"}}, "[1]", [1]),
        ({"type": "int"}, "5", 5),
        ({"type": "STRING"}, "5", "5"),
        ({"type": "any"}, "5", "5"),
        (True, "5", "5"),
        (None, "5", "5"),
        ({"$ref": "#/nowhere"}, "5", "5"),
        ({"$ref": "other.json#/x"}, "[5]", [5]),
    ],
)
def test_values(schema: Any, text: str, expected: Any) -> None:
    found = value(schema, text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("kind", ["string", "array", "integer"])
@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("\r\n[1]\r\n", "[1]"),
        ("\r\n\r\n1\r\n\r\n", "\r\n1\r\n"),
        ("\r\n5\n", "5"),
        ("\r\n5\r", "5\r"),
        ("\n5\r\n", "5\r"),
        ("\r5\n", "\r5"),
        ("\r\n", ""),
        ("\r", "\r"),
        ("\r\n\r\n", ""),
    ],
)
def test_one_line_break_of_the_values_own_layout_is_dropped(kind: str, text: str, inner: str) -> None:
    """CR LF is one line break where the value begins with it; else CR is a character of the value."""
    for pieces in ([text], list(text)):
        writer = ValueWriter(ValueType((kind,)))
        joined = "".join(writer.write(piece) for piece in pieces) + writer.close()
        assert joined == coerce(inner, ValueType((kind,)))


def test_endless_references_are_untyped() -> None:
    assert value({"$ref": "#/properties/p"}, "5") == "5"
    assert value({"anyOf": [{"$ref": "#/properties/p"}]}, "[]") == []


def test_undeclared_names_follow_additional_properties() -> None:
    tool = ToolSchema({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}})
    assert coerce("5", tool.value_type("b")) == "5"
    assert coerce("5", ToolSchema({"properties": {"a": {}}}).value_type("b")) == '"5"'
    assert tool.declares("a")
    assert not tool.declares("b")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{" * 100_000 + "'"])
def test_monstrous_values_are_strings_or_numbers(text: str) -> None:
    for kind in ("array", "object", "string"):
        assert value({"type": kind}, text) == text


TEXTS = st.text(st.sampled_from(list("ab1.e-\n \"'\\[]{}:,ntrufals")), max_size=12)
KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
TYPES = st.builds(
    ValueType,
    st.lists(st.sampled_from(KINDS), unique=True, max_size=3).map(tuple),
    st.none() | st.lists(st.sampled_from(["a", 1, None, True, "1", 1.5]), min_size=1, max_size=3).map(tuple),
)


@given(TEXTS, TYPES, st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_json_however_it_is_cut(text: str, value_type: ValueType, places: list[int]) -> None:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    writer = ValueWriter(value_type)
    pieces = [writer.write(text[a:b]) for a, b in itertools.pairwise(edges)]
    joined = "".join(pieces) + writer.close()
    inner = text.removeprefix("\n").removesuffix("\n")
    assert joined == coerce(inner, value_type)
    parsed = json.loads(joined)
    if value_type == ValueType(("string",)):
        assert parsed == inner
