"""SwiGLU experts on token rows: vectors for decode, groups of tokens for prefill. The torch reference.

Both give one output row for each (token, rank) pair; `combine` adds the ranks of a token in their order, so
placement of experts and the order in which they are computed cannot change a sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.linear import matrix_product


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2I] with the gate half first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def expert_vectors(
    x: list[torch.Tensor], weights: list[tuple[torch.Tensor, torch.Tensor]], out: list[torch.Tensor]
) -> None:
    """Pair i: out[i] [H] = expert with weights[i] (gate_up [2I, H], down [H, I]) on the vector x[i] [H]."""
    inner = x[0].new_empty(len(x), weights[0][0].shape[0])
    for vector, (gate_up, _), row in zip(x, weights, inner.unbind(0), strict=True):
        torch.mv(gate_up, vector, out=row)
    active = gated(inner)
    for row, (_, down), target in zip(active.unbind(0), weights, out, strict=True):
        torch.mv(down, row, out=target)


def expert_group(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """One expert on all of its tokens: x [tokens, H] to [tokens, H]."""
    return matrix_product(gated(matrix_product(x, gate_up)), down)


def combine(pairs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """pairs [rows, k, H] weighted by weights [rows, k] and summed over k: [rows, H]."""
    return torch.bmm(weights.unsqueeze(1), pairs).squeeze(1)
