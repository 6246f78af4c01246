"""A radix tree over token ids: which prefixes have their keys and values in pages.

A node is a run of tokens that nothing branches off from, with the pages that hold them; page i of a path
holds its positions [i * page_size, (i + 1) * page_size). Where a branch leaves in the middle of a page, the
branch has a page of its own with all that stands before it in that page, so the deepest page of a path is
always the complete one. Ids are compared as memory, never by hash; a look-up costs the length of the match.

Plain integers: knows no snapshots' contents, no requests and no models.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ftagent.engine.context.pools import Pages

ID_BYTES = array("i").itemsize

Key = bytes | bytearray
"""Token ids as native ints, ID_BYTES each."""


def token_key(tokens: Sequence[int]) -> bytes:
    """The ids as memory, so that one comparison tells whether runs are equal."""
    return array("i", tokens).tobytes()


@dataclass(slots=True, eq=False)
class Line:
    """A conversation as its prompts show it: requests that go on behind each other.

    `head` tokens of its first prompt stay as they are in later turns; who shares them belongs to it.
    `newest` are the anchors at which its next request will resume. `agent`: more turns are to be expected.
    """

    head: int
    agent: bool = False
    turns: int = 0
    used: int = 0  # number of the request that used it last
    newest: list[Anchor] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return self.agent or self.turns > 1


@dataclass(slots=True, eq=False)
class Anchor:
    """A place to resume at: `position` tokens lie before it. `snapshot` is the recurrent state there.

    `mark`: it stays though its request has gone on.
    """

    position: int
    node: Node
    snapshot: Any
    line: Line
    level: int = 0  # see `value`
    mark: bool = False
    uses: int = 0  # requests that have resumed here
    stamp: int = 0  # of its newest entry in the order of eviction
    alive: bool = True


@dataclass(slots=True, eq=False)
class Node:
    """Tokens [start, end) of one path. `pages` begin with the page of position `start`."""

    start: int
    run: bytearray
    pages: list[int]
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    anchors: list[Anchor] = field(default_factory=list)  # by position, in (start, end]

    @property
    def end(self) -> int:
        return self.start + len(self.run) // ID_BYTES

    def anchor_at_most(self, position: int) -> Anchor | None:
        """The deepest anchor of this node that is not behind `position`."""
        place = bisect_right(self.anchors, position, key=_position)
        return self.anchors[place - 1] if place else None

    def key(self, position: int) -> bytes:
        """All ids of the path up to `position`, which lies in this node."""
        runs = [self.run[: (position - self.start) * ID_BYTES]]
        above = self.parent
        while above is not None:
            runs.append(above.run)
            above = above.parent
        return b"".join(reversed(runs))


class Path(NamedTuple):
    """The nodes that a prefix runs through, and how many of its tokens they hold."""

    nodes: list[Node]
    matched: int

    def pages(self, position: int, page_size: int) -> list[int]:
        """The pages that hold positions [0, position)."""
        pages: list[int] = []
        for node in self.nodes:
            if node.start >= position:
                break
            pages[node.start // page_size :] = node.pages
        return pages[: -(-position // page_size)]

    def deepest(self, position: int) -> Anchor | None:
        """The deepest anchor that is not behind `position`."""
        for node in reversed(self.nodes):
            if node.start < position and (found := node.anchor_at_most(position)):
                return found
        return None


class PrefixTree:
    """Holds one reference to each page of each node."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._size = pages.page_size
        self._root = Node(0, bytearray(), [], None)

    def walk(self, key: Key, limit: int) -> Path:
        """As far as the first `limit` ids of `key` are in the tree."""
        node, position = self._root, 0
        nodes: list[Node] = []
        while position < limit and (child := node.children.get(_first(key, position))):
            nodes.append(child)
            whole = len(child.run) // ID_BYTES
            if position + whole <= limit and key.startswith(child.run, position * ID_BYTES):
                node, position = child, position + whole
                continue
            return Path(nodes, position + _common(key, position, child.run, min(whole, limit - position)))
        return Path(nodes, position)

    def add(self, key: Key, length: int, pages: Sequence[int]) -> Node:
        """The node that holds the last of the first `length` ids of `key`, made of `pages` (which hold the
        prefix from its beginning) as far as it is not there.
        """
        path = self.walk(key, length)
        last = path.nodes[-1] if path.nodes else self._root
        if path.matched == length:
            return last
        if path.matched < last.end:
            last = self._split(last, path.matched)
        return self._append(last, key[path.matched * ID_BYTES : length * ID_BYTES], pages)

    def trim(self, node: Node) -> Anchor | None:
        """Cut what lies behind the last anchor of a branch that ends with `node`, and free its pages.

        Returns the anchor that the branch ends with now, if it ends with one.
        """
        while node.parent is not None and not node.children:
            end = node.anchors[-1].position if node.anchors else node.start
            kept = -(-end // self._size) - node.start // self._size if node.anchors else 0
            self._pages.release(node.pages[kept:])
            del node.pages[kept:]
            if node.anchors:
                del node.run[(end - node.start) * ID_BYTES :]
                return node.anchors[-1]
            del node.parent.children[_first(node.run, 0)]
            node = node.parent
        return None

    def tail_pages(self, anchor: Anchor) -> Sequence[int]:
        """The pages that a branch ending with `anchor` would lose with it; some may be in use elsewhere."""
        node = anchor.node
        if node.children or node.anchors[-1] is not anchor:
            return ()
        before = node.anchors[-2].position if len(node.anchors) > 1 else node.start
        first = -(-before // self._size) if len(node.anchors) > 1 else node.start // self._size
        return node.pages[first - node.start // self._size :]

    def cut(self, node: Node) -> list[Anchor]:
        """Take out `node` and all below it, and free their pages. Returns the anchors that went."""
        assert node.parent is not None, "the root holds no tokens"
        del node.parent.children[_first(node.run, 0)]
        gone: list[Anchor] = []
        below = [node]
        while below:
            node = below.pop()
            self._pages.release(node.pages)
            gone += node.anchors
            below += node.children.values()
        return gone

    def path_holds(self, node: Node, place: int) -> int:
        """How often the path that ends with `node` holds the page that `node` holds at `place`."""
        page, index = node.pages[place], node.start // self._size + place
        count = 0
        above: Node | None = node
        while above is not None and index - above.start // self._size < len(above.pages):
            count += above.pages[index - above.start // self._size] == page
            above = above.parent
        return count

    def nodes(self) -> Iterator[Node]:
        """All nodes, for checks."""
        open_nodes = list(self._root.children.values())
        while open_nodes:
            node = open_nodes.pop()
            yield node
            open_nodes += node.children.values()

    def clear(self) -> None:
        """Drop everything."""
        for node in self.nodes():
            self._pages.release(node.pages)
        self._root.children.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError when a node does not fit its neighbours, its pages or its anchors."""
        held: dict[int, int] = {}
        for node in self.nodes():
            parent = node.parent
            assert parent is not None, "a node without a parent"
            assert node.run, "an empty node"
            assert parent.end == node.start, "a gap between nodes"
            assert parent.children[_first(node.run, 0)] is node, "a node under a foreign token"
            count = -(-node.end // self._size) - node.start // self._size
            assert len(node.pages) == count, "a node whose pages do not cover it"
            positions = [anchor.position for anchor in node.anchors]
            assert positions == sorted(set(positions)), "anchors out of order"
            assert all(node.start < position <= node.end for position in positions), "an anchor elsewhere"
            assert all(anchor.node is node and anchor.alive for anchor in node.anchors), "a foreign anchor"
            assert node.children or positions[-1:] == [node.end], "a branch that ends without an anchor"
            for page in node.pages:
                held[page] = held.get(page, 0) + 1
        for page, count in held.items():
            assert self._pages.references(page) >= count, f"page {page} is in the tree but not held"

    def _split(self, node: Node, position: int) -> Node:
        """Part `node` at `position` and return the upper half; the lower one keeps its children."""
        assert node.parent is not None, "the root holds no tokens"
        cut = (position - node.start) * ID_BYTES
        first = node.start // self._size
        inner = -(-position // self._size) - first
        upper = Node(node.start, node.run[:cut], node.pages[:inner], node.parent)
        place = bisect_right(node.anchors, position, key=_position)
        upper.anchors = node.anchors[:place]
        for anchor in upper.anchors:
            anchor.node = upper
        node.parent.children[_first(node.run, 0)] = upper
        upper.children[_first(node.run, cut // ID_BYTES)] = node
        node.pages = node.pages[position // self._size - first :]
        if position % self._size:
            self._pages.retain(node.pages[:1])  # both halves have tokens in it
        node.start, node.run, node.anchors, node.parent = (
            position,
            node.run[cut:],
            node.anchors[place:],
            upper,
        )
        return upper

    def _append(self, node: Node, run: Key, pages: Sequence[int]) -> Node:
        """Put `run` behind the end of `node`: into the node itself where the pages are the same."""
        start = node.end
        first, last = start // self._size, -(-(start + len(run) // ID_BYTES) // self._size)
        inside = start % self._size
        grows = node.parent is not None and not node.children
        if grows and (not inside or node.pages[-1] == pages[first]):
            fresh = pages[first + (inside > 0) : last]
            node.run += run
            node.pages += fresh
        else:
            fresh = pages[first:last]
            child = Node(start, bytearray(run), list(fresh), node)
            node.children[_first(run, 0)] = child
            node = child
        self._pages.retain(fresh)
        return node


def common_ids(first: Key, second: Key) -> int:
    """How many ids `first` and `second` begin with in common."""
    return _common(first, 0, second, min(len(first), len(second)) // ID_BYTES)


def _position(anchor: Anchor) -> int:
    return anchor.position


def _first(key: Key, position: int) -> int:
    found: int = struct.unpack_from("i", key, position * ID_BYTES)[0]
    return found


def _common(key: Key, position: int, run: Key, count: int) -> int:
    """How many of the first `count` ids of `run` stand in `key` from `position` on."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        here = key[(position + low) * ID_BYTES : (position + middle) * ID_BYTES]
        if here == run[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
