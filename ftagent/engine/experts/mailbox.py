"""Where everything lies in the mailbox, the host memory in which decode kernels and the conductor meet.

One pinned region that the device maps. Every array starts on 64 bytes; each flag has a line of its own.
Pure arithmetic: knows no tensors, addresses or protocol. Abbreviations: L layers, E experts of a layer,
B rows, k experts of a row, P = B * k pairs (pair = row * k + rank), G guesses of a row, H hidden,
T the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

ALIGN = 64  # bytes: a cache line, and the unit in which devices write to host memory
FLAG = 16  # int32 of a flag's line; the flag is the first
MAX_UPDATES = 64  # changes to slot_of in one plan


class Offsets(NamedTuple):
    """Byte offset of every array from the start of the mailbox. int32 unless a dtype is named."""

    post: int  # [L, FLAG] device to host: epoch, written last
    planned: int  # [L, FLAG] host to device: epoch, or -epoch: failed
    done: int  # [L, FLAG] host to device: epoch: y is complete, or -epoch: failed
    rows: int  # [1] live rows of the step, host to device
    ids: int  # [L, P] expert of each pair, device to host; -1 for rows that are not live
    seen: int  # [L, P] slot of each pair as the device sees it, device to host; -1 for a miss
    guess: int  # [L, B, G] likely experts of the next layer, device to host; -1 for none
    slot: int  # [L, P] plan: slot that holds or will hold the expert, -1 for none
    cut: int  # [L, P] plan: the device computes records [0, cut), the CPU the rest
    ticket: int  # [L, P] plan: wait for landed[slot] - ticket >= 0; 0 for no wait
    updates: int  # [L] number of the entries that follow
    update_index: int  # [L, MAX_UPDATES] layer * E + expert
    update_value: int  # [L, MAX_UPDATES] slot, or -1 for an eviction
    x: int  # T [B, H] normed input of the layer now posted, device to host
    y: int  # float32 [P, H] CPU part of each pair, host to device; valid where cut < records


@dataclass(frozen=True)
class MailboxLayout:
    """Offsets, shapes and size for `layers` MoE layers of `experts`, `rows` rows of `per_token` experts each.

    `guesses` is per_token, or 0 without look-ahead; `itemsize` that of T.
    """

    layers: int
    experts: int
    rows: int
    per_token: int
    guesses: int
    hidden: int
    itemsize: int

    def __post_init__(self) -> None:
        sizes = (self.layers, self.experts, self.rows, self.per_token, self.hidden, self.itemsize)
        assert min(sizes) > 0, f"mailbox: every size must be positive: {self}"
        assert self.guesses >= 0, f"mailbox: {self.guesses=}"

    @property
    def pairs(self) -> int:
        """P, at most."""
        return self.rows * self.per_token

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every array by the name of its offset."""
        layers, pairs = self.layers, self.pairs
        flag, per_pair, updates = (layers, FLAG), (layers, pairs), (layers, MAX_UPDATES)
        guess = (layers, self.rows, self.guesses)
        shapes = [flag, flag, flag, (1,), per_pair, per_pair, guess, per_pair, per_pair, per_pair]
        shapes += [(layers,), updates, updates, (self.rows, self.hidden), (pairs, self.hidden)]
        return dict(zip(Offsets._fields, shapes, strict=True))

    @cached_property
    def offsets(self) -> Offsets:
        return Offsets(*(start for start, _ in self._extents()))

    @cached_property
    def nbytes(self) -> int:
        """Size of the mailbox, a multiple of ALIGN."""
        *_, (start, size) = self._extents()
        return _aligned(start + size)

    def _extents(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of every array, in order."""
        start = 0
        for name, shape in self.shapes.items():
            size = self.itemsize if name == "x" else 4
            for extent in shape:
                size *= extent
            yield start, size
            start = _aligned(start + size)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
