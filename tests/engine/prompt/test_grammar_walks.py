"""Whatever a constraint allows is a valid call, and no schema is an error. Oracle: jsonschema."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import jsonschema
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.grammar import Constraint
from ftagent.engine.prompt.parsers import ReplyForm
from tests.engine.prompt.call_forms import SPEECHES
from tests.engine.prompt.replies import TOOLS, Reply, Setup, join
from tests.engine.prompt.tiny import FIND, Tiny, allowed, asking, constrained, follow, of_form

CLOSED = {"additionalProperties": False}
NAMES = st.sampled_from(["a", "path", "old_string", "x-y", "n1"])
SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5, "minLength": 1},
        {"type": "string", "pattern": "^[a-c]+$"},
        {"type": "integer"},
        {"type": "integer", "minimum": -3, "maximum": 40},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["fast", "null", 'a "b"\n', 3, None, True, "5"]},
        {"const": 7},
        {"type": "string", "enum": ["x"]},
        {"$ref": "#/$defs/level"},
        {},
    ]
)
VALUES = st.one_of(
    SCALARS,
    SCALARS.map(lambda schema: {"type": "array", "items": schema, "maxItems": 2}),
    SCALARS.map(lambda schema: {"type": "object", "properties": {"k": schema}, "required": ["k"], **CLOSED}),
    SCALARS.map(
        lambda schema: {"anyOf": [{"type": "string"}, {"type": "array", "items": schema, "maxItems": 2}]}
    ),
)


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required, **CLOSED}
    defs = {"$defs": {"level": {"enum": ["low", "high"]}, "all": schema}}
    wrapped = draw(st.sampled_from(["plain", "anyOf", "allOf", "$ref"]))
    if wrapped == "plain":
        return {**schema, **defs}
    other = {"type": "object", "properties": {"other": {"type": "boolean"}}, "required": ["other"], **CLOSED}
    options: dict[str, Any] = {"anyOf": [schema, other], "allOf": [schema], "$ref": "#/$defs/all"}
    return {wrapped: options[wrapped], **defs}


@functools.cache
def visible(vocabulary: Tiny) -> NDArray[np.bool_]:
    """Tokens that are not single control characters or halves of characters: strings end sooner with them."""
    texts = [vocabulary.decode_bytes([token]) for token in range(vocabulary.encoding.n_vocab)]
    return np.array([len(text) > 1 or text == b"\n" or 32 <= text[0] < 127 for text in texts])


# A number that no reader can hold is delivered as the text it was, though the grammar has to allow it.
OVERFLOW = re.compile(r"\d[eE]\+?\d{3}")


def walk(constraint: Constraint, vocabulary: Tiny, seed: int, limit: int) -> list[int] | None:
    """A random reply, every allowed token of visible text equally likely; None if it does not end in time."""
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(limit):
        mask = constraint.mask()
        assert mask is not None
        shown = np.flatnonzero(mask & visible(vocabulary)[: len(mask)])
        token = rng.choice((shown if len(shown) else np.flatnonzero(mask)).tolist())
        constraint.advance(token)
        if token in vocabulary.eos_ids:
            return ids
        ids.append(token)
    return None


def pieces(vocabulary: Tiny, ids: list[int]) -> list[tuple[str, bool]]:
    """The tokens with their text, characters of several tokens joined."""
    found: list[tuple[str, bool]] = []
    text = b""
    for token in ids:
        added = token in vocabulary.added_tokens.values()
        if added and text:
            found.append((text.decode(), False))
            text = b""
        if added:
            found.append((vocabulary.decode_bytes([token]).decode(), True))
        else:
            text += vocabulary.decode_bytes([token])
    return [*found, (text.decode(), False)] if text else found


@given(
    parameters(),
    st.sampled_from([speech.form for speech in SPEECHES]),
    st.integers(0, 2**32),
    *[st.booleans()] * 2,
)
@settings(max_examples=120, deadline=None)
def test_random_walks_give_valid_calls(
    schema: dict[str, Any], form: ReplyForm, seed: int, thinking_open: bool, native: bool
) -> None:
    tools = (ToolSpec("first", "", schema), ToolSpec("second", "", {"type": "object", "properties": {}}))
    conversation = asking(tools=tools)
    thinking_open = thinking_open and native  # no random walk spells a closer letter by letter
    vocabulary = of_form(form, native)
    constraint = constrained(conversation, form, thinking_open=thinking_open, vocabulary=vocabulary)
    ids = walk(constraint, vocabulary, seed, limit=3000)
    if ids is None or OVERFLOW.search(vocabulary.decode_bytes(ids).decode()):
        return
    setup, markers = Setup(form, tools, thinking_open), frozenset(vocabulary.added_tokens)
    reply: Reply = join(setup.events(pieces(vocabulary, ids), markers))
    assert reply.content == ""
    assert reply.calls
    for call in reply.calls:
        assert call.complete
        assert call.name in ("first", "second")
        jsonschema.validate(call.arguments, {**schema} if call.name == "first" else {"maxProperties": 0})


KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "const",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "$ref",
        ),
        *("$defs", "additionalProperties", "pattern", "minLength", "maxLength", "maxItems", "format", "a"),
    ]
)
NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from(["string", "array", "a", "#/$defs/a", "("]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYWORDS, NONSENSE, max_size=4), st.sampled_from(["qwen3", "qwen3_5"]))
@settings(max_examples=80, deadline=None)
def test_no_schema_is_an_error(schema: dict[str, Any], form: ReplyForm) -> None:
    """Whatever a client calls a schema, the tool's name is enforced and the call can be made and read."""
    tools = (ToolSpec("odd", "", schema), *TOOLS)
    conversation = asking(tools=tools)
    head = "<tool_call>\n<function=" if form == "qwen3_5" else '<tool_call>\n{"name": "'
    constraint = constrained(conversation, form)
    assert follow(constraint, head) == ""
    assert (allowed(constraint) or set()) <= {"o", "w", "f", "p", "s"}
    Setup(form, tools).events([(FIND.replace("find", "odd"), False)])
