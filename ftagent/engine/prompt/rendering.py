"""One conversation as its template writes it, and every block edge in it, in characters.

Renders with and without marks, and compares with what the same conversation would look like with one more
tool, or one exchange later. Knows no token ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ftagent.conversation import BoundaryKind, ToolSpec
from ftagent.engine.prompt.boundaries import Leaf, Span, Unmarked, common_prefix, unmark
from ftagent.engine.prompt.canonical import Turn
from ftagent.engine.prompt.writer import Wording, Writer
from ftagent.errors import BadRequest

_MAX_TRIALS = 24  # renderings spent to find which leaves a template changes
_NEXT_TOOL = ToolSpec("zqtool", "zqtool", {"type": "object", "properties": {}})


class Edge(NamedTuple):
    """A block edge in characters of the prompt."""

    offset: int
    kind: BoundaryKind
    message: int


class ReplyEnd(NamedTuple):
    """The text that ends an assistant's turn: characters [start, end). Not `closed`: it has none."""

    start: int
    end: int
    closed: bool


class Rendering:
    """One conversation, rendered with and without marks."""

    def __init__(self, writer: Writer, turns: Sequence[Turn], wording: Wording, messages: int) -> None:
        self._writer = writer
        self._turns = turns
        self._wording = wording
        self._messages = messages  # of the conversation
        plain = writer.marker()
        base = unmark(writer.write(turns, wording, plain))
        self._leaves: list[Leaf] = plain.leaves
        self._inner = plain.inner
        wanted = [number for number, leaf in enumerate(plain.leaves) if leaf.kind in writer.markable]
        self._enclosed = frozenset(wanted)
        self.found = self._marked(base, wanted)
        # Some templates name the called tool before its result as well.
        self._calls = frozenset(number for number in wanted if plain.leaves[number].kind == "call")
        self._spans = self.found.once(self._calls)
        self._ordered = sorted(self._spans.values())

    def edges(self) -> Iterator[Edge]:
        """Every block edge that is known for certain, in no order."""
        yield from self._word_edges()
        yield from self._assistant_ends()
        yield from self._thinking_starts()
        yield from self._tools_end()

    def _marked(self, base: Unmarked, wanted: Sequence[int]) -> Unmarked:
        """The rendering with as many leaves enclosed as leave its text as it was."""
        found = self._enclosing(wanted, base)
        if found is not None:
            return found
        kept: list[int] = []
        open_parts = [list(wanted)]
        for _ in range(_MAX_TRIALS):
            if not open_parts:
                break
            part = open_parts.pop()
            if self._enclosing(part, base) is not None:
                kept += part
            elif len(part) > 1:
                open_parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        found = self._enclosing(kept, base)
        self._enclosed = frozenset(kept if found else ())
        return found or base

    def _enclosing(self, leaves: Sequence[int], base: Unmarked) -> Unmarked | None:
        try:
            written = self._writer.write(self._turns, self._wording, self._writer.marker(frozenset(leaves)))
        except BadRequest:
            return None  # the template took offence at the marks
        found = unmark(written)
        return found if found.text == base.text else None

    def _word_edges(self) -> Iterator[Edge]:
        said = [turn.message for turn in self._turns if turn.role != "system"]
        for number, span in self._spans.items():
            kind, message = self._leaves[number]
            if kind == "system" and message < (said[0] if said else self._messages):
                yield Edge(span.end, "system_end", message)
            elif kind in ("system", "user"):
                yield Edge(span.start, "user", message)
                yield from self._inner_edges(number)
            elif kind == "thinking":
                yield Edge(span.end, "thinking_end", message)
            elif kind == "call":
                yield Edge(span.start, "tool_call", message)
            elif kind == "result":
                yield Edge(span.start, "tool_result", message)

    def _inner_edges(self, number: int) -> Iterator[Edge]:
        """Where further blocks begin in the user's words, if they were written as they were given."""
        inner, span = self._inner.get(number), self._spans[number]
        if inner is not None and span.end - span.start == inner.length:
            message = self._leaves[number].message
            yield from (Edge(span.start + offset, "user", message) for offset in inner.edges)

    def _assistant_ends(self) -> Iterator[Edge]:
        for index, span in enumerate(self._ordered):
            kind, message = self._leaves[span.leaf]
            found = self._end_behind(index)
            if found is not None and (found.closed or kind == "text"):
                yield Edge(found.end, "assistant_end", message)

    def _end_behind(self, index: int) -> ReplyEnd | None:
        """Where the assistant's turn ends whose last leaf this is; None for any other leaf."""
        span = self._ordered[index]
        kind, message = self._leaves[span.leaf]
        after = self._ordered[index + 1] if index + 1 < len(self._ordered) else None
        if kind not in ("text", "call", "argument"):
            return None
        if after is not None and self._leaves[after.leaf].message == message:
            return None
        gap = self.found.text[span.end : after.start if after else len(self.found.text)]
        closer = self._writer.closer if kind == "text" else self._writer.call_closer
        place = gap.find(closer) if closer.strip() else -1
        if place < 0:
            return ReplyEnd(span.end, span.end, closed=False)
        return ReplyEnd(span.end + place, span.end + place + len(closer), closed=True)

    def reply_end(self, message: int, start: int) -> ReplyEnd | None:
        """Where the whole of an assistant's message ends that begins at character `start`.

        None when that is not certain, or when anything else is written in between.
        """
        inside = [index for index, span in enumerate(self._ordered) if span.start >= start]
        own = list(itertools.takewhile(lambda index: self._message(index) == message, inside))
        others = inside[len(own) :]
        if not own or any(self._message(index) == message for index in others):
            return None
        end = self._end_behind(own[-1])
        sure = end is not None and (end.closed or self._leaves[self._ordered[own[-1]].leaf].kind == "text")
        return end if sure else None

    def shows_thinking(self, message: int) -> bool:
        """Whether the thinking of a message is in the prompt."""
        return any(self._leaves[leaf] == Leaf("thinking", message) for leaf in self._spans)

    def call_ids(self, message: int) -> list[str]:
        """The ids that the calls of a message have in the prompt, where the template writes them."""
        return [call.id for turn in self._turns if turn.message == message for call in turn.calls]

    def _message(self, index: int) -> int:
        return self._leaves[self._ordered[index].leaf].message

    def _thinking_starts(self) -> Iterator[Edge]:
        """Compare with the same conversation one exchange later, when thinking is no longer shown."""
        future = self._future()
        if future is None:
            return
        spans = future.once(self._calls)
        ordered = sorted(spans.values())
        following = {span.leaf: after.start for span, after in itertools.pairwise(ordered)}
        for index in range(len(self._ordered) + 1):
            before = self._ordered[index - 1] if index else None
            after = self._ordered[index] if index < len(self._ordered) else None
            message = self._leaves[after.leaf].message if after else self._messages
            if after and not self._begins_assistant(before, after):
                continue
            start = before.end if before else 0
            gap = self.found.text[start : after.start if after else len(self.found.text)]
            if before is None:
                later = future.text[: ordered[0].start if ordered else 0]
            elif before.leaf in following:
                later = future.text[spans[before.leaf].end : following[before.leaf]]
            else:
                continue  # the leaf before is not shown in the future: nothing to compare with
            common = common_prefix(gap, later)
            thinks = after is not None and self._leaves[after.leaf].kind == "thinking"
            if thinks or common < len(gap) or after is None:
                yield Edge(start + common, "thinking_start", message)

    def _begins_assistant(self, before: Span | None, after: Span) -> bool:
        kind, message = self._leaves[after.leaf]
        first = before is None or self._leaves[before.leaf].message != message
        return first and kind in ("thinking", "text", "call")

    def _future(self) -> Unmarked | None:
        reply = Turn("assistant", self._messages, "zqreply")
        turns = [*self._turns, reply, Turn("user", self._messages + 1, "zqnext")]
        enclosed = self._enclosed | set(range(len(self._leaves), len(self._leaves) + 3))
        try:
            marker = self._writer.marker(enclosed)
            return unmark(self._writer.write(turns, self._wording, marker, drop_thinking=True))
        except BadRequest:
            return None  # not a conversation that this template accepts, so nothing is known of it

    def _tools_end(self) -> Iterator[Edge]:
        """Compare with one more tool offered. The beginning of the conversation is enough for that."""
        if not self._wording.tools:
            return
        head = list(itertools.takewhile(lambda turn: turn.role == "system", self._turns))
        head += self._turns[len(head) : len(head) + 1]
        more = replace(self._wording, tools=(*self._wording.tools, *self._writer.tools([_NEXT_TOOL])))
        try:
            now, then = (
                unmark(self._writer.write(head, wording, self._writer.marker())).text
                for wording in (self._wording, more)
            )
        except BadRequest:
            return
        common = common_prefix(now, then)
        if common < len(now) and self.found.text.startswith(now[:common]):
            yield Edge(common, "tools_end", -1)
