"""Which of two ways to run a decode step is faster, from a handful of measured steps each.

Pure integers: nanoseconds, and permille for ratios. Steps are compared at the same number of misses; the
fewer the steps, the larger a difference must be. Knows no modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Literal, NamedTuple

HYSTERESIS = 30
"""Permille that a challenger must be faster by, however many steps were measured."""

ENOUGH = 12
"""Steps of either side from which medians and their errors decide; below, only gross differences do."""

# Fewest steps of both sides, and how many permille of our time are then slower (the inverse is faster).
_GROSS = ((8, 1200), (4, 1400), (2, 2000), (1, 3000))
_ERRORS = 3  # standard errors that a difference must exceed

Verdict = Literal["faster", "slower", "even"]


class Sample(NamedTuple):
    """One decode step: its time and the experts that it missed, at least one."""

    ns: int
    misses: int


class Comparison(NamedTuple):
    """Medians of a step with `misses` misses; `permille` is theirs of ours, `error` its standard error."""

    ours_ns: int
    theirs_ns: int
    misses: int
    permille: int
    error: int
    verdict: Verdict
    steps: int  # of the side with fewer


def compare(ours: Sequence[Sample], theirs: Sequence[Sample], fixed: int) -> Comparison:
    """Compare two sides of at least one step each; the verdict is on theirs.

    `fixed` is the part of a step that does not depend on its misses. A side of fewer than four steps is
    judged by the step that speaks least for the difference, since one step may be slow for any reason.
    """
    misses = _median([sample.misses for sample in (*ours, *theirs)])
    mine = [at_misses(sample, misses, fixed) for sample in ours]
    other = [at_misses(sample, misses, fixed) for sample in theirs]
    ours_ns, theirs_ns = max(_median(mine), 1), _median(other)
    error = isqrt(_error(mine) ** 2 + _error(other) ** 2)
    least = 1000 * _low(other) // max(_high(mine), 1)
    most = 1000 * _high(other) // max(_low(mine), 1)
    steps = min(len(mine), len(other))
    permille = 1000 * theirs_ns // ours_ns
    if steps >= ENOUGH:
        least = most = permille
        slower = 1000 + max(HYSTERESIS, _ERRORS * error)
        faster = 1000 - max(HYSTERESIS, _ERRORS * error)
    else:
        slower = max(next(bound for fewest, bound in _GROSS if steps >= fewest), 1000 + _ERRORS * error)
        faster = 1_000_000 // slower
    verdict: Verdict = "slower" if least >= slower else "faster" if most <= faster else "even"
    return Comparison(ours_ns, theirs_ns, misses, permille, error, verdict, steps)


def fixed_ns(samples: Sequence[Sample]) -> int:
    """The part of a step that does not depend on its misses, from the steps with few and with many.

    Half a step when the misses vary too little to tell: then it matters little.
    """
    if not samples:
        return 0
    ordered = sorted(samples, key=lambda sample: sample.misses)
    middle = _median([sample.ns for sample in ordered])
    third = len(ordered) // 3
    few, many = ordered[:third], ordered[len(ordered) - third :]
    if third < 2:
        return middle // 2
    low, high = _median([sample.misses for sample in few]), _median([sample.misses for sample in many])
    if 4 * (high - low) < high:
        return middle // 2
    low_ns, high_ns = _median([sample.ns for sample in few]), _median([sample.ns for sample in many])
    return min(max(low_ns - low * (high_ns - low_ns) // (high - low), 0), middle)


def at_misses(sample: Sample, misses: int, fixed: int) -> int:
    """The time of a step like `sample` had it missed `misses` experts, when `fixed` of it stays."""
    if sample.ns <= fixed:
        return sample.ns
    return fixed + (sample.ns - fixed) * misses // sample.misses


def _median(values: Sequence[int]) -> int:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


def _low(values: Sequence[int]) -> int:
    return _median(values) if len(values) >= 4 else min(values)


def _high(values: Sequence[int]) -> int:
    return _median(values) if len(values) >= 4 else max(values)


def _error(values: Sequence[int]) -> int:
    """Standard error of the median in permille of it, from the median absolute deviation.

    1.4826 makes a deviation of it for normal noise, 1.2533 (root of half pi) is the median's excess over
    the mean's error.
    """
    middle = max(_median(values), 1)
    spread = _median([abs(value - middle) for value in values])
    return 18580 * spread // (middle * isqrt(100 * len(values)))
