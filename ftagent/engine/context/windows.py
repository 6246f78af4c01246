"""Keys and values of window attention: of each slot the last tokens that its next one can see, and no more.

A ring for each slot and layer: the token at position p lies at place p % window, over the one that has just
left the window. So a slot's bytes do not grow with its request, and a copy of them is the window tail of an
anchor. The rings of a layer lie one behind the other as pages do (`pages.KvStorage`), so what reads pages can
read them. Knows no requests and no model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class WindowShape(NamedTuple):
    """Window layers; what a token leaves in each, as `pages.KvShape` says; and how many tokens one of them
    sees, itself included.
    """

    layers: int = 0
    planes: int = 0
    size: int = 0
    window: int = 0

    def slot_bytes(self, dtype: torch.dtype) -> int:
        return self.layers * self.planes * self.window * self.size * dtype.itemsize


class WindowRings:
    """`stored` [layers, slots, planes, window, size], a view. Places without a token are never handed out."""

    def __init__(
        self,
        shape: WindowShape,
        slots: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        layers, planes, size, window = shape
        self.shape = shape
        self._memory = torch.zeros(layers, planes, slots, window, size, dtype=dtype, device=device)
        self.stored = self._memory.transpose(1, 2)

    def write(self, layer: int, slot: int, start: int, rows: torch.Tensor) -> None:
        """Store `rows` [planes, n, size] of the tokens from position `start` on; the last `window` stay."""
        window = self.shape.window
        end = start + rows.shape[1]
        ring = self.stored[layer, slot]
        begin = max(start, end - window)
        while begin < end:
            place = begin % window
            count = min(end - begin, window - place)
            ring[:, place : place + count] = rows[:, begin - start : begin - start + count]
            begin += count

    def layer(self, layer: int) -> torch.Tensor:
        """All of one layer, a view: [planes, slots * window, size]."""
        return self._memory[layer].flatten(1, 2)

    def tail(self, layer: int, slot: int, position: int) -> torch.Tensor:
        """[planes, n, size]: the n tokens before `position` that its token can see, the oldest first."""
        window = self.shape.window
        count = min(position, window - 1)
        ring, first = self.stored[layer, slot], (position - count) % window
        if first + count <= window:
            return ring[:, first : first + count]
        return torch.cat((ring[:, first:], ring[:, : first + count - window]), dim=1)

    def seen(self, layer: int, slot: int, position: int) -> torch.Tensor:
        """[planes, n, size], a view: what the token at `position`, already written, sees with itself, in the
        order of the ring.
        """
        return self.stored[layer, slot, :, : min(position + 1, self.shape.window)]
