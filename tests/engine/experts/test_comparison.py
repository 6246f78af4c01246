"""Comparing steps, against numpy and against what is known about made-up steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.experts import comparison
from ftagent.engine.experts.comparison import ENOUGH, HYSTERESIS, Comparison, Sample, at_misses, fixed_ns

SAMPLES = st.lists(st.builds(Sample, st.integers(1, 10**9), st.integers(1, 1000)), min_size=1, max_size=40)


def compare(ours: list[Sample], theirs: list[Sample]) -> Comparison:
    return comparison.compare(ours, theirs, fixed_ns(ours))


@given(ours=SAMPLES, theirs=SAMPLES)
def test_any_two_sides_can_be_compared(ours: list[Sample], theirs: list[Sample]) -> None:
    found = compare(ours, theirs)
    assert found.steps == min(len(ours), len(theirs))
    assert found.permille >= 0
    assert found.misses == int(np.median([sample.misses for sample in ours + theirs]))
    assert 0 <= fixed_ns(ours) <= np.median([sample.ns for sample in ours])


@given(side=SAMPLES)
def test_a_side_is_even_with_itself(side: list[Sample]) -> None:
    assert compare(side, side).verdict == "even"


@given(
    ns=st.lists(st.integers(10**6, 10**8), min_size=1, max_size=30),
    other=st.lists(st.integers(10**6, 10**8), min_size=1, max_size=30),
)
def test_at_equal_misses_the_medians_are_those_of_the_times(ns: list[int], other: list[int]) -> None:
    found = compare([Sample(each, 7) for each in ns], [Sample(each, 7) for each in other])
    assert found.ours_ns == int(np.median(ns))
    assert found.theirs_ns == int(np.median(other))


@pytest.mark.parametrize(("steps", "factor"), [(1, 3.1), (2, 2.1), (4, 1.5), (8, 1.25), (ENOUGH, 1.04)])
def test_the_fewer_the_steps_the_larger_the_difference_must_be(steps: int, factor: float) -> None:
    ours = [Sample(1_000_000, 10)] * steps
    theirs = [Sample(int(1_000_000 * factor), 10)] * steps
    assert compare(ours, theirs).verdict == "slower"
    assert compare(theirs, ours).verdict == "faster"
    if steps > 1:
        assert compare(ours[:-1], theirs[:-1]).verdict == "even"


def test_below_the_hysteresis_all_is_even() -> None:
    ours = [Sample(1_000_000, 10)] * 100
    just = [Sample(1_000_000 - 1000 * (HYSTERESIS - 1), 10)] * 100
    assert compare(ours, just).verdict == "even"


def test_noise_widens_the_margin() -> None:
    rng = np.random.default_rng()
    wrong = 0
    for _ in range(300):
        draw = rng.lognormal(0, 0.3, (2, 16)) * 1e6
        ours, theirs = ([Sample(int(each), 9) for each in side] for side in draw)
        wrong += compare(ours, theirs).verdict != "even"
    assert wrong <= 15  # three standard errors, with the error itself estimated from 16 steps


def test_the_error_is_that_of_a_median() -> None:
    rng = np.random.default_rng()
    values = rng.normal(1e6, 5e4, 4000)
    medians = np.median(rng.normal(1e6, 5e4, (4000, 400)), axis=1)
    found = compare([Sample(int(each), 3) for each in values[:400]], [Sample(10**6, 3)] * 400)
    assert found.error == pytest.approx(1000 * medians.std() / 1e6, abs=1.5)


def test_the_fixed_part_is_found_where_misses_vary() -> None:
    rng = np.random.default_rng()
    misses = rng.integers(20, 200, 60)
    steps = [Sample(int(3_000_000 + each * 50_000), int(each)) for each in misses]
    assert fixed_ns(steps) == pytest.approx(3_000_000, rel=0.02)
    assert at_misses(steps[0], 400, 3_000_000) == pytest.approx(3_000_000 + 400 * 50_000, rel=1e-6)
    assert fixed_ns([Sample(10_000, 50)] * 60) == 5_000


def test_steps_are_compared_at_the_same_misses() -> None:
    rng = np.random.default_rng()
    few, many = rng.integers(20, 60, 30), rng.integers(60, 120, 30)
    ours = [Sample(int(1_000_000 + each * 50_000), int(each)) for each in few]
    theirs = [Sample(int(1_000_000 + each * 50_000), int(each)) for each in many]
    assert compare(ours, theirs).permille == pytest.approx(1000, abs=25)
