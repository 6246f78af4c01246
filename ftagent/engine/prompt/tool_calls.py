"""One tool call while it is being read: from parameters or JSON to call events.

Knows the tools' schemas and the events; knows no markers and no buffer.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Sequence

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.arguments import (
    ToolSchema,
    ValueType,
    ValueWriter,
    dump_json,
    parse_json,
    quote,
    strict_text,
)
from ftagent.engine.prompt.forms import Action, FormTable
from ftagent.engine.prompt.json_reader import ObjectReader, Piece
from ftagent.events import Event, ToolCallDelta, ToolCallEnd, ToolCallStart

_STRING = ValueType(("string",))
_ANY_JSON = ValueType(("array", "object", "boolean", "null", "number"))
_NOT_ARGUMENTS = frozenset({"id", "index", "type"})


class ToolBook:
    """The offered tools by name."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas = {tool.name: ToolSchema(tool.parameters) for tool in tools}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __len__(self) -> int:
        return len(self._schemas)

    def schema(self, name: str) -> ToolSchema:
        """The tool's parameters; those of an unknown tool are all untyped."""
        return self._schemas.get(name) or ToolSchema({})


class OpenCall:
    """A call whose name is known. Every method returns the events it causes."""

    def __init__(self, index: int, schema: ToolSchema, value_layout: bool = False) -> None:
        self.index = index
        self._layout = value_layout
        self._schema = schema
        self._given: set[str] = set()
        self._value: ValueWriter | None = None
        self._sent = False

    def start(self, name: str) -> Event:
        return ToolCallStart(self.index, f"call_{secrets.token_hex(12)}", name)

    @property
    def at_line_start(self) -> bool:
        return self._value is None or self._value.at_line_start

    def expects(self, name: str) -> bool:
        return name not in self._given and self._schema.declares(name)

    def begin_parameter(self, name: str, action: Action) -> list[Event]:
        """What the form says of the value's type counts where the tool's schema allows it."""
        events = self.end_parameter()
        value_type = self._schema.value_type(name)
        if action == "text_parameter" and value_type.may_be("string"):
            value_type = _STRING
        elif action == "json_parameter" and not value_type.kinds and value_type.choices is None:
            value_type = _ANY_JSON
        self._value = ValueWriter(value_type, self._layout)
        opening = ", " if self._given else "{"
        self._given.add(name)
        return events + self.raw(f"{opening}{quote(name)}: ")

    def begin_raw(self) -> list[Event]:
        """Bare text stands for the arguments: it is the value of the tool's only parameter."""
        return self.begin_parameter(self._schema.only_parameter or "arguments", "text_parameter")

    def write(self, text: str) -> list[Event]:
        return [] if self._value is None else self.raw(self._value.write(text))

    def end_parameter(self) -> list[Event]:
        if self._value is None:
            return []
        rest = self._value.close()
        self._value = None
        return self.raw(rest)

    def raw(self, text: str) -> list[Event]:
        """A piece of the arguments that is JSON already."""
        if not text:
            return []
        self._sent = True
        return [ToolCallDelta(self.index, text)]

    def end(self) -> list[Event]:
        """Close the arguments; without any they are `{}`."""
        events = self.end_parameter()
        if self._given:
            events += self.raw("}")
        elif not self._sent:
            events += self.raw("{}")
        return [*events, ToolCallEnd(self.index)]


class JsonBody:
    """A call, or only its arguments, written as one JSON object.

    `table` names the members of a whole call; None means that the object is the arguments. `offered`: names
    that a call may have; None: any.
    """

    def __init__(self, table: FormTable | None, offered: Container[str] | None = None) -> None:
        self.reader = ObjectReader()
        self.name: str | None = None
        self.refused = False  # the object names something else than a tool
        self.read = ""  # all text so far, kept while the name is unknown
        self._table = table
        self._offered = offered
        self._members: dict[str, str] = {}
        self._current: str | None = None
        self._ready = ""
        self._streams = table is None
        self._argued = False  # the arguments have come, so that another member of their name is none

    def feed(self, text: str) -> None:
        if self._table is not None and self.name is None:
            self.read += text
        for char in text:
            self.reader.feed(char)
        for piece in self.reader.take():
            self._sort(piece)

    def take_arguments(self) -> str:
        """Arguments that can be sent now."""
        ready, self._ready = self._ready, ""
        return ready

    @property
    def complete(self) -> bool:
        """Whether the arguments are closed, though the object around them may not be."""
        return self.reader.done or (self._streams and self._table is not None and self._current is None)

    def close(self) -> str:
        """Close the object; the arguments that were not sent yet."""
        self.reader.close()
        for piece in self.reader.take():
            self._sort(piece)
        ready = self.take_arguments()
        return ready if self._streams else self._collected()

    def _sort(self, piece: Piece) -> None:
        if self._table is None:
            self._ready += piece.text
            return
        if piece.key != self._current:
            self._end_member(self._table)
            self._current = piece.key
        if piece.key is None:
            return
        argues = piece.key in self._table.argument_keys and not self._argued
        if argues and (self._streams or self._starts_object(piece)):
            self._streams = True
            self._ready += piece.text
        else:
            self._members[piece.key] = self._members.get(piece.key, "") + piece.text

    def _starts_object(self, piece: Piece) -> bool:
        return piece.key not in self._members and piece.text.startswith("{")

    def left_over(self) -> str:
        """Members that are neither the call's name nor its arguments, once those were sent."""
        rest = {key: text for key, text in self._members.items() if key not in _NOT_ARGUMENTS}
        return ", ".join(f"{quote(key)}: {text}" for key, text in rest.items()) if self._argued else ""

    def _end_member(self, table: FormTable) -> None:
        self._argued = self._argued or (self._streams and self._current in table.argument_keys)
        if self._current == table.name_key and self.name is None:
            name = parse_json(self._members.pop(table.name_key, ""))
            if isinstance(name, str) and name:
                self.refused = self._offered is not None and name not in self._offered
                self.name = None if self.refused else name

    def _collected(self) -> str:
        """Arguments that were not an object: a JSON text in a string, null, or members beside the name."""
        for key in self._table.argument_keys if self._table else ():
            if key in self._members:
                return _as_object(key, self._members[key])
        rest = {key: text for key, text in self._members.items() if key not in _NOT_ARGUMENTS}
        return "{" + ", ".join(f"{quote(key)}: {text}" for key, text in rest.items()) + "}"


def _as_object(key: str, text: str) -> str:
    value = parse_json(text)
    if isinstance(value, str):
        inner = parse_json(value)
        if isinstance(inner, dict):
            return strict_text(value, inner)
        value = inner if inner is None else value
    return "{}" if value in (None, "") else dump_json({key: value})
