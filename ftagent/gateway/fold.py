"""One fold of engine events into reply blocks, behind every protocol, streamed or not.

The streamed renderers send what each `push` returns; the whole renderers read `blocks` at the end. Knows no
protocol and no HTTP.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from ftagent.errors import EngineError
from ftagent.events import (
    Event,
    Finished,
    Logprobs,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

BlockKind = Literal["thinking", "text", "tool"]


@dataclass(slots=True)
class ReplyBlock:
    """One block of the reply, growing. `call` is set for tool blocks only."""

    kind: BlockKind
    index: int  # position among the blocks of this reply
    call: ToolCallStart | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The words, or the arguments as JSON text."""
        return "".join(self.pieces)

    def arguments(self) -> dict[str, Any]:
        """The arguments as an object; of a call that was cut off, the members that are complete."""
        try:
            value = json.loads(self.text)  # takes deeper nesting than from_json
        except (ValueError, RecursionError):
            try:
                value = from_json(self.text, allow_partial=True)
            except ValueError:
                return {}
        return value if isinstance(value, dict) else {}

    def free_text(self) -> str:
        """The text of a free-form call; all that was said where the model did not put it into `input`."""
        arguments = self.arguments()
        text = arguments.get("input", self.text if arguments else "")
        return text if isinstance(text, str) else self.text


class Opened(NamedTuple):
    block: ReplyBlock


class Grew(NamedTuple):
    block: ReplyBlock
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Closed(NamedTuple):
    block: ReplyBlock


Part = Opened | Grew | Closed


class ReplyFold:
    """Blocks in order; at most one is open. A block of another kind, or the end, closes the open one."""

    def __init__(self) -> None:
        self.blocks: list[ReplyBlock] = []
        self.finished: Finished | None = None
        self.unplaced: list[TokenLogprob] = []  # reported tokens that no delta has claimed yet
        self._open: ReplyBlock | None = None

    def push(self, event: Event) -> list[Part]:
        """What `event` changed. Raises EngineError when it does not fit the order of events."""
        match event:
            case ThinkingDelta(text):
                return self._words("thinking", text)
            case TextDelta(text):
                return self._words("text", text)
            case ToolCallStart():
                return self._start("tool", event)
            case ToolCallDelta(index, arguments):
                return self._grow(self._call(index), arguments) if arguments else []
            case ToolCallEnd(index):
                return self._end_call(self._call(index))
            case Logprobs(tokens):
                self.unplaced.extend(tokens)
            case Finished():
                self.finished = event
                return self._close()
        return []

    def _words(self, kind: BlockKind, text: str) -> list[Part]:
        if not text:
            return []
        parts: list[Part] = []
        if self._open is None or self._open.kind != kind:
            parts += self._start(kind)
        assert self._open is not None
        return parts + self._grow(self._open, text)

    def _start(self, kind: BlockKind, call: ToolCallStart | None = None) -> list[Part]:
        parts = self._close()
        self._open = ReplyBlock(kind, len(self.blocks), call)
        self.blocks.append(self._open)
        return [*parts, Opened(self._open)]

    def _grow(self, block: ReplyBlock, text: str) -> list[Part]:
        block.pieces.append(text)
        tokens, self.unplaced = tuple(self.unplaced), []
        block.logprobs.extend(tokens)
        return [Grew(block, text, tokens)]

    def _call(self, index: int) -> ReplyBlock:
        if self._open is None or self._open.call is None or self._open.call.index != index:
            raise EngineError(f"the engine continued tool call {index}, which is not open")
        return self._open

    def _end_call(self, block: ReplyBlock) -> list[Part]:
        # A call without arguments is an empty object, never an empty string, which no client can parse.
        parts = [] if block.pieces else self._grow(block, "{}")
        return parts + self._close()

    def _close(self) -> list[Part]:
        closed, self._open = self._open, None
        return [Closed(closed)] if closed else []
