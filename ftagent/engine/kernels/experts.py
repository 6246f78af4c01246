"""SwiGLU experts on token rows: vectors for decode, groups of tokens for prefill. The torch reference.

An expert is `records` [I, 3, H]: of each intermediate channel its gate row, its up row and its down column.
Both give one output row for each (token, rank) pair; `combine` adds the ranks of a token in their order, so
placement of experts and the order in which they are computed cannot change a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.linear import matrix_product

BLOCK = 64  # rows of down that are turned at a time: their piece of a record is two cache lines
LOOP = 64  # elements that a vectorised loop takes at a time, at most, in any dtype


class ExpertWeights(NamedTuple):
    """One expert ready to compute with: its records and views of them, made once since each costs a call."""

    records: torch.Tensor  # [I, 3, H], contiguous
    gate: torch.Tensor  # [I, H]
    up: torch.Tensor  # [I, H]
    down: torch.Tensor  # [H, I], column i is record i's


def expert_weights(records: torch.Tensor) -> ExpertWeights:
    """`records` [I, 3, H] with the views that the kernels use."""
    gate, up, down = records.unbind(1)
    return ExpertWeights(records, gate, up, down.t())


def write_records(records: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
    """Write gate [I, H], up [I, H] and down [H, I] into `records` [I, 3, H], converted to their dtype."""
    records[:, 0].copy_(gate)
    records[:, 1].copy_(up)
    write_down(records, down)


def write_down(records: torch.Tensor, down: torch.Tensor) -> None:
    """The down columns alone, from down [H, I]."""
    target = records[:, 2]
    for begin in range(0, down.shape[0], BLOCK):
        target[:, begin : begin + BLOCK].copy_(down[begin : begin + BLOCK].t())


class VectorScratch:
    """Room for the activations of pairs, kept between steps. Rows are padded so that elementwise loops leave
    no scalar tail: a row then gives the same bits beside any others.
    """

    def __init__(self, intermediate: int, dtype: torch.dtype) -> None:
        self._inner = intermediate
        self._dtype = dtype
        self._resize(0)

    def rows(self, pairs: int) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """[I] for the gate and for the up side of at least `pairs` pairs."""
        if pairs > len(self._gates):
            self._resize(pairs)
        return self._gates, self._ups

    def activate(self, pairs: int) -> None:
        """gate = silu(gate) * up, of the first `pairs` rows."""
        F.silu(self._both[0, :pairs], inplace=True).mul_(self._both[1, :pairs])

    def _resize(self, pairs: int) -> None:
        width = -(-self._inner // LOOP) * LOOP
        self._both = torch.zeros(2, pairs, width, dtype=self._dtype)
        self._gates, self._ups = (side[:, : self._inner].unbind(0) for side in self._both.unbind(0))


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2I] with the gate half first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def expert_vectors(
    x: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
    out: Sequence[torch.Tensor],
    scratch: VectorScratch,
) -> None:
    """Pair i: out[i] [H] = the expert `weights[i]` on the vector x[i] [H]."""
    gates, ups = scratch.rows(len(weights))
    for vector, (_, gate, up, _), gate_row, up_row in zip(x, weights, gates, ups, strict=False):
        torch.mv(gate, vector, out=gate_row)
        torch.mv(up, vector, out=up_row)
    scratch.activate(len(weights))
    for row, expert, target in zip(gates, weights, out, strict=False):
        torch.mv(expert.down, row, out=target)


def expert_group(x: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """One expert on all of its tokens: x [tokens, H] to [tokens, H]."""
    active = F.silu(matrix_product(x, weights.gate)).mul_(matrix_product(x, weights.up))
    if active.dtype == torch.float32:
        return matrix_product(active, weights.down)
    # Where the CPU has no product of 16-bit floats, torch's own is 20 times slower on the turned side.
    return matrix_product(active.float(), weights.records[:, 2].float().t()).to(active.dtype)


def combine(pairs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """pairs [rows, k, H] weighted by weights [rows, k] and summed over k: [rows, H]."""
    return torch.bmm(weights.unsqueeze(1), pairs).squeeze(1)
