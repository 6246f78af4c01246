"""Figures of a routing trace, and the published ones they are held against. Pure numpy."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.walk.shapes import Family

Routing = NDArray[np.int64]  # [tokens, layers, experts per token]
CACHED = (0.059, 0.125, 0.25, 0.37)  # shares of all experts
DECILE = 0.105
SKEW_TOKENS = 1500  # the skew of a text falls with its length: as many tokens as the published figure


class Target(NamedTuple):
    """A published value and how far from it still counts as a match."""

    name: str
    value: float
    tolerance: float


def targets(family: Family, per_token: int, experts: int) -> list[Target]:
    """Published routing statistics of the family's models; docs/performance.md names the sources.

    LRU hit rates are a fit to published points of models with 8 of 256 experts; for others they are used only
    from 4 times one token's working set on, below which no figure was found.
    """
    overlap, recall = (0.354, 0.807) if family == "qwen3_5_moe" else (0.433, 0.886)
    fitted = family == "qwen3_5_moe"
    shares = [share for share in CACHED if fitted or share >= 4 * per_token / experts]
    found = [
        Target("previous-token overlap", overlap, 0.04),
        Target("next-layer recall", recall, 0.03),
        *(Target(f"LRU hit at {share:.1%}", 1 - math.exp(-4.06 * share**0.65), 0.05) for share in shares),
    ]
    if fitted:
        found.append(Target(f"share of the top {DECILE:.1%}", 0.50, 0.05))
    return found


def measure(chosen: Routing, guessed: Routing, experts: int) -> dict[str, float]:
    """Figures under the names of `targets`. `guessed` [tokens, layers - 1, k]: what the router of each layer
    but the first would choose on the input of the router before it."""
    figures = {
        "previous-token overlap": overlap(chosen[1:], chosen[:-1]),
        "next-layer recall": overlap(chosen[:, 1:], guessed),
    }
    for share in CACHED:
        figures[f"LRU hit at {share:.1%}"] = lru_hit(chosen, int(share * chosen.shape[1] * experts))
    figures[f"share of the top {DECILE:.1%}"] = top_share(chosen[:SKEW_TOKENS], experts, DECILE)
    return figures


def overlap(first: Routing, second: Routing) -> float:
    """Mean share of the experts in the last dimension of `first` that are in that of `second` too."""
    return float((first[..., :, None] == second[..., None, :]).any(-1).mean())


def lru_hit(chosen: Routing, slots: int) -> float:
    """Hit rate of one least-recently-used cache for all layers; the first quarter of the text fills it."""
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = lookups = 0
    for token, layers in enumerate(chosen.tolist()):
        counted = token >= len(chosen) // 4
        for layer, experts in enumerate(layers):
            for expert in experts:
                key = (layer, expert)
                hits += counted and key in kept
                lookups += counted
                kept[key] = None
                kept.move_to_end(key)
                if len(kept) > slots:
                    kept.popitem(last=False)
    return hits / max(lookups, 1)


def top_share(chosen: Routing, experts: int, share: float) -> float:
    """Share of all look-ups that go to the most used `share` of all experts."""
    layers = chosen.shape[1]
    keys = chosen + np.arange(layers)[:, None] * experts
    counts = np.sort(np.bincount(keys.reshape(-1), minlength=layers * experts))[::-1]
    return float(counts[: round(share * layers * experts)].sum() / counts.sum())
