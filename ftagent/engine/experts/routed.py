"""What a Moe layer needs of whatever holds the routed experts."""

from __future__ import annotations

from typing import Protocol

import torch


class RoutedExperts(Protocol):
    """All MoE layers' experts. `layer` counts MoE layers only."""

    def forward(
        self, layer: int, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, decode: int, /
    ) -> torch.Tensor:
        """Routed output [rows, H] of x [rows, H]; `chosen`, `weights` [rows, k]; the first `decode` rows
        decode.
        """
        ...
