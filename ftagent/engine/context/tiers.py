"""What becomes of prefixes that leave the pools: host memory, and files that outlive the process.

A segment is the pages of the tokens between two places of a prompt, with the recurrent state at the second
one. Segments are found by a digest of model and token ids, and used only where the ids themselves are equal.
Bytes only: knows no tensor, no tree and no request, and not what kind of memory the bytes are in.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ftagent.engine.context.tree import ID_BYTES, Key

LEAST_GAIN = 32  # tokens: less is computed sooner than it is brought back


class Held(Protocol):
    """Bytes that are kept. Their memory is given back when nobody refers to this any more."""

    def __len__(self) -> int: ...

    def view(self) -> memoryview:
        """The bytes, once all of them are there: a device may still be writing. On any thread."""
        ...


class Bytes:
    """Held bytes in the memory that Python gives."""

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def view(self) -> memoryview:
        return memoryview(self._data)


class Contents(Protocol):
    """Reads and writes what pages and states hold. Between steps only."""

    page_bytes: int
    state_bytes: int

    def read_pages(self, pages: Sequence[int], /, *, spare: bool) -> Held | None:
        """A copy of `pages`; None where the memory for kept prompts has no room and, with `spare`, no other
        may be used.
        """
        ...

    def write_pages(self, pages: Sequence[int], held: Held, first: int, /) -> None:
        """Fill `pages` with those of `held` from its page number `first` on."""
        ...

    def pack(self, snapshot: Any, /) -> Held: ...

    def unpack(self, held: Held, /) -> Any:
        """The snapshot that `held` is; None where there is no room for it."""
        ...

    def blank(self, size: int, state: bool, /) -> Held:
        """Room for so many bytes, to be written into its view: pages, or with `state` a packed snapshot."""
        ...

    def on_shortage(self, let_go: Callable[[], bool], /) -> None:
        """`let_go` is called where room is wanted; it drops something, or says False."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """`key` are all ids up to the place; `pages` the contents of its pages from number `first` on."""

    key: bytes
    first: int
    pages: Held
    state: Held

    @property
    def position(self) -> int:
        return len(self.key) // ID_BYTES

    @property
    def nbytes(self) -> int:
        return len(self.key) + len(self.pages) + len(self.state)


class Address(NamedTuple):
    """Where a segment ends, and the digest of model and ids up to there."""

    position: int
    digest: str


class Tier(Protocol):
    def positions(self) -> Iterable[int]:
        """Where segments of this tier end, at least."""
        ...

    def first(self, address: Address, /) -> int | None:
        """The first page of that segment; None when there is none."""
        ...

    def get(self, address: Address, /) -> Segment | None: ...

    def takes(self, size: int, /) -> bool:
        """Whether a segment of `size` bytes would be kept as things stand."""
        ...

    def put(self, address: Address, segment: Segment, /) -> None: ...

    def forget(self, address: Address, /) -> None:
        """Drop that segment, if it is there."""
        ...

    def close(self) -> None: ...


class HostTier:
    """At most `capacity` bytes in memory, the least recently used out first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._segments: OrderedDict[Address, Segment] = OrderedDict()
        self._ends: dict[int, int] = {}  # position -> segments
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._segments)

    def positions(self) -> Iterable[int]:
        return self._ends

    def first(self, address: Address) -> int | None:
        found = self._segments.get(address)
        return None if found is None else found.first

    def get(self, address: Address) -> Segment | None:
        found = self._segments.get(address)
        if found is not None:
            self._segments.move_to_end(address)
        return found

    def takes(self, size: int) -> bool:
        """Whether a segment of `size` bytes is worth making."""
        return size <= self._capacity

    def put(self, address: Address, segment: Segment) -> None:
        """Keep it; of two for the same place the one that begins earlier. One too large is dropped."""
        old = self._segments.get(address)
        if segment.nbytes > self._capacity or (old is not None and old.first <= segment.first):
            return
        if old is not None:
            self._remove(address)
        self._segments[address] = segment
        self._ends[address.position] = self._ends.get(address.position, 0) + 1
        self.nbytes += segment.nbytes
        while self.nbytes > self._capacity:
            self.let_go()

    def let_go(self) -> bool:
        """Drop the segment that was used longest ago; False when there is none."""
        if not self._segments:
            return False
        self._remove(next(iter(self._segments)))
        return True

    def forget(self, address: Address) -> None:
        if address in self._segments:
            self._remove(address)

    def close(self) -> None:
        self._segments.clear()
        self._ends.clear()
        self.nbytes = 0

    def check_integrity(self) -> None:
        """Raise AssertionError when sizes and positions do not add up."""
        assert self.nbytes == sum(segment.nbytes for segment in self._segments.values()), "bytes are lost"
        assert self.nbytes <= max(self._capacity, 0), "more bytes than the capacity"
        assert sum(self._ends.values()) == len(self._segments), "positions are lost"
        for address, segment in self._segments.items():
            assert address.position == segment.position, "a segment under a foreign address"

    def _remove(self, address: Address) -> None:
        self.nbytes -= self._segments.pop(address).nbytes
        self._ends[address.position] -= 1
        if not self._ends[address.position]:
            del self._ends[address.position]


class PrefixStore:
    """The tiers below the pools, the fastest first. `model` tells models apart whose KV must not be mixed."""

    def __init__(
        self, contents: Contents, page_size: int, host: HostTier, disk: Tier | None, model: str
    ) -> None:
        self.contents = contents
        self._size = page_size
        self._host = host
        self._disk = disk
        self._seed = hashlib.blake2b(f"{model} {page_size} {contents.page_bytes}".encode(), digest_size=16)
        self.saved = 0  # segments
        self.restored_tokens = 0
        contents.on_shortage(host.let_go)

    def save(self, key: Key, first: int, pages: Sequence[int], snapshot: Any, *, lasting: bool) -> None:
        """Keep what lies before the end of `key`: `pages` from page number `first` on, and the state.

        A `lasting` one, which must begin with the prompt, outlives the process.
        """
        tier: Tier | None = self._disk if lasting else self._host
        if tier is None:
            return
        position = len(key) // ID_BYTES
        (address,) = self._addresses(key, [position])
        known = tier.first(address)
        if known is not None and known <= first:
            return
        size = len(key) + len(pages) * self.contents.page_bytes
        if not tier.takes(size if snapshot is None else size + self.contents.state_bytes):
            return
        held = self.contents.read_pages(pages, spare=lasting)
        if held is None:
            return
        state = Bytes() if snapshot is None else self.contents.pack(snapshot)
        tier.put(address, Segment(bytes(key), first, held, state))
        self.saved += 1

    def chain(self, key: Key, limit: int, position: int, matched: int) -> list[Segment]:
        """Segments that lead from a prompt of which `matched` tokens are in pages, and which can be resumed
        at `position`, to the deepest place up to `limit`. Empty when that gains little.
        """
        tiers = [self._host, *([self._disk] if self._disk else [])]
        ends = {end for tier in tiers for end in tier.positions()}
        wanted = sorted(end for end in ends if position + LEAST_GAIN <= end <= limit)
        covered = matched // self._size
        found: list[tuple[Address, int, Tier]] = []
        for address in self._addresses(key, wanted):
            for tier in tiers:
                first = tier.first(address)
                if first is not None and first <= covered:
                    found.append((address, first, tier))
                    covered = max(covered, address.position // self._size)
                    break
        while found:
            segments = self._load(key, found, matched // self._size)
            if segments:
                return segments
            found.pop()
        return []

    def forget(self, key: Key, position: int) -> None:
        """Drop all that lies on the way to the first `position` ids of `key`: it was found to be wrong."""
        for tier in (self._host, self._disk):
            if tier is not None:
                ends = sorted(end for end in tier.positions() if end <= position)
                for address in self._addresses(key, ends):
                    tier.forget(address)

    def check_integrity(self) -> None:
        """Raise AssertionError when the books of the tier in memory do not add up."""
        self._host.check_integrity()

    def close(self) -> None:
        """Finish writing and forget."""
        self._host.close()
        if self._disk is not None:
            self._disk.close()

    def _load(self, key: Key, found: Sequence[tuple[Address, int, Tier]], covered: int) -> list[Segment]:
        """The segments that lead to the last one found; empty when one of them cannot be read."""
        chain: list[Segment] = []
        needed: int | None = None  # page from which on the chain holds all
        for address, _, tier in reversed(found):
            if needed is not None and address.position // self._size < needed:
                return []
            segment = tier.get(address)
            if segment is None or segment.key != key[: len(segment.key)] or not self._is_whole(segment):
                if needed is None:
                    return []
                continue
            chain.append(segment)
            needed = segment.first
            if needed <= covered:
                return chain[::-1]
        return []

    def _is_whole(self, segment: Segment) -> bool:
        """Whether it has the pages that its position needs, and a state of the right size."""
        pages = -(-segment.position // self._size) - segment.first
        return (len(segment.pages), len(segment.state)) == (
            pages * self.contents.page_bytes,
            self.contents.state_bytes,
        )

    def _addresses(self, key: Key, positions: Iterable[int]) -> Iterator[Address]:
        """The addresses of the prefixes of `key` that end at `positions`, which ascend."""
        digest = self._seed.copy()
        done = 0
        for position in positions:
            digest.update(key[done * ID_BYTES : position * ID_BYTES])
            done = position
            yield Address(position, digest.hexdigest())
