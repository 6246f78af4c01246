"""Exact reuse of prompts: which positions of past requests a new one may resume at.

An anchor is a prefix of token ids with all that is needed to go on behind it: its KV pages (shared by
reference counts) and a copy of the recurrent state. Anchors are few and compared by token ids, never by a
hash alone; the least recently used one goes first. Plain decisions on integers: this module moves no
tensor itself and knows neither models nor requests.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ftagent.conversation import Boundary

LAST_EDGES = 3
NEAR = 16  # tokens


class Pages(Protocol):
    """What is needed of a KV page pool (`context.pages.PagePool`)."""

    page_size: int
    total: int
    page_bytes: int

    @property
    def free_count(self) -> int: ...

    def allocate(self, n: int, after: int | None = None) -> list[int]: ...

    def release(self, pages: Sequence[int], /) -> None: ...

    def retain(self, pages: Sequence[int], /) -> None: ...

    def check_integrity(self) -> None: ...


class States(Protocol):
    """What is needed of a pool of recurrent states (`context.recurrent.StatePool`)."""

    total: int
    slot_bytes: int

    @property
    def free_count(self) -> int: ...

    def allocate(self) -> int: ...

    def release(self, slot: int, /) -> None: ...

    def snapshot(self, slot: int, /) -> Any: ...

    def restore(self, slot: int, snapshot: Any, /) -> None: ...

    def check_integrity(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """A place to resume at: `position` tokens lie in `pages`, and `snapshot` is the state behind them.

    The last page may be filled in part; only its first `position % page_size` entries belong to the anchor.
    """

    key: bytes
    position: int
    pages: tuple[int, ...]
    snapshot: Any


def token_key(tokens: Sequence[int]) -> bytes:
    """The ids as bytes, 4 per token, so that one comparison of memory tells whether prefixes are equal."""
    return array("i", tokens).tobytes()


def choose_marks(boundaries: Sequence[Boundary], tokens: int) -> tuple[int, ...]:
    """Prompt positions, in order, that are worth an anchor.

    Agents edit at boundaries, mostly near the end, and share system and tools. Kept are the ends of system
    and tools, the last user message, the first thinking behind it (where the next user turn strips thinking),
    the last LAST_EDGES edges and the end of the prompt. A mark less than NEAR tokens behind another is left
    out (one as near to the start as well): each costs a step of its own, and the earlier one is valid
    wherever the later one is.
    """
    found = [edge for edge in boundaries if 0 < edge.position <= tokens]
    wanted = {edge.position for edge in found if edge.kind in ("system_end", "tools_end")}
    user = max((edge.position for edge in found if edge.kind == "user"), default=0)
    thinking = [edge.position for edge in found if edge.kind == "thinking_start" and edge.position >= user]
    wanted.update(position for position in (user, *thinking[:1]) if position)
    wanted.update(sorted({edge.position for edge in found})[-LAST_EDGES:])
    marks: list[int] = []
    for position in sorted(wanted | {tokens}):
        if position - (marks[-1] if marks else 0) >= NEAR:
            marks.append(position)
    return tuple(marks)


class PrefixCache:
    """At most `capacity` anchors over one page pool and one state pool, least recently used out first."""

    def __init__(self, pages: Pages, states: States, capacity: int) -> None:
        self._pages = pages
        self._states = states
        self._capacity = capacity
        self._anchors: OrderedDict[bytes, Anchor] = OrderedDict()  # oldest use first
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._anchors)

    def find(self, tokens: Sequence[int], marks: Container[int] = ()) -> Anchor | None:
        """The deepest anchor that is a true prefix of `tokens` (one token at least is left to compute).

        A find is a use of all anchors that match: the deepest becomes the newest, then those at `marks`, then
        the others; of each kind the deeper the newer.
        """
        key = token_key(tokens)
        matches = [
            anchor
            for anchor in self._anchors.values()
            if anchor.position < len(tokens) and key.startswith(anchor.key)
        ]
        if not matches:
            return None
        deepest = max(matches, key=lambda anchor: anchor.position)
        matches.sort(key=lambda anchor: (anchor is deepest, anchor.position in marks, anchor.position))
        for anchor in matches:
            self._anchors.move_to_end(anchor.key)
        return deepest

    def keep(self, tokens: Sequence[int], pages: Sequence[int], slot: int) -> bool:
        """Make an anchor behind `tokens`, whose KV fills `pages` from the first and whose state is in `slot`.

        Returns False, and counts it in `skipped`, when there is no room for one.
        """
        key = token_key(tokens)
        if key in self._anchors:
            self._anchors.move_to_end(key)
            return True
        if self._capacity <= 0:
            self.skipped += 1
            return False
        while len(self._anchors) >= self._capacity:
            self._evict()
        count = -(-len(tokens) // self._pages.page_size)  # the request may hold more, for what comes
        snapshot = self._states.snapshot(slot)
        self._pages.retain(pages[:count])
        self._anchors[key] = Anchor(key, len(tokens), tuple(pages[:count]), snapshot)
        return True

    def make_room(self, wanted: int) -> bool:
        """Drop anchors, oldest use first, until `wanted` pages are free. False when that is not enough."""
        while self._pages.free_count < wanted and self._anchors:
            self._evict()
        return self._pages.free_count >= wanted

    def may_extend(self, anchor: Anchor) -> bool:
        """Whether no other anchor has entries behind `anchor` in its last page.

        Then one request may write on there in place, if no other one does.
        """
        last = len(anchor.pages) - 1
        return all(
            other.position <= anchor.position
            for other in self._anchors.values()
            if len(other.pages) > last and other.pages[last] == anchor.pages[last]
        )

    def held_pages(self) -> set[int]:
        """All pages that some anchor holds; requests may hold some of them as well."""
        return {page for anchor in self._anchors.values() for page in anchor.pages}

    def clear(self) -> None:
        """Drop all anchors."""
        while self._anchors:
            self._evict()

    def check_integrity(self) -> None:
        """Raise AssertionError when an anchor does not fit its own key or there are too many of them."""
        assert len(self._anchors) <= max(self._capacity, 0), "more anchors than the capacity"
        for key, anchor in self._anchors.items():
            assert key == anchor.key, "an anchor under a foreign key"
            assert len(key) == 4 * anchor.position, "an anchor whose key has another length"
            count = -(-anchor.position // self._pages.page_size)
            assert len(anchor.pages) == count, "an anchor without pages"

    def _evict(self) -> None:
        _, anchor = self._anchors.popitem(last=False)
        self._pages.release(anchor.pages)
