"""Rounds alternate, and the fitted line is the one that numpy finds."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.machine.rounds import FEWEST_ROUNDS, alternate, fit_line, spread


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def probe(self, name: str, took: float) -> Callable[[], float]:
        def run() -> float:
            self.order.append(name)
            self.now += took
            return took + len(self.order)

        return run


def test_every_probe_runs_once_a_round_until_time_is_over() -> None:
    clock = Clock()
    found = alternate({"a": clock.probe("a", 1.0), "b": clock.probe("b", 2.0)}, 20, lambda: clock.now)
    assert clock.order[:6] == ["a", "b"] * 3
    assert len(found["a"]) == len(found["b"]) == 7  # 21 seconds, and one round before that does not count
    assert clock.order == ["a", "b"] * 8


def test_slow_probes_still_get_their_rounds() -> None:
    clock = Clock()
    found = alternate({"a": clock.probe("a", 100.0)}, 1, lambda: clock.now)
    assert len(found["a"]) == FEWEST_ROUNDS
    assert alternate({}, 5) == {}


@given(samples=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20))
def test_the_spread_is_median_and_extremes(samples: list[float]) -> None:
    found = spread(samples)
    assert (found.median, found.runs) == (statistics.median(samples), len(samples))
    assert (found.low, found.high) == (min(samples), max(samples))


@given(
    fixed_us=st.floats(1, 1000),
    gbs=st.floats(1, 500),
    sizes=st.lists(st.integers(10**6, 10**8), min_size=2, max_size=6, unique=True),
)
def test_an_exact_line_is_found_again(fixed_us: float, gbs: float, sizes: list[int]) -> None:
    if max(sizes) < 1.2 * min(sizes):
        sizes.append(2 * max(sizes))
    line = fit_line([(size, fixed_us / 1e6 + size / gbs / 1e9) for size in sizes])
    assert line.bytes_per_s == pytest.approx(gbs * 1e9, rel=1e-3)
    assert line.fixed_ns == pytest.approx(fixed_us * 1e3, rel=1e-2, abs=100)


def test_a_noisy_line_is_that_of_weighted_least_squares() -> None:
    rng = np.random.default_rng()
    sizes = np.array([1, 2, 4, 8]) * 9_437_184
    times = (20e-6 + sizes / 50e9) * rng.uniform(0.97, 1.03, 4)
    slope, fixed = np.polyfit(sizes, times, 1, w=1 / times)
    line = fit_line(list(zip(sizes.tolist(), times.tolist(), strict=True)))
    assert line.bytes_per_s == pytest.approx(1 / slope, rel=1e-6)
    assert line.fixed_ns == pytest.approx(max(fixed, 0) * 1e9, abs=2)


def test_what_is_no_line_still_gives_a_rate() -> None:
    assert fit_line([(10**9, 0.5)]) == fit_line([(10**9, 0.5), (10**9, 0.5)])
    one = fit_line([(10**9, 0.5)])
    assert (one.fixed_ns, one.bytes_per_s) == (0, 2 * 10**9)
    falling = fit_line([(10**6, 1.0), (10**9, 0.5)])
    assert (falling.fixed_ns, falling.bytes_per_s) == (0, 2 * 10**9)
    steep = fit_line([(10**6, 1e-5), (2 * 10**6, 4e-5)])  # through a negative fixed part
    assert steep.fixed_ns == 0
    assert 5e10 <= steep.bytes_per_s <= 1e11
