"""MoE layers that score each expert by a sigmoid (DeepSeek-V3, GLM-4.5, MiniMax-M2): see `choose`."""

from __future__ import annotations

import torch

from ftagent.engine.experts.routed import RoutedExperts
from ftagent.engine.kernels.linear import project
from ftagent.engine.models.batch import Batch
from ftagent.engine.models.config import ModelConfig, SigmoidRouting
from ftagent.engine.models.layers import Mlp
from ftagent.engine.weights.source import Source


def choose(
    logits: torch.Tensor, bias: torch.Tensor, per_token: int, routing: SigmoidRouting, renormalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights float32 and experts int64 of each row, [rows, k]; logits float32 [rows, experts].

    The bias counts for the choice alone, not for the weights (Wang et al., arXiv 2408.15664). With groups,
    only experts of the best `groups_kept` are chosen; a group is worth its two best experts (DeepSeek-V3,
    arXiv 2412.19437).
    """
    scores = torch.sigmoid(logits)
    biased = scores + bias
    if routing.groups > 1:
        grouped = biased.view(len(biased), routing.groups, -1)
        worth = grouped.topk(min(2, grouped.shape[2]), dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(worth, dtype=torch.bool)
        kept.scatter_(1, worth.topk(routing.groups_kept, dim=-1).indices, True)
        biased = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = biased.topk(per_token, dim=-1).indices
    weights = scores.gather(1, chosen)
    if renormalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * routing.scale, chosen


class SigmoidMoe:
    """A router in float32, the routed experts of one layer, and a shared expert where the family has one."""

    def __init__(self, config: ModelConfig, source: Source, prefix: str, moe_layer: int) -> None:
        assert config.sigmoid is not None, "a family with sigmoid scores says how it chooses"
        self.routing, self.moe_layer = config.sigmoid, moe_layer
        self.experts, self.per_token = config.experts, config.experts_per_token
        self.renormalise = config.renormalise
        wide = torch.float32
        self.router = source.dense(prefix + "gate.weight", config.experts, config.hidden, dtype=wide)
        self.bias = source.dense(prefix + config.sigmoid.bias, config.experts, dtype=wide)
        self.shared = None
        if config.shared_intermediate:
            self.shared = Mlp(source, prefix + "shared_experts.", config.hidden, config.shared_intermediate)

    def __call__(self, x: torch.Tensor, batch: Batch, pool: RoutedExperts) -> torch.Tensor:
        weights, chosen = self.route(project(x.float(), self.router, batch.decode))
        out = pool.forward(self.moe_layer, x, chosen, weights.to(x.dtype), batch.decode)
        return out if self.shared is None else out.add_(self.shared(x, batch))

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights float32 and experts int64 of each row, [rows, k]; logits float32 [rows, experts]."""
        return choose(logits, self.bias, self.per_token, self.routing, self.renormalise)
