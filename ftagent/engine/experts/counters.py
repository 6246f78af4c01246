"""Counts expert look-ups, since start and over the last 64 steps. Knows only numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ftagent.engine.stats import ExpertStats

RECENT_STEPS = 64


class ExpertCounters:
    """A look-up is one expert needed by one layer in one step."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._hits = self._misses = self._evictions = 0
        self._steps: deque[list[int]] = deque()  # per step: hits of each layer, then misses of each layer
        self._sums = [0] * (2 * layers)

    def begin_step(self) -> None:
        self._steps.append([0] * (2 * self._layers))
        if len(self._steps) > RECENT_STEPS:
            oldest = self._steps.popleft()
            self._sums = [total - old for total, old in zip(self._sums, oldest, strict=True)]

    def record(self, layer: int, hits: int, misses: int, evictions: int) -> None:
        if not self._steps:
            self.begin_step()
        self._hits += hits
        self._misses += misses
        self._evictions += evictions
        for place, count in ((layer, hits), (self._layers + layer, misses)):
            self._steps[-1][place] += count
            self._sums[place] += count

    def record_step(self, hits: Sequence[int], misses: Sequence[int], evictions: int) -> None:
        """A whole step at once: look-ups of each layer."""
        step = [*hits, *misses]
        self._steps.append(step)
        gone = self._steps.popleft() if len(self._steps) > RECENT_STEPS else [0] * len(step)
        self._sums = [total + new - old for total, new, old in zip(self._sums, step, gone, strict=True)]
        self._hits += sum(hits)
        self._misses += sum(misses)
        self._evictions += evictions

    def stats(self) -> ExpertStats:
        hits, misses = self._sums[: self._layers], self._sums[self._layers :]
        rates = tuple(
            hit / (hit + miss) if hit + miss else None for hit, miss in zip(hits, misses, strict=True)
        )
        return ExpertStats(self._hits, self._misses, sum(hits), sum(misses), self._evictions, rates)
