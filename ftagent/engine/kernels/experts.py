"""SwiGLU experts on token rows: vectors for decode, groups of tokens for prefill. The torch reference.

An expert is `records` [I, 3, H]: of each intermediate channel its gate row, its up row and its down column;
behind them, where the family has them, its biases [2I + H]: gate, up, down. Both ways give one output row for
each (token, rank) pair; `combine` adds the ranks of a token in their order, so placement of experts and the
order in which they are computed cannot change a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.linear import matrix_product
from ftagent.engine.kernels.swiglu import Swiglu

BLOCK = 64  # rows of down that are turned at a time: their piece of a record is two cache lines
SILU = Swiglu()
LOOP = 64  # elements that a vectorised loop takes at a time, at most, in any dtype


class ExpertWeights(NamedTuple):
    """One expert ready to compute with: its records and views of them, made once since each costs a call."""

    records: torch.Tensor  # [I, 3, H], contiguous
    gate: torch.Tensor  # [I, H]
    up: torch.Tensor  # [I, H]
    down: torch.Tensor  # [H, I], column i is record i's
    biases: ExpertBiases | None = None


class ExpertBiases(NamedTuple):
    """What is added to the products of an expert: gate [I], up [I], down [H]; `all` is the memory of them."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    all: torch.Tensor


def expert_weights(records: torch.Tensor, biases: torch.Tensor | None = None) -> ExpertWeights:
    """`records` [I, 3, H] and `biases` [2I + H] with the views that the kernels use."""
    inner, _, hidden = records.shape
    gate, up, down = records.unbind(1)
    added = None
    if biases is not None:
        assert len(biases) == 2 * inner + hidden, "biases of other sizes"
        added = ExpertBiases(biases[:inner], biases[inner : 2 * inner], biases[2 * inner :], biases)
    return ExpertWeights(records, gate, up, down.t(), added)


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

    def __init__(self, intermediate: int, dtype: torch.dtype, how: Swiglu = SILU) -> None:
        self._inner = intermediate
        self._how = how
        self._dtype = dtype
        self._resize(0)

    def rows(self, pairs: int) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """[I] for the gate and for the up side of at least `pairs` pairs."""
        if pairs > len(self._gates):
            self._resize(pairs)
        return self._gates, self._ups

    def activate(self, pairs: int) -> None:
        """Join gate and up, of the first `pairs` rows, into gate."""
        swiglu_(self._both[0, :pairs], self._both[1, :pairs], self._how)

    def _resize(self, pairs: int) -> None:
        width = -(-self._inner // LOOP) * LOOP
        self._both = torch.zeros(2, pairs, width, dtype=self._dtype)
        self._gates, self._ups = (side[:, : self._inner].unbind(0) for side in self._both.unbind(0))


def swiglu_(gate: torch.Tensor, up: torch.Tensor, how: Swiglu) -> torch.Tensor:
    """Both sides joined, written into `gate`; `up` may be changed."""
    if how.limit is not None:
        gate.clamp_(max=how.limit)
        up.clamp_(-how.limit, how.limit)
    if how.offset:
        up.add_(how.offset)
    if how.alpha == 1:
        return F.silu(gate, inplace=True).mul_(up)
    return gate.mul_(torch.sigmoid(gate * how.alpha)).mul_(up)


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
    for vector, expert, gate_row, up_row in zip(x, weights, gates, ups, strict=False):
        added = expert.biases
        _vector_product(expert.gate, vector, added and added.gate, gate_row)
        _vector_product(expert.up, vector, added and added.up, up_row)
    scratch.activate(len(weights))
    for row, expert, target in zip(gates, weights, out, strict=False):
        _vector_product(expert.down, row, expert.biases and expert.biases.down, target)


def _vector_product(
    matrix: torch.Tensor, vector: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    if bias is None:
        torch.mv(matrix, vector, out=out)
    else:
        torch.addmv(bias, matrix, vector, out=out)


def expert_group(x: torch.Tensor, weights: ExpertWeights, how: Swiglu = SILU) -> torch.Tensor:
    """One expert on all of its tokens: x [tokens, H] to [tokens, H]."""
    gate, up, added = matrix_product(x, weights.gate), matrix_product(x, weights.up), weights.biases
    if added is not None:
        gate, up = gate.add_(added.gate), up.add_(added.up)
    active = swiglu_(gate, up, how)
    if active.dtype == torch.float32:
        out = matrix_product(active, weights.down)
    else:
        # Where the CPU has no product of 16-bit floats, torch's own is 20 times slower on the turned side.
        out = matrix_product(active.float(), weights.records[:, 2].float().t()).to(active.dtype)
    return out if added is None else out.add_(added.down)


def combine(pairs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """pairs [rows, k, H] weighted by weights [rows, k] and summed over k: [rows, H]."""
    return torch.bmm(weights.unsqueeze(1), pairs).squeeze(1)
