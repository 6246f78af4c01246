"""JSON objects read as they come. Oracles: the standard library's json, and pydantic's for strictness."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from ftagent.engine.prompt.json_reader import ObjectReader

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def read(text: str) -> tuple[str, int]:
    """What the reader gives for `text`, closed; and how many characters it took before it was done."""
    reader = ObjectReader()
    taken = 0
    for char in text:
        if reader.done:
            break
        reader.feed(char)
        taken += 1
    reader.close()
    return "".join(piece.text for piece in reader.take()), taken


@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["", "}", " more", "]"]),
)
@settings(max_examples=200, deadline=None)
def test_valid_json_is_passed_on(
    value: dict[str, Any], ascii_only: bool, indent: int | None, after: str
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found, taken = read(text + after)
    assert json.loads(found) == value
    assert taken == len(text)


@given(st.text(st.sampled_from(list("{}[]:,\"'\\un01.eE- \n\ttrueNoéa\x00")), max_size=30))
@settings(max_examples=500, deadline=None)
def test_anything_becomes_valid_json(text: str) -> None:
    found, _ = read("{" + text)
    assert isinstance(json.loads(found), dict)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": True, "b": None, "c": False}', {"a": True, "b": None, "c": False}),
        ("{'a': 'it is', \"b\": 'say \"x\"'}", {"a": "it is", "b": 'say "x"'}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a" "x"}', {"a": "x"}),
        ('{"a": word, b: 2}', {"a": "word", "b": 2}),
        ('{"a": "\\d+\\.py \\u00e9 \\uZZ \\\'"}', {"a": "\\d+\\.py é \\uZZ '"}),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ('{"a": [1, {"b": 2]}', {"a": [1, {"b": 2}]}),
        ('{"a": "open', {"a": "open"}),
        ('{"a": "open\\', {"a": "open"}),
        ('{"a":', {"a": None}),
        ('{"a"', {"a": None}),
        ('{"a": NaN, "b": 1e5, "c": 01}', {"a": "NaN", "b": 1e5, "c": "01"}),
        ("{]:,", {}),
    ],
)
def test_mending(text: str, value: dict[str, Any]) -> None:
    assert json.loads(read(text)[0]) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (r'{"a": "x\uD83Dy"}', {"a": "x\ufffdy"}),
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (r'{"a": "\ude00\ud83d"}', {"a": "\ufffd\ufffd"}),
        (r'{"a": "\ud83d\ud83d\ude00"}', {"a": "\ufffd😀"}),
        (r'{"a": "\ud83d\n"}', {"a": "\ufffd\n"}),
        (r'{"a": "\\ud83d"}', {"a": r"\ud83d"}),
        (r'{"\ud83d": 1, "b": ["\ude00"]}', {"\ufffd": 1, "b": ["\ufffd"]}),
        ('{"a": 1e400, "b": ' + "9" * 5000 + "}", {"a": "1e400", "b": "9" * 5000}),
    ],
)
def test_strict_readers_can_read_it(text: str, expected: dict[str, Any]) -> None:
    """Half a surrogate pair and endless numbers are JSON to lenient readers only."""
    assert from_json(read(text)[0]) == expected


def test_members_are_told_apart() -> None:
    reader = ObjectReader()
    for char in '{"name": "find", "arguments": {"name": ["x"]}, "n": 5}':
        reader.feed(char)
    values: dict[str | None, str] = {}
    for piece in reader.take():
        values[piece.key] = values.get(piece.key, "") + piece.text
    assert values["name"] == '"find"'
    assert json.loads(values["arguments"]) == {"name": ["x"]}
    assert values["n"] == "5"
