"""Host banks: every routed expert of a layer in host memory, in its stored format, one page-aligned row each.

A row holds gate and up [2I, H], down [H, I], and their scales, so that one copy brings a whole expert. The
bank is the authority; slots are copies of it. Knows formats, not checkpoints or policy.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import torch

from ftagent.engine.weights.formats import FP8, dequantise, scale_shape

PAGE_BYTES = mmap.PAGESIZE


class ExpertShape(NamedTuple):
    """Sizes of one expert: gate and up are [intermediate, hidden], down is [hidden, intermediate]."""

    hidden: int
    intermediate: int

    def weights(self) -> int:
        return 3 * self.hidden * self.intermediate


class ExpertFormat(NamedTuple):
    """How a layer's experts are stored. `parts` is 1 when gate and up share one grid of scales, else 2."""

    dtype: torch.dtype
    parts: int = 2


class ExpertRow(NamedTuple):
    """Views into one row. Scales are float32 [parts, row blocks, column blocks]; None for plain formats."""

    gate_up: torch.Tensor  # [2I, H], gate rows first
    down: torch.Tensor  # [H, I]
    gate_up_scales: torch.Tensor | None
    down_scales: torch.Tensor | None


class ExpertBank:
    """The experts of one layer, in lazily committed memory, on huge pages where the system gives them."""

    def __init__(self, experts: int, shape: ExpertShape, stored: ExpertFormat) -> None:
        self.experts = experts
        self.shape = shape
        self.format = stored
        hidden, inner, itemsize = shape.hidden, shape.intermediate, stored.dtype.itemsize
        self._grids: tuple[tuple[int, int, int], tuple[int, int]] | None = None
        sizes = [2 * inner * hidden * itemsize, inner * hidden * itemsize]
        if stored.dtype == FP8:
            gate_up = (stored.parts, *scale_shape(2 * inner // stored.parts, hidden))
            down = scale_shape(hidden, inner)
            self._grids = (gate_up, down)
            sizes += [4 * gate_up[0] * gate_up[1] * gate_up[2], 4 * down[0] * down[1]]
        self._offsets = [0]
        for size in sizes:
            # Each piece starts on a cache line, which also aligns it for its dtype.
            self._offsets.append(-(-(self._offsets[-1] + size) // 64) * 64)
        self._sizes = sizes
        self.row_bytes = -(-self._offsets[-1] // PAGE_BYTES) * PAGE_BYTES
        self._memory = _anonymous(experts * self.row_bytes).view(experts, self.row_bytes)
        self._rows = [self._view(expert) for expert in range(experts)]

    @property
    def nbytes(self) -> int:
        return self.experts * self.row_bytes

    def row(self, expert: int) -> ExpertRow:
        return self._rows[expert]

    def decode(self, expert: int, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        """Write the plain values of an expert into `gate_up` [2I, H] and `down` [H, I], in their dtype."""
        row = self._rows[expert]
        if row.gate_up_scales is None or row.down_scales is None:
            gate_up.copy_(row.gate_up)
            down.copy_(row.down)
            return
        parted = row.gate_up.view(self.format.parts, -1, self.shape.hidden)
        gate_up.copy_(dequantise(parted, row.gate_up_scales, gate_up.dtype).view_as(gate_up))
        down.copy_(dequantise(row.down, row.down_scales, down.dtype))

    def _view(self, expert: int) -> ExpertRow:
        raw = self._memory[expert]
        pieces = [raw[start : start + size] for start, size in zip(self._offsets, self._sizes, strict=False)]
        hidden, inner = self.shape
        gate_up = pieces[0].view(self.format.dtype).view(2 * inner, hidden)
        down = pieces[1].view(self.format.dtype).view(hidden, inner)
        if self._grids is None:
            return ExpertRow(gate_up, down, None, None)
        scales = [
            piece.view(torch.float32).view(grid) for piece, grid in zip(pieces[2:], self._grids, strict=True)
        ]
        return ExpertRow(gate_up, down, scales[0], scales[1])


def _anonymous(size: int) -> torch.Tensor:
    """uint8 [size] on fresh page-aligned memory that costs nothing until it is written."""
    memory = mmap.mmap(-1, max(size, PAGE_BYTES))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without transparent huge pages
            pass
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]
