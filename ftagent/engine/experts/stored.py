"""Banks as they are stored: what a row consists of in words that outlive this program, and one row at a time.

A stored row is a bank's row without the padding at its end. Knows formats of experts, no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape, row_pieces
from ftagent.engine.weights.ftw import Bank, FtwTensor, Piece
from ftagent.engine.weights.ftw_reader import FtwCheckpoint
from ftagent.engine.weights.safetensors import DTYPES
from ftagent.errors import LoadFailed

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def describe(layer: int, shape: ExpertShape, stored: ExpertFormat) -> Bank:
    """A bank of this format, for the header of a shard."""
    pieces = tuple(
        Piece(name, NAMES[dtype], tuple(sizes), at) for name, dtype, sizes, at in row_pieces(shape, stored)
    )
    fields = {**stored._asdict(), "dtype": str(stored.dtype).removeprefix("torch.")}
    return Bank(layer, fields, pieces)


def format_of(tensor: FtwTensor, experts: int, shape: ExpertShape, where: str) -> ExpertFormat:
    """The format of a stored bank, whose rows must be what this program makes of it. Raises LoadFailed."""
    bank = tensor.bank
    assert bank is not None, f"{tensor.name} is no bank"
    if tensor.shape[0] != experts:
        raise LoadFailed(
            f"{where}: layer {bank.layer} has {tensor.shape[0]} experts, config.json says {experts}"
        )
    stored = _format(bank.format)
    try:
        known = stored is not None and describe(bank.layer, shape, stored) == bank
    except (TypeError, ValueError, ArithmeticError):  # numbers of which no format is made
        known = False
    if stored is None or not known:
        raise LoadFailed(
            f"{where}: experts of layer {bank.layer} are laid out as this version does not read them, or not "
            f"of {shape.hidden} x {shape.intermediate} as config.json says; convert again"
        )
    return stored


def _format(fields: Mapping[str, Any]) -> ExpertFormat | None:
    dtype = getattr(torch, str(fields.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        return None
    try:
        return ExpertFormat(**{**fields, "dtype": dtype})
    except TypeError:
        return None


class RowBuffer(ExpertBank):
    """A bank all of whose rows are the same memory: for one expert at a time, whichever its number."""

    def __init__(self, experts: int, shape: ExpertShape, stored: ExpertFormat) -> None:
        super().__init__(1, shape, stored)
        self.experts = experts
        self._bytes = self._bytes.expand(experts, -1)
        self._ready = [None] * experts


class StoredRows(NamedTuple):
    """One layer's experts in an FTW set."""

    checkpoint: FtwCheckpoint
    tensor: FtwTensor
    format: ExpertFormat

    @property
    def rows_per_chunk(self) -> int:
        return self.tensor.chunk // self.tensor.shape[1]


def find_rows(checkpoint: FtwCheckpoint, layer: int, experts: int, shape: ExpertShape) -> StoredRows:
    """Where a layer's experts are stored. Raises LoadFailed when they are not there, or not of `shape`."""
    tensor = checkpoint.banks.get(layer)
    if tensor is None:
        raise LoadFailed(f"{checkpoint.directory}: no experts of layer {layer}; convert again")
    return StoredRows(checkpoint, tensor, format_of(tensor, experts, shape, str(checkpoint.directory)))


class RowReader:
    """Brings stored rows into banks. For one thread: what must be converted passes through its own buffer."""

    def __init__(self) -> None:
        self._buffer: ExpertBank | None = None

    def fill(self, stored: StoredRows, bank: ExpertBank, first: int) -> None:
        """Fill the rows of the chunk that begins with row `first`: straight into the bank where it holds the
        stored format, else widened to the bank's.
        """
        rows, stride = stored.tensor.shape
        count = min(stored.rows_per_chunk, rows - first)
        chunk = first // stored.rows_per_chunk
        if bank.format == stored.format:
            stored.checkpoint.read_rows(stored.tensor, chunk, bank.rows(first, first + count, stride))
            return
        buffer = self._buffer
        if buffer is None or (buffer.experts, buffer.shape, buffer.format) != (
            count,
            bank.shape,
            stored.format,
        ):
            buffer = self._buffer = ExpertBank(count, bank.shape, stored.format)
        stored.checkpoint.read_rows(stored.tensor, chunk, buffer.rows(0, count, stride))
        for row in range(count):
            buffer.decode(row, bank.weights(first + row))
