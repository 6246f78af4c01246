"""Frequencies of the rotary embedding, plain or stretched to longer contexts. Knows no positions."""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from ftagent.engine.models.config import RopeScaling


def frequencies(size: int, theta: float, scaling: RopeScaling | None = None) -> torch.Tensor:
    """float32 [size / 2], in radians a token (Su et al., arXiv 2104.09864), dimension by dimension.

    `linear` divides all of them, `llama3` those of long waves (Llama 3.1's release), `yarn` mixes by the
    number of rotations within the original context (Peng et al., arXiv 2309.00071).
    """
    plain = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    if scaling is None:
        return plain
    stretched = plain / scaling.factor
    if scaling.kind == "linear":
        return stretched
    kept = _llama3_kept(plain, scaling) if scaling.kind == "llama3" else _yarn_kept(size, theta, scaling)
    return stretched * (1 - kept) + plain * kept


def _llama3_kept(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """How much of each frequency stays, from 0 to 1: linear in the rotations within the original context."""
    rotations = scaling.original * plain / (2 * pi)
    return ((rotations - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)


def _yarn_kept(size: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """The same, linear in the dimension between those that turn `fast` and `slow` times."""

    def dimension(rotations: float) -> float:
        return size * log(scaling.original / (rotations * 2 * pi)) / (2 * log(theta))

    first, last = dimension(scaling.fast), dimension(scaling.slow)
    if scaling.whole:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    if first == last:
        last += 0.001
    place = torch.arange(size // 2, dtype=torch.float32)
    return 1 - ((place - first) / (last - first)).clamp(0, 1)
