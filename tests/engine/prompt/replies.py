"""Feeding a reply to the parser in many cuts, and joining what comes out."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.form_registry import ReplyForm
from ftagent.engine.prompt.forms import FormTable
from ftagent.engine.prompt.parsers import ReplyParser
from ftagent.events import Event, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

MARKERS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})
Piece = tuple[str, bool]  # text, and whether it is one added token


def _tool(name: str, **types: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": list(types)})


TOOLS = (
    _tool("write_file", path="string", content="string"),
    _tool("find", q="string", limit="integer"),
    _tool("set_timer", seconds="integer", loop="boolean", label="string"),
    ToolSpec("ping", "", {"type": "object", "properties": {}}),
)


class Call(NamedTuple):
    name: str
    text: str
    complete: bool

    @property
    def arguments(self) -> Any:
        return json.loads(self.text)


class Reply(NamedTuple):
    thinking: str
    content: str
    calls: tuple[Call, ...]


def join(events: Iterable[Event]) -> Reply:
    """Put a stream together. Raises AssertionError when the stream itself is not well formed."""
    thinking, content = "", ""
    calls: list[list[Any]] = []
    open_call = False
    for event in events:
        match event:
            case ThinkingDelta(text):
                assert text
                assert not open_call
                thinking += text
            case TextDelta(text):
                assert text
                assert not open_call
                content += text
            case ToolCallStart(index, _, name):
                assert index == len(calls)
                assert not open_call
                calls.append([name, "", False])
                open_call = True
            case ToolCallDelta(index, arguments):
                assert index == len(calls) - 1
                assert open_call
                assert arguments
                calls[index][1] += arguments
            case ToolCallEnd(index):
                assert index == len(calls) - 1
                assert open_call
                calls[index][2] = True
                open_call = False
            case _:
                raise AssertionError(f"a parser does not emit {event}")
    return Reply(thinking, content, tuple(Call(*call) for call in calls))


class Setup(NamedTuple):
    form: ReplyForm | FormTable = "qwen3_5"
    tools: Sequence[ToolSpec] = TOOLS
    thinking_open: bool = False
    cut: bool = True
    markers: frozenset[str] = MARKERS  # added tokens of vocabularies of this form

    def events(self, pieces: Iterable[Piece], native: frozenset[str] = frozenset()) -> list[Event]:
        parser = ReplyParser(self.form, self.tools, self.thinking_open, native)
        events = [event for text, marker in pieces for event in parser.push(text, marker)]
        events += parser.finish(self.cut)
        assert parser.calls == sum(isinstance(event, ToolCallEnd) for event in events)
        return events

    def parse(self, text: str, splits: int = 200) -> Reply:
        """The reply, equal in every cut: whole, by character, by token, and at random places."""
        whole = join(self.events([(text, False)]))
        for pieces in cuts(text, splits):
            assert join(self.events(pieces)) == whole
        tokens = [(piece, piece in self.markers) for piece in _words(text, self.markers)]
        assert join(self.events(tokens)) == whole, "one token at a time"
        if not re.search(r"[<\[][^>\]\s]*$", text):  # a half marker cannot be an added token
            assert join(self.events(tokens, self.markers)) == whole, "markers as added tokens"
        return whole


def cuts(text: str, splits: int) -> Iterator[list[Piece]]:
    yield [(char, False) for char in text]
    rng = random.Random(text)
    for _ in range(splits):
        places = sorted(rng.choices(range(len(text) + 1), k=rng.randint(1, 12)))
        edges = [0, *places, len(text)]
        yield [(text[a:b], False) for a, b in itertools.pairwise(edges)]


def _words(text: str, markers: frozenset[str]) -> list[str]:
    """Tokens as a vocabulary with added markers would give them."""
    added = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    pieces = [piece for piece in re.split(f"({added})", text) if piece]
    return [word for piece in pieces for word in ([piece] if piece in markers else _WORD.findall(piece))]


_WORD = re.compile(r"\s+|\w{1,4}|[^\s\w]{1,3}?(?=<|\w|\s|$)|.", re.DOTALL)
