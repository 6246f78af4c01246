"""Tensors of a checkpoint under the names a model file uses: prefix, dtype and scales settled in one place.

A model is built twice from the same code: first from a `Checker`, whose tensors have no data and which
collects every missing or misshapen tensor from the headers alone, then from a `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import torch

from ftagent.engine.weights.formats import BLOCK, FP8, PLAIN_DTYPES, dequantise, scale_shape
from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.errors import LoadFailed

PREFIXES = ("model.language_model.", "language_model.model.", "model.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")


class Source(Protocol):
    """What a model is built from. `name` is below the prefix: "layers.0.mlp.gate.weight"."""

    def dense(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor, dequantised, contiguous, in `dtype` (default: the compute dtype)."""
        ...

    def joined(
        self, parts: Sequence[tuple[str, int]], columns: int, order: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Matrices of one input as one: parts are (name, rows), the result [all rows, columns].

        `order` gives the stored row that each row of the result is taken from.
        """
        ...

    def head(self, *shape: int) -> torch.Tensor:
        """The output projection, which lies outside the prefix."""
        ...


def find_prefix(checkpoint: Checkpoint) -> str:
    """The prefix of the text model's tensors. Raises LoadFailed when there is no embedding under any known
    one.
    """
    for prefix in PREFIXES:
        if prefix + "embed_tokens.weight" in checkpoint:
            return prefix
    raise LoadFailed(
        f"{checkpoint.directory}: no tensor {PREFIXES[-1]}embed_tokens.weight; not a text model checkpoint"
    )


def scale_name(name: str) -> str:
    """ "x.weight" -> "x.weight_scale_inv"; a stacked "x.gate_up_proj" -> "x.gate_up_proj_scale_inv"."""
    return name + "_scale_inv"


class Checker:
    """Collects `missing` and `problems`, in `asked` all names in their order, and in `bytes` what the tensors
    will take; gives tensors that hold no data.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._dtype = dtype
        self.asked: list[str] = []
        self.missing: list[str] = []
        self.problems: list[str] = []
        self.bytes = 0

    def dense(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        self.expect(self._prefix + name, shape)
        return self._blank(shape, dtype or self._dtype)

    def joined(
        self, parts: Sequence[tuple[str, int]], columns: int, order: torch.Tensor | None = None
    ) -> torch.Tensor:
        for name, rows in parts:
            self.expect(self._prefix + name, (rows, columns))
        return self._blank((sum(rows for _, rows in parts), columns), self._dtype)

    def head(self, *shape: int) -> torch.Tensor:
        self.expect(_head_name(self._checkpoint), shape)
        return self._blank(shape, self._dtype)

    def _blank(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """One number seen as a whole tensor. (The meta device would load torch's compiler.)"""
        self.bytes += prod(shape) * dtype.itemsize
        return torch.zeros((), dtype=dtype).expand(shape)

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Note a problem unless `name` is there with `shape`, a readable dtype, and scales if it is FP8."""
        self.asked.append(name)
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            self.missing.append(name)
            return
        where = f"{entry.file.name}: tensor {name}"
        dtype = self._checkpoint.dtype(name)
        if entry.shape != shape:
            self.problems.append(f"{where} has shape {list(entry.shape)}, config.json says {list(shape)}")
        elif dtype == FP8 and len(shape) >= 2:
            self._expect_scales(scale_name(name), (*shape[:-2], *scale_shape(*shape[-2:])))
        elif dtype not in (*PLAIN_DTYPES, FP8):
            self.problems.append(f"{where} has dtype {entry.dtype}, which is not supported")

    def expect_bytes(self, name: str, shape: tuple[int, ...]) -> None:
        """Note a problem unless `name` is there with `shape` and a byte for each element."""
        self.asked.append(name)
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            self.missing.append(name)
            return
        where = f"{entry.file.name}: tensor {name}"
        if entry.shape != shape:
            self.problems.append(f"{where} has shape {list(entry.shape)}, config.json says {list(shape)}")
        elif self._checkpoint.dtype(name) != torch.uint8:
            self.problems.append(f"{where} has dtype {entry.dtype}, bytes are needed (U8)")

    def _expect_scales(self, name: str, shape: tuple[int, ...]) -> None:
        self.asked.append(name)
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            self.missing.append(name)
            return
        where = f"{entry.file.name}: scales {name}"
        if entry.shape != shape:
            need = f"{BLOCK} x {BLOCK} blocks need {list(shape)}"
            self.problems.append(f"{where} have shape {list(entry.shape)}, {need}")
        elif not self._checkpoint.dtype(name).is_floating_point:
            self.problems.append(f"{where} have dtype {entry.dtype}, not a float")

    def finish(self) -> None:
        """Raise LoadFailed with the first problem and how many more there are."""
        found = list(self.problems)
        if self.missing:
            more = f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else ""
            found.insert(0, f"tensors missing: {', '.join(self.missing[:3])}{more}")
        if found:
            rest = f" ({len(found) - 1} more problems)" if len(found) > 1 else ""
            raise LoadFailed(f"{self._checkpoint.directory}: {found[0]}{rest}")


class Reader:
    """Reads what a `Checker` has passed. `note` is told the bytes of each tensor that is there."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prefix: str,
        dtype: torch.dtype,
        device: torch.device | None = None,
        note: Callable[[int], None] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._dtype = dtype
        self._device = device or torch.device("cpu")
        self._note = note

    def dense(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._read(self._prefix + name, shape, dtype or self._dtype)

    def joined(
        self, parts: Sequence[tuple[str, int]], columns: int, order: torch.Tensor | None = None
    ) -> torch.Tensor:
        whole = torch.cat([self.dense(name, rows, columns) for name, rows in parts])
        return whole if order is None else whole[order]

    def head(self, *shape: int) -> torch.Tensor:
        return self._read(_head_name(self._checkpoint), shape, self._dtype)

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = self._checkpoint.entries[name].shape
        assert found == shape, f"{name}: {found} passed the check as {shape}"
        if self._checkpoint.dtype(name) == FP8:
            own = self._widened(name, dtype)
        else:
            own = self._checkpoint.load(name, dtype, self._device)
        if self._note is not None:
            self._note(own.nbytes)
        return own

    def _widened(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """An FP8 matrix as plain values; always a new tensor, since `dtype` is none of eight bits."""
        scales = self._checkpoint.tensor(scale_name(name)) if scale_name(name) in self._checkpoint else None
        return dequantise(self._checkpoint.tensor(name), scales, dtype).to(self._device)


def _head_name(checkpoint: Checkpoint) -> str:
    return next((name for name in HEADS if name in checkpoint), HEADS[0])
