"""Plain torch versions of the expert kernels, in any dtype: float64 is what the kernels are tested against.

Experts as `records` [I, 3, H] (gate row, up row, down column of each intermediate channel).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.gpu.combine import SharedExpert
from ftagent.engine.kernels.gpu.route import RouteSpec


def route(flat: torch.Tensor, spec: RouteSpec, guesses: int = 0) -> tuple[torch.Tensor, ...]:
    """ids int64 [B, k], weights [B, k] and guess int64 [B, guesses] from flat [B, >= experts]."""
    scores = torch.softmax(flat[:, : spec.experts], dim=-1)
    weights, ids = _best(scores, spec.per_token)
    if spec.renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    following = flat[:, spec.guess_at : spec.guess_at + spec.experts] if guesses else scores
    return ids, weights, _best(following, guesses)[1]


def _best(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row, best first, ties to the lower column."""
    ordered, columns = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered[:, :count], columns[:, :count]


def activation(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """act [..., I] of x [..., H]."""
    return F.silu(x @ records[:, 0].T) * (x @ records[:, 1].T)


def expert(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """One expert, or a run of its records, on x [..., H]: [..., H]."""
    return activation(x, records) @ records[:, 2]


def shared_part(shared: SharedExpert) -> torch.Tensor:
    """[B, H]."""
    inner, at = shared.down.shape[1], shared.at
    gate, up = shared.flat[:, at : at + inner], shared.flat[:, at + inner : at + 2 * inner]
    weight = torch.sigmoid(shared.flat[:, at + 2 * inner]).unsqueeze(1)
    return (F.silu(gate) * up) @ shared.down.T * weight


def layer(
    normed: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: Sequence[torch.Tensor],
    shared: SharedExpert | None = None,
) -> torch.Tensor:
    """What a layer adds to the residual: [B, H] from normed [B, H], ids and weights [B, k], all experts."""
    out = torch.zeros_like(normed)
    for row, (chosen, shares) in enumerate(zip(ids.tolist(), weights, strict=True)):
        for one, share in zip(chosen, shares, strict=True):
            out[row] += share * expert(normed[row], experts[one])
    return out if shared is None else out + shared_part(shared)
