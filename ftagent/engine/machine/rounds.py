"""Measuring several things fairly on a machine that drifts: all of them once a round, medians over rounds.

Pure, but for the clock. Knows nothing of what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftagent.engine.machine.profile import Line

FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of `runs` samples, the least and the greatest."""

    median: float
    low: float
    high: float
    runs: int


def spread(samples: Sequence[float]) -> Spread:
    """Of at least one sample."""
    return Spread(statistics.median(samples), min(samples), max(samples), len(samples))


def alternate(
    probes: Mapping[str, Callable[[], float]], seconds: float, clock: Callable[[], float] = time.monotonic
) -> dict[str, list[float]]:
    """Samples of every probe: round after round in the given order, until `seconds` are over.

    FEWEST_ROUNDS rounds at least, after one that does not count.
    """
    for probe in probes.values():
        probe()
    samples: dict[str, list[float]] = {name: [] for name in probes}
    end = clock() + seconds
    rounds = 0
    while probes and (rounds < FEWEST_ROUNDS or clock() < end):
        for name, probe in probes.items():
            samples[name].append(probe())
        rounds += 1
    return samples


def fit_line(points: Sequence[tuple[int, float]]) -> Line:
    """The line through (bytes, seconds), by least squares of the relative errors; at least one point.

    Relative, so that the small sizes, which tell the fixed part, count as much as the large ones. A negative
    fixed part is none, a rate that is not positive is that of the largest point.
    """
    # Minimise sum(((fixed + slope * size - time) / time) ** 2) over fixed and slope.
    weights = [1 / took**2 for _, took in points]
    total = sum(weights)
    sizes = sum(weight * size for weight, (size, _) in zip(weights, points, strict=True))
    squares = sum(weight * size * size for weight, (size, _) in zip(weights, points, strict=True))
    times = sum(weight * took for weight, (_, took) in zip(weights, points, strict=True))
    products = sum(weight * size * took for weight, (size, took) in zip(weights, points, strict=True))
    scale = total * squares - sizes * sizes
    slope = (total * products - sizes * times) / scale if scale > 0 else 0.0
    fixed = (times - slope * sizes) / total
    if slope <= 0 or fixed < 0:
        largest = max(points)
        slope, fixed = (products / squares if fixed < 0 else largest[1] / largest[0]), 0.0
    return Line(round(fixed * 1e9), max(round(1 / slope), 1))
