"""Reuse of prompts: where a request may resume, what is kept behind it, and what gives way.

Keys and values of past prompts hang in a `tree.PrefixTree`; an anchor is a position in it with the recurrent
state there. A model without recurrent state can resume at any position whose pages are there. What is kept
when room is short is decided by `value`. Plain decisions on integers: this module moves no tensor itself and
knows neither models nor text.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from ftagent.engine.context.pools import Pages, States
from ftagent.engine.context.tiers import Contents, PrefixStore, Segment
from ftagent.engine.context.tree import Anchor, Key, Line, Node, Path, PrefixTree
from ftagent.engine.context.value import Order, Rank, may_displace, rank_of, worth
from ftagent.engine.context.visits import Match, Visit

_NOBODY = 1 << 62  # a prompt that long continues what was brought back
NS_PER_TOKEN = 1_000_000  # of prefill; only its ratio to bytes counts, and that is the same for all anchors

_Entry = tuple[Order, int, Anchor]


class PrefixCache:
    """At most `capacity` snapshots over one page pool and one state pool; with 0 nothing is kept at all.

    Where states have no bytes only the pages bound what is kept. With a `store`, what conversations lose here
    can be brought back from there.
    """

    def __init__(self, pages: Pages, states: States, capacity: int, store: PrefixStore | None = None) -> None:
        self._pages = pages
        self._states = states
        self.capacity = max(capacity, 0)
        self._store = store
        self._tree = PrefixTree(pages)
        self._stateful = states.slot_bytes > 0
        self._count = 0  # anchors
        self._requests = 0
        self._level = 0
        self._stamps = 0
        self._all: list[_Entry] = []  # heap of what holds a snapshot; old entries stay
        self._tails: list[_Entry] = []  # heap of what a branch ends with; likewise
        self.skipped = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: Key, length: int) -> Match:
        """The deepest place to resume for a prompt of `length` ids (one at least is left to compute).

        Its position is 0 when there is none.
        """
        path = self._tree.walk(key, length - 1)
        anchor = path.deepest(path.matched)
        position = path.matched
        if self._stateful:
            position = anchor.position if anchor else 0
        if not position:
            return Match(0, [], None, path.matched, None, path, False)
        pages = path.pages(position, self._pages.page_size)
        snapshot = anchor.snapshot if anchor and self._stateful else None
        return Match(
            position, pages, snapshot, path.matched, anchor, path, self._is_sole(path, position, pages)
        )

    def begin(self, match: Match, head: int, marks: Iterable[int] = (), *, agent: bool = False) -> Visit:
        """A request starts, and resumes at `match`. `head` and `agent`: see `tree.Line`.

        That is a use of the anchor and of those at `marks`.
        """
        self._requests += 1
        line = Line(head, agent)
        if match.anchor is not None:
            before = match.anchor.line
            if match.matched >= before.head:
                line = before
            self._use(match.anchor)
            match.anchor.uses += 1
            before.used = self._requests
            for mark in marks:
                found = match.path.deepest(mark)
                if found is not None and found.position == mark and found is not match.anchor:
                    self._use(found)
        line.turns += 1
        line.used = self._requests
        return Visit(line)

    def choose(self, visit: Visit, places: Sequence[int], start: int, promised: int) -> list[int]:
        """Those of `places`, in order behind `start`, whose states are worth taking on the way; room is made
        for them, for the chunk's end and for `promised` others. The rest is counted in `skipped`.
        """
        gaps = {place: place - before for before, place in pairwise((start, *places))}
        rank = rank_of(newest=False, goes_on=visit.line.goes_on, uses=0)
        chosen: list[int] = []
        for place in sorted(places, key=lambda place: -gaps[place]):
            order = Order(rank, self._level + worth(gaps[place], NS_PER_TOKEN, self._states.slot_bytes))
            if not self._make_snapshot_room(visit, promised + len(chosen) + 2, order):
                break
            chosen.append(place)
        self.skipped += len(places) - len(chosen)
        return sorted(chosen)

    def keep(
        self, key: Key, position: int, pages: Sequence[int], slot: int, visit: Visit, *,
        mark: bool, taken: Any = None,
    ) -> Anchor | None:  # fmt: skip
        """Make an anchor behind the first `position` ids of `key`, whose KV fills `pages` from the first and
        whose state is in `slot`, or was `taken` there. Without `mark` it gives way to the request's next one.

        Returns None, and counts it in `skipped`, when there is no room for one.
        """
        path = self._tree.walk(key, position)
        found = path.deepest(position) if path.matched == position else None
        replaced, visit.rolling = self._replaceable(visit, position), None
        if found is None or found.position != position:
            if replaced is not None:
                replaced.snapshot = None  # before the new one takes memory
            room = replaced is not None or self._make_snapshot_room(visit)
            snapshot = self._snapshot(slot) if room and taken is None else taken
            if not room or (self._stateful and snapshot is None):
                self.skipped += 1
                if replaced is not None:
                    self._drop(replaced)
                return None
            found = self._attach(self._tree.add(key, position, pages), position, snapshot, visit.line)
            visit.rolling = None if mark else found
        if replaced is not None and replaced is not found:
            replaced.node.anchors.remove(replaced)
            self._forget(replaced)
        self._use(found)
        if mark:
            found.mark = True
            visit.marks.append(found)
        return found

    def save(self, anchor: Anchor) -> None:
        """Let the prefix that ends with `anchor` outlive the process, if there is a store."""
        if self._store is not None:
            self._write(self._store, anchor, 0, lasting=True)

    def fetch(self, key: Key, length: int, match: Match) -> bool:
        """Bring back what the store has behind `match`, for a prompt of `length` ids, if there is room.

        False when it has nothing worth the copy; else `match` is out of date: anchors may have given way.
        """
        if self._store is None:
            return False
        chain = self._store.chain(key, length - 1, match.position, match.matched)
        if not chain:
            return False
        size, end = self._pages.page_size, chain[-1].position
        first = max(chain[0].first, min(match.matched, end) // size)
        pages = match.path.pages(first * size, size)
        self._pages.retain(pages)  # so that making room cannot free them
        wanted = -(-end // size) - first
        visit = Visit(Line(_NOBODY, agent=True))
        room, snapshot = self.make_room(wanted) and self._make_snapshot_room(visit), None
        if room and self._stateful:
            snapshot = self._store.contents.unpack(chain[-1].state)
        if room and (snapshot is not None or not self._stateful):
            pages += self._pages.allocate(wanted, after=pages[-1] if pages else None)
            for segment in chain:
                self._bring_back(self._store.contents, segment, pages, first)
            anchor = self._attach(self._tree.add(key, end, pages), end, snapshot, visit.line)
            anchor.mark = True
            self._use(anchor)
            self._store.restored_tokens += end - match.position
        self._pages.release(pages)
        return True

    def distrust(self, key: Key, position: int) -> int:
        """Drop what shares pages with the first `position` ids of `key`, here and in the store, since it was
        found to be wrong. Returns how many anchors went.
        """
        nodes = self._tree.walk(key, position).nodes
        gone = self._tree.cut(nodes[0]) if nodes else []
        for anchor in gone:
            self._forget(anchor)
        if self._store is not None:
            self._store.forget(key, position)
        return len(gone)

    def end(self, visit: Visit, position: int, strip: int) -> None:
        """A request has ended at `position`. Its conversation goes on from there, or from the deepest mark up
        to `strip`, where the next turn may leave thinking out.
        """
        line = visit.line
        kept = [anchor for anchor in (*visit.marks, visit.rolling) if anchor is not None and anchor.alive]
        newest = [anchor for anchor in kept if anchor.position == position]
        newest += sorted((a for a in kept if a.position <= strip), key=lambda a: -a.position)[:1]
        before, line.newest = line.newest, list(dict.fromkeys(newest))
        for anchor in before:
            if anchor.alive:
                self._push(anchor)
        for anchor in line.newest:
            self._push(anchor)

    def make_room(self, wanted: int) -> bool:
        """Drop what ends branches, by value, until `wanted` pages are free. False when that is not enough."""
        for idle in (self._is_idle, lambda anchor: True):
            while self._pages.free_count < wanted:
                victim = self._victim(self._tails, idle)
                if victim is None:
                    break
                self._evict(victim)
        return self._pages.free_count >= wanted

    def held_pages(self) -> set[int]:
        """All pages of the tree; requests may hold some of them as well. For checks."""
        return {page for node in self._tree.nodes() for page in node.pages}

    def clear(self) -> None:
        """Drop everything."""
        for node in self._tree.nodes():
            for anchor in node.anchors:
                anchor.alive = False
        self._tree.clear()
        self._all.clear()
        self._tails.clear()
        self._count = 0

    def check_integrity(self) -> None:
        """Raise AssertionError when tree, anchors and the order of eviction do not fit each other."""
        self._tree.check_integrity()
        anchors = [anchor for node in self._tree.nodes() for anchor in node.anchors]
        assert self._count == len(anchors), "anchors are miscounted"
        assert self._count <= self.capacity or not self._stateful, "more snapshots than the capacity"
        for heap, listed in (
            (self._all, anchors if self._stateful else []),
            (self._tails, [anchor for anchor in anchors if self._is_end(anchor)]),
        ):
            current = [anchor for _, stamp, anchor in heap if anchor.alive and anchor.stamp == stamp]
            assert set(listed) <= set(current), "an anchor that can never be dropped"
        if self._store is not None:
            self._store.check_integrity()

    def _is_sole(self, path: Path, position: int, pages: Sequence[int]) -> bool:
        """Whether its last page holds nothing but this prefix, and nobody but its path holds that page."""
        node = next(node for node in reversed(path.nodes) if node.start < position)
        holders = self._tree.path_holds(node, len(node.pages) - 1)
        return node.end == position and self._pages.references(pages[-1]) == holders

    def _snapshot(self, slot: int) -> Any:
        return self._states.snapshot(slot) if self._stateful else None

    def _bring_back(self, contents: Contents, segment: Segment, pages: Sequence[int], first: int) -> None:
        """Write a segment's pages, those from number `first` on, into `pages`, which begin with number 0."""
        count = len(segment.pages) // max(contents.page_bytes, 1)
        begin = max(segment.first, first)
        end = min(segment.first + count, len(pages))
        if begin < end:
            contents.write_pages(pages[begin:end], segment.pages, begin - segment.first)

    def _write(self, store: PrefixStore, anchor: Anchor, first: int, *, lasting: bool) -> None:
        """Copy what lies before `anchor`, from page number `first` on, into the store."""
        key = anchor.node.key(anchor.position)
        pages = self._tree.walk(key, anchor.position).pages(anchor.position, self._pages.page_size)
        store.save(key, first, pages[first:], anchor.snapshot, lasting=lasting)

    def _attach(self, node: Node, position: int, snapshot: Any, line: Line) -> Anchor:
        self._count += 1
        anchor = Anchor(position, node, snapshot, line)
        insort(node.anchors, anchor, key=lambda other: other.position)
        place = bisect_left(node.anchors, position, key=lambda other: other.position)
        for neighbour in node.anchors[place + 1 : place + 2]:
            self._push(neighbour)  # it is worth less now
        return anchor

    def _replaceable(self, visit: Visit, position: int) -> Anchor | None:
        """The anchor behind the request's last chunk, unless somebody has resumed there meanwhile."""
        rolling = visit.rolling
        if rolling is None or not rolling.alive or rolling.uses or rolling.mark:
            return None
        return rolling if rolling.position < position else None

    def _make_snapshot_room(self, visit: Visit, wanted: int = 1, below: Order | None = None) -> bool:
        """See that `wanted` more snapshots may be taken, dropping what is worth least, and with `below` only
        what comes before it in the order.
        """
        if wanted > self.capacity:
            return False
        while self._stateful and self._count + wanted > self.capacity:
            victim = self._victim(self._all, lambda anchor: self._may_displace(visit, anchor, below))
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _may_displace(self, visit: Visit, anchor: Anchor, below: Order | None) -> bool:
        idle, order = self._requests - anchor.line.used, self._order(anchor)
        return may_displace(visit.line.goes_on, order.rank, idle) and (below is None or order < below)

    def _is_idle(self, anchor: Anchor) -> bool:
        """Whether no request holds the end of the branch that ends with `anchor`: dropping it, or what is
        before it, then frees pages.
        """
        node = anchor.node
        holders = self._tree.path_holds(node, len(node.pages) - 1)
        return self._pages.references(node.pages[-1]) == holders

    def _victim(self, heap: list[_Entry], allowed: Callable[[Anchor], bool]) -> Anchor | None:
        """The first anchor in the order that may go; its entry is taken out."""
        refused: list[_Entry] = []
        victim = None
        while heap and victim is None:
            entry = heapq.heappop(heap)
            order, stamp, anchor = entry
            if (
                not anchor.alive
                or anchor.stamp != stamp
                or (heap is self._tails and not self._is_end(anchor))
            ):
                continue
            if self._order(anchor) > order:
                self._push(anchor)  # it has become worth more since
            elif allowed(anchor):
                victim = anchor
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(heap, entry)
        return victim

    def _evict(self, anchor: Anchor) -> None:
        order = self._order(anchor)
        if order.rank is not Rank.NEWEST:
            self._level = max(self._level, order.level)
        if self._store is not None and order.rank is not Rank.ONE_SHOT:
            self._write(self._store, anchor, self._before(anchor) // self._pages.page_size, lasting=False)
        self._drop(anchor)

    def _drop(self, anchor: Anchor) -> None:
        node = anchor.node
        node.anchors.remove(anchor)
        self._forget(anchor)
        end = self._tree.trim(node)
        if end is not None:
            self._push(end)

    def _forget(self, anchor: Anchor) -> None:
        anchor.alive = False
        anchor.snapshot = None
        self._count -= 1
        if anchor in anchor.line.newest:
            anchor.line.newest.remove(anchor)

    def _use(self, anchor: Anchor) -> None:
        anchor.level = self._level
        self._push(anchor)

    def _push(self, anchor: Anchor) -> None:
        """Enter an anchor into the order as it stands now; its older entries no longer count."""
        self._stamps += 1
        anchor.stamp = self._stamps
        entry = (self._order(anchor), anchor.stamp, anchor)
        if self._stateful:
            self._enter(self._all, entry)
        if self._is_end(anchor):
            self._enter(self._tails, entry)

    def _enter(self, heap: list[_Entry], entry: _Entry) -> None:
        heapq.heappush(heap, entry)
        if len(heap) > 4 * self._count + 64:  # most entries are old
            heap[:] = [old for old in heap if old[2].alive and old[2].stamp == old[1]]
            heapq.heapify(heap)

    def _is_end(self, anchor: Anchor) -> bool:
        node = anchor.node
        return not node.children and node.anchors[-1] is anchor and node.end == anchor.position

    def _order(self, anchor: Anchor) -> Order:
        line = anchor.line
        rank = rank_of(newest=anchor in line.newest, goes_on=line.goes_on, uses=anchor.uses)
        if rank is Rank.NEWEST:
            return Order(rank, line.used)
        before = self._before(anchor)
        tail = len(self._tree.tail_pages(anchor))
        freed = self._states.slot_bytes + tail * self._pages.page_bytes
        return Order(rank, anchor.level + worth(anchor.position - before, NS_PER_TOKEN, freed))

    def _before(self, anchor: Anchor) -> int:
        """The place before an anchor where its path can be resumed."""
        node: Node | None = anchor.node
        found = anchor.node.anchors
        place = bisect_left(found, anchor.position, key=lambda other: other.position)
        if place:
            return found[place - 1].position
        if not self._stateful:
            return anchor.node.start
        while node is not None and (node := node.parent):
            if node.anchors:
                return node.anchors[-1].position
        return 0
