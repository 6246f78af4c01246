"""Muon for matrices, AdamW for the rest.

Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers"): momentum, then the update's nearest
half-orthogonal matrix by five Newton-Schulz steps. Stacks of matrices are handled as batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(update: Tensor) -> Tensor:
    """The matrices of update [..., rows, cols] with singular values pushed towards 1, BF16."""
    a, b, c = _COEFFICIENTS
    x: Tensor = update.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and orthogonalised updates, for matrices and stacks of matrices.

    Matrices of one shape are handled as one batch: a step is a few dozen launches, not thousands.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})
        self._alike: dict[torch.Size, list[Tensor]] = {}
        for p in self.param_groups[0]["params"]:
            self._alike.setdefault(p.shape, []).append(p)
        self._velocity = {shape: torch.zeros_like(torch.stack(ps)) for shape, ps in self._alike.items()}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        for shape, params in self._alike.items():
            gradient = torch.stack([p.grad for p in params if p.grad is not None])
            velocity = self._velocity[shape].lerp_(gradient, 1 - group["momentum"])
            update = orthogonalise(gradient.lerp_(velocity, group["momentum"]).flatten(0, -3)).view_as(
                gradient
            )
            scale = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
            torch._foreach_mul_(params, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(params, list(update.to(gradient.dtype).unbind(0)), alpha=-scale)


def optimizers(network: nn.Module, matrix_rate: float, other_rate: float) -> list[torch.optim.Optimizer]:
    """Muon over the hidden matrices, AdamW over embedding, router, gates, norms and convolution."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in network.named_parameters():
        small = min(p.shape[-2:]) < 16 if p.ndim >= 2 else True
        (others if small or name == "embed" or name.endswith(".gate") else matrices).append(p)
    fused = all(p.is_cuda for p in others)
    return [
        Muon(matrices, matrix_rate),
        torch.optim.AdamW(others, other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
    ]
