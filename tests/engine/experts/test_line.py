"""The line through a side's measurements finds what made them, and its native twin comes to the same bits."""

from __future__ import annotations

import ctypes
import random
from ctypes import byref, c_int64, c_void_p

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.line import Line
from ftagent.engine.experts.native_policy import bind
from ftagent.engine.machine import native

RECORDS = 512  # of an expert

measurements = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(1, 16 * RECORDS), st.integers(0, 10**9))), max_size=60
)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no native library")
    bind(loaded, "ft_line_new", c_void_p, c_int64, c_int64, c_int64)
    bind(loaded, "ft_line_free", None, c_void_p)
    bind(loaded, "ft_line_add", None, c_void_p, c_int64, c_int64)
    bind(loaded, "ft_line_forget", None, c_void_p)
    bind(loaded, "ft_line_constants", None, c_void_p, ctypes.POINTER(c_int64), ctypes.POINTER(c_int64))
    return loaded


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(1, 4096), measurements)
def test_the_native_twin_learns_alike(
    library: ctypes.CDLL, fixed: int, expert: int, records: int, taken: list[tuple[int, int] | None]
) -> None:
    line = Line(fixed, expert, records)
    twin = library.ft_line_new(fixed, expert, records)
    found_fixed, found_expert = c_int64(), c_int64()
    for one in taken:
        if one is None:
            line.forget()
            library.ft_line_forget(twin)
        else:
            line.add(*one)
            library.ft_line_add(twin, *one)
        library.ft_line_constants(twin, byref(found_fixed), byref(found_expert))
        assert (found_fixed.value, found_expert.value) == line.constants
        assert min(line.constants) >= 0
    library.ft_line_free(twin)


@pytest.mark.parametrize(("fixed", "expert"), [(8_000, 115_000), (40_000, 70_000), (0, 300_000)])
def test_the_line_behind_noisy_measurements_is_found(fixed: int, expert: int) -> None:
    """From a start that is wrong by a factor, with a fifth of noise, for parts of experts and several."""
    dice = random.Random(fixed)
    line = Line(10_000, 286_000, RECORDS)
    for _ in range(300):
        records = dice.choice((64, 128, 256, 512, 1024, 1536))
        taken = (fixed + expert * records / RECORDS) * dice.uniform(0.9, 1.1)
        line.add(records, int(taken))
    for records in (128, 1024):
        found = line.fixed + line.slope * records
        assert found == pytest.approx(fixed + expert * records / RECORDS, rel=0.1)


def test_measurements_that_are_alike_move_the_height_alone() -> None:
    line = Line(10_000, 100_000, RECORDS)
    for _ in range(200):
        line.add(RECORDS, 220_000)
    fixed, expert = line.constants
    assert fixed + expert == pytest.approx(220_000, rel=0.02)
    assert min(fixed, expert) > 0


def test_one_odd_measurement_is_not_believed() -> None:
    line = Line(5_000, 150_000, RECORDS)
    for _ in range(40):
        line.add(RECORDS, 155_000)
    line.add(RECORDS, 10**9)
    assert sum(line.constants) < 1.15 * 155_000


def test_a_side_that_is_not_asked_is_thought_well_of_again() -> None:
    start = (5_000, 150_000)
    line = Line(*start, RECORDS)
    for _ in range(50):
        line.add(RECORDS, 100 * sum(start))
    assert sum(line.constants) > 20 * sum(start)
    for _ in range(200):
        line.forget()
    assert sum(line.constants) < 1.5 * sum(start)
