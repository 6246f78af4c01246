"""A tool's parameters as flat alternatives: which names, which of them required, which schema each.

The XML-like grammar needs this, because top-level $ref, allOf, anyOf and oneOf have no text of their own
there. Knows JSON Schema; knows no grammar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftagent.engine.prompt.arguments import resolve

_MAX_SHAPES = 16
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to fill the parameters. `extra` is the schema of undeclared names; None: none are allowed."""

    properties: Mapping[str, Any]
    required: frozenset[str]
    extra: Any = None


def shapes_of(parameters: Mapping[str, Any]) -> list[Shape]:
    """The alternatives of a tool's schema, in its order.

    With more than 16 alternatives there is one that allows every name and requires only what all require.
    """
    found = _expand(parameters, parameters, 0)
    return [_closed(shape) for shape in found]


def _closed(shape: Shape) -> Shape:
    """A required name that no branch declares is a parameter of any type."""
    undeclared: dict[str, Any] = {name: {} for name in sorted(shape.required) if name not in shape.properties}
    return Shape({**shape.properties, **undeclared}, shape.required, shape.extra)


def _expand(schema: Any, root: Mapping[str, Any], depth: int) -> list[Shape]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return [Shape({}, frozenset())]
    found = [_own(schema)]
    if "$ref" in schema:
        found = _cross(found, _expand(resolve(schema["$ref"], root), root, depth + 1))
    for part in _options(schema.get("allOf")):
        found = _cross(found, _expand(part, root, depth + 1))
    for key in ("anyOf", "oneOf"):
        options = _options(schema.get(key))
        if options:
            found = _cross(found, [shape for part in options for shape in _expand(part, root, depth + 1)])
    return found if len(found) <= _MAX_SHAPES else [_loosest(found)]


def _options(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _own(schema: Mapping[str, Any]) -> Shape:
    properties = schema.get("properties")
    required = schema.get("required")
    names = required if isinstance(required, list | tuple) else ()
    extra = schema.get("additionalProperties")
    return Shape(
        dict(properties) if isinstance(properties, Mapping) else {},
        frozenset(name for name in names if isinstance(name, str)),
        {} if extra is True else extra if isinstance(extra, Mapping) else None,
    )


def _cross(left: list[Shape], right: list[Shape]) -> list[Shape]:
    """Every pair of alternatives at once."""
    return [_both(a, b) for a in left for b in right]


def _both(a: Shape, b: Shape) -> Shape:
    properties = dict(a.properties)
    for name, schema in b.properties.items():
        known = properties.get(name)
        properties[name] = {"allOf": [known, schema]} if known else schema
    return Shape(properties, a.required | b.required, b.extra if a.extra is None else a.extra)


def _loosest(shapes: list[Shape]) -> Shape:
    properties: dict[str, Any] = {}
    for shape in shapes:
        for name, schema in shape.properties.items():
            known = properties.get(name, schema)
            properties[name] = known if known == schema else {}
    required = frozenset.intersection(*(shape.required for shape in shapes))
    return Shape(properties, required, next((s.extra for s in shapes if s.extra is not None), None))
