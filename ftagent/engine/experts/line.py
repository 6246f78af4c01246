"""What a side of the split needs for its work, learnt from what it took: ns = fixed + records * slope.

A least-squares line through the measurements, of which newer ones count more, held to where it is by two
points on it: of measurements that are all alike only their height is learnt. Pure numbers. Also in
machine/native/line.h, operation by operation, since both are to come to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable

DECAY = 31 / 32  # of a measurement's weight with each that follows
HOLD = 2.0  # weight of each of the two points
BOUND = 4.0  # a measurement counts as at most so many times what was expected: one odd one is no new truth
STEEPEST = 64.0  # slopes stay within this factor of the start


class Line:
    """`fixed` ns and `slope` ns a record, at first as `fixed` and one expert of `records` records have it."""

    def __init__(self, fixed: int, expert: int, records: int) -> None:
        self._records = float(records)
        self.fixed = self._start_fixed = float(fixed)
        self.slope = self._start_slope = max(expert, 1) / records
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of weight, n, n * n, ns, n * ns

    @property
    def constants(self) -> tuple[int, int]:
        """Whole nanoseconds: fixed, and of one expert."""
        return int(self.fixed), int(self.slope * self._records)

    def add(self, records: int, ns: int) -> None:
        """Learn that `records` > 0 records took `ns`."""
        n = float(records)
        taken = min(float(ns), BOUND * (self.fixed + self.slope * n))
        new = (1.0, n, n * n, taken, n * taken)
        self._sums = _five(DECAY * old + one for old, one in zip(self._sums, new, strict=True))
        self._fit()

    def forget(self) -> None:
        """Nothing was measured. Go back towards the start: a side that is thought slow gets no work by which
        it could show that it no longer is.
        """
        self._sums = _five(DECAY * old for old in self._sums)
        self.fixed += (self._start_fixed - self.fixed) * (1.0 - DECAY)
        self.slope += (self._start_slope - self.slope) * (1.0 - DECAY)

    def _fit(self) -> None:
        weight, n, nn, ns, n_ns = self._sums
        for place in (self._records / 4.0, self._records * 2.0):
            held = self.fixed + self.slope * place
            weight += HOLD
            n += HOLD * place
            nn += HOLD * (place * place)
            ns += HOLD * held
            n_ns += HOLD * (place * held)
        mean, height = n / weight, ns / weight
        slope = (n_ns / weight - mean * height) / (nn / weight - mean * mean)
        slope = min(max(slope, self._start_slope / STEEPEST), self._start_slope * STEEPEST)
        self.fixed = max(height - slope * mean, 0.0)
        self.slope = (height - self.fixed) / mean


def _five(values: Iterable[float]) -> tuple[float, float, float, float, float]:
    a, b, c, d, e = values
    return a, b, c, d, e
