"""Host banks: every routed expert of a layer in host memory, one page-aligned row each.

A row of a plain format is the expert's records [I, 3, H] (`kernels.experts`), ready to compute with or to be
copied as one range of bytes. An FP8 row holds gate and up [2I, H], down [H, I] and their scales as stored.
The bank is the authority; slots are copies of it. Knows formats, not checkpoints or policy.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from ftagent.engine.experts.host_memory import PAGE_BYTES, HostMemory
from ftagent.engine.experts.pinning import Registrar
from ftagent.engine.kernels.experts import ExpertWeights, expert_weights, write_records
from ftagent.engine.weights.formats import FP8, dequantise, scale_shape

log = logging.getLogger(__name__)


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


class QuantisedRow(NamedTuple):
    """Views into one FP8 row. Scales are float32 [parts, row blocks, column blocks] and [row blocks, column
    blocks].
    """

    gate_up: torch.Tensor  # [2I, H], gate rows first
    down: torch.Tensor  # [H, I]
    gate_up_scales: torch.Tensor
    down_scales: torch.Tensor


def row_bytes(shape: ExpertShape, stored: ExpertFormat) -> int:
    """Bytes from one row of a bank to the next: whole pages."""
    return -(-_pieces(shape, stored)[1] // PAGE_BYTES) * PAGE_BYTES


class ExpertBank:
    """The experts of one layer, in lazily committed memory on huge pages where the system gives them.

    Raises OSError when there is no such address space.
    """

    def __init__(self, experts: int, shape: ExpertShape, stored: ExpertFormat) -> None:
        self.experts = experts
        self.shape = shape
        self.format = stored
        self.row_bytes = row_bytes(shape, stored)
        self._memory = HostMemory(experts * self.row_bytes)
        self._bytes = self._memory.tensor.view(experts, self.row_bytes)
        self._ready: list[ExpertWeights | None] = [None] * experts

    @property
    def nbytes(self) -> int:
        return self.experts * self.row_bytes

    @property
    def quantised(self) -> bool:
        """Rows are FP8 pieces, not records."""
        return self.format.dtype == FP8

    @property
    def pinned(self) -> bool:
        """A device can copy from the rows without the CPU's help."""
        return self._memory.registered

    def address(self, expert: int) -> int:
        """Where the row of an expert begins in this process."""
        return self._memory.address + expert * self.row_bytes

    def records(self, expert: int) -> torch.Tensor:
        """[I, 3, H] of a plain bank, a view of the row."""
        assert not self.quantised, "rows of an FP8 bank hold no records"
        hidden, inner = self.shape
        size = self.shape.weights() * self.format.dtype.itemsize
        return self._bytes[expert, :size].view(self.format.dtype).view(inner, 3, hidden)

    def weights(self, expert: int) -> ExpertWeights:
        """An expert of a plain bank, ready to compute with where it lies."""
        ready = self._ready[expert]
        if ready is None:
            ready = self._ready[expert] = expert_weights(self.records(expert))
        return ready

    def quantised_row(self, expert: int) -> QuantisedRow:
        """The pieces of an FP8 row."""
        assert self.quantised, "rows of a plain bank are records"
        hidden, inner = self.shape
        starts, _ = _pieces(self.shape, self.format)
        raw = self._bytes[expert]
        gate_up, down, *scales = [raw[start : start + size] for start, size in starts]
        grids = _grids(self.shape, self.format)
        wide = [piece.view(torch.float32).view(grid) for piece, grid in zip(scales, grids, strict=True)]
        return QuantisedRow(
            gate_up.view(FP8).view(2 * inner, hidden), down.view(FP8).view(hidden, inner), *wide
        )

    def decode(self, expert: int, records: torch.Tensor) -> None:
        """Write the plain values of an expert into `records` [I, 3, H], in their dtype."""
        if not self.quantised:
            records.copy_(self.records(expert))
            return
        row = self.quantised_row(expert)
        hidden, inner = self.shape
        parted = row.gate_up.view(self.format.parts, -1, hidden)
        gate_up = dequantise(parted, row.gate_up_scales, records.dtype).view(2 * inner, hidden)
        down = dequantise(row.down, row.down_scales, records.dtype)
        write_records(records, gate_up[:inner], gate_up[inner:], down)

    def pin(self, registrar: Registrar) -> str | None:
        """Register the whole bank with the device, after it has been filled. Returns why it was refused."""
        return self._memory.register(registrar)

    def close(self) -> None:
        """Take back the registration and let go of the memory: it is given back with the last view of it.

        Safe to call twice.
        """
        self._ready = []
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._memory.close()


def _grids(shape: ExpertShape, stored: ExpertFormat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the scales of gate and up, and of down."""
    hidden, inner = shape
    return (stored.parts, *scale_shape(2 * inner // stored.parts, hidden)), scale_shape(hidden, inner)


def _pieces(shape: ExpertShape, stored: ExpertFormat) -> tuple[list[tuple[int, int]], int]:
    """(start, bytes) of the pieces of a row, each on a cache line, and where the last one ends."""
    if stored.dtype != FP8:
        size = shape.weights() * stored.dtype.itemsize
        return [(0, size)], size
    grids = [4 * torch.Size(grid).numel() for grid in _grids(shape, stored)]
    pieces, end = [], 0
    for size in (2 * shape.intermediate * shape.hidden, shape.intermediate * shape.hidden, *grids):
        start = -(-end // 64) * 64
        end = start + size
        pieces.append((start, size))
    return pieces, end
