"""Host banks: every routed expert of a layer in host memory, one page-aligned row each.

A row of a plain format is the expert's records [I, 3, H] and biases (`kernels.experts`), ready to compute
with or to be copied as one range of bytes. A quantised row holds gate and up, down, their scales as stored,
and the biases. FP8: [2I, H] and [H, I], a float32 scale for each block of 128 x 128. MXFP4: bytes of two
codes [2I, H/2] and [H, I/2], a scale E8M0 for each 32 codes of a row.
The bank is the authority; slots are copies of it. Knows formats, not checkpoints or policy.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from ftagent.engine.experts.host_memory import PAGE_BYTES, HostMemory
from ftagent.engine.experts.pinning import Registrar
from ftagent.engine.kernels.experts import ExpertWeights, expert_weights, write_records
from ftagent.engine.weights import mxfp4
from ftagent.engine.weights.formats import FP8, MXFP4, dequantise, scale_shape

log = logging.getLogger(__name__)


class ExpertShape(NamedTuple):
    """Sizes of one expert: gate and up are [intermediate, hidden], down is [hidden, intermediate]; `biased`:
    each of the three products has something added.
    """

    hidden: int
    intermediate: int
    biased: bool = False

    def weights(self) -> int:
        return 3 * self.hidden * self.intermediate

    def biases(self) -> int:
        return 2 * self.intermediate + self.hidden if self.biased else 0

    def values(self) -> int:
        """All that a plain row holds."""
        return self.weights() + self.biases()

    def ready(self, row: torch.Tensor) -> ExpertWeights:
        """A plain row [values] as records and biases."""
        records = row[: self.weights()].view(self.intermediate, 3, self.hidden)
        return expert_weights(records, row[self.weights() :] if self.biased else None)


class ExpertFormat(NamedTuple):
    """How a layer's experts are stored: as plain values of `dtype`, as FP8 or as MXFP4. `parts`, of FP8: 1
    when gate and up share one grid of scales, else 2.
    """

    dtype: torch.dtype
    parts: int = 2

    @property
    def quantised(self) -> bool:
        return self.dtype in (FP8, MXFP4)


class QuantisedRow(NamedTuple):
    """Views into one quantised row. FP8 scales are float32 [parts, row blocks, column blocks] and [row
    blocks, column blocks], MXFP4 scales uint8 [2I, H/32] and [H, I/32].
    """

    gate_up: torch.Tensor  # gate rows first
    down: torch.Tensor
    gate_up_scales: torch.Tensor
    down_scales: torch.Tensor
    biases: torch.Tensor  # float32 [2I + H], or empty

    def plain(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of gate and up [2I, H], and of down [H, I]."""
        if self.gate_up.dtype != FP8:
            return (
                mxfp4.widen(self.gate_up, self.gate_up_scales, dtype),
                mxfp4.widen(self.down, self.down_scales, dtype),
            )
        parted = self.gate_up.view(len(self.gate_up_scales), -1, self.gate_up.shape[1])
        gate_up = dequantise(parted, self.gate_up_scales, dtype).view(self.gate_up.shape)
        return gate_up, dequantise(self.down, self.down_scales, dtype)


def row_pieces(
    shape: ExpertShape, stored: ExpertFormat
) -> list[tuple[str, torch.dtype, tuple[int, ...], int]]:
    """Name, dtype, shape and first byte of what a row consists of."""
    names = QuantisedRow._fields if stored.quantised else ("values",)
    pieces, _ = _pieces(shape, stored)
    return [(name, piece.dtype, piece.shape, piece.start) for name, piece in zip(names, pieces, strict=True)]


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

    def rows(self, first: int, last: int, size: int) -> list[torch.Tensor]:
        """The first `size` bytes (uint8) of some rows, to be filled with rows that were stored."""
        return list(self._bytes[first:last, :size].unbind(0))

    @property
    def quantised(self) -> bool:
        """Rows are pieces with scales, not records."""
        return self.format.quantised

    @property
    def pinned(self) -> bool:
        """A device can copy from the rows without the CPU's help."""
        return self._memory.registered

    def address(self, expert: int) -> int:
        """Where the row of an expert begins in this process."""
        return self._memory.address + expert * self.row_bytes

    def records(self, expert: int) -> torch.Tensor:
        """[I, 3, H] of a plain bank, a view of the row."""
        return self.weights(expert).records

    def weights(self, expert: int) -> ExpertWeights:
        """An expert of a plain bank, ready to compute with where it lies."""
        ready = self._ready[expert]
        if ready is None:
            assert not self.quantised, "rows of a quantised bank hold no records"
            size = self.shape.values() * self.format.dtype.itemsize
            ready = self.shape.ready(self._bytes[expert, :size].view(self.format.dtype))
            self._ready[expert] = ready
        return ready

    def quantised_row(self, expert: int) -> QuantisedRow:
        """The pieces of a quantised row."""
        assert self.quantised, "rows of a plain bank are records"
        pieces, _ = _pieces(self.shape, self.format)
        raw = self._bytes[expert]
        return QuantisedRow(
            *(raw[start : start + size].view(dtype).view(shape) for start, size, dtype, shape in pieces)
        )

    def decode(self, expert: int, target: ExpertWeights) -> None:
        """Write the plain values of an expert into the memory of `target`, in its dtype."""
        if not self.quantised:
            source = self.weights(expert)
            target.records.copy_(source.records)
            if target.biases is not None and source.biases is not None:
                target.biases.all.copy_(source.biases.all)
            return
        row = self.quantised_row(expert)
        gate_up, down = row.plain(target.records.dtype)
        gate, up = gate_up.chunk(2)
        write_records(target.records, gate, up, down)
        if target.biases is not None:
            target.biases.all.copy_(row.biases)

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


class _Piece(NamedTuple):
    start: int
    size: int  # bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


def _pieces(shape: ExpertShape, stored: ExpertFormat) -> tuple[list[_Piece], int]:
    """The pieces of a row, each on a cache line, and where the last one ends."""
    pieces: list[_Piece] = []
    end = 0
    for dtype, sizes in _contents(shape, stored):
        start = -(-end // 64) * 64
        end = start + torch.Size(sizes).numel() * dtype.itemsize
        pieces.append(_Piece(start, end - start, dtype, sizes))
    return pieces, end


def _contents(shape: ExpertShape, stored: ExpertFormat) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """What a row consists of; of a quantised one the pieces of a `QuantisedRow`."""
    hidden, inner, _ = shape
    if not stored.quantised:
        return [(stored.dtype, (shape.values(),))]
    gate_up, down = (2 * inner, hidden), (hidden, inner)
    biases = (torch.float32, (shape.biases(),))
    if stored.dtype == FP8:
        grids = ((stored.parts, *scale_shape(2 * inner // stored.parts, hidden)), scale_shape(hidden, inner))
        return [(FP8, gate_up), (FP8, down), *((torch.float32, grid) for grid in grids), biases]
    codes = [(torch.uint8, mxfp4.packed_shape(*matrix)) for matrix in (gate_up, down)]
    scales = [(torch.uint8, mxfp4.scales_shape(*matrix)) for matrix in (gate_up, down)]
    return [*codes, *scales, biases]
