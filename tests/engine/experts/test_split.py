"""Sharing missing experts by records: against brute force, and the native twin against the Python one."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int32, c_int64
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.costs import MIN_GAIN_NS, CostModel, Miss, choose_split
from ftagent.engine.experts.native_policy import bind
from ftagent.engine.machine import native
from ftagent.engine.options import Mode

NS = st.integers(0, 400_000)
MODELS = st.builds(CostModel, NS, NS, NS, NS, st.integers(0, 60_000))
MODES: tuple[Mode, ...] = ("hybrid", "offload", "cpu")


class NativeCosts(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64) for name in ("fetch_fixed", "fetch_expert", "cpu_fixed", "cpu_expert", "cpu_row")
    )


class NativeMiss(ctypes.Structure):
    _fields_ = (("rows", c_int64), ("frequency", c_int64), ("have", c_int64))


class NativeInput(ctypes.Structure):
    _fields_ = (
        ("intermediate", c_int32),
        ("grain", c_int32),
        ("link_busy_ns", c_int64),
        ("device_ns", c_int64),
        ("mode", c_int32),
        ("min_gain_ns", c_int64),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    bind(
        loaded,
        "ft_costs_split",
        None,
        POINTER(NativeCosts),
        POINTER(NativeMiss),
        c_int32,
        POINTER(NativeInput),
        POINTER(c_int32),
    )
    return loaded


def native_costs(costs: CostModel) -> NativeCosts:
    names = ("fetch_fixed", "fetch_expert", "cpu_fixed", "cpu_expert", "cpu_row")
    return NativeCosts(*(getattr(costs, name) for name in names))


def finish(
    costs: CostModel, misses: list[Miss], cuts: list[int], records: int, busy: int = 0, device: int = 0
) -> int:
    """Later end of both sides, written out from the model's definition."""
    fetched = sum(cut - miss.have for cut, miss in zip(cuts, misses, strict=True))
    left = sum(records - cut for cut in cuts)
    left_rows = sum(miss.rows * (records - cut) for cut, miss in zip(cuts, misses, strict=True))
    link = busy + costs.fetch_fixed + fetched * costs.fetch_expert // records if fetched else 0
    cpu = costs.cpu_fixed + (left * costs.cpu_expert + left_rows * costs.cpu_row) // records if left else 0
    return max(link, cpu, device)


@settings(deadline=None, max_examples=150)
@given(
    costs=MODELS,
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=6),
    records=st.integers(1, 200),
    grain=st.sampled_from([1, 7, 16, 32]),
    busy=NS,
    device=NS,
)
def test_no_whole_split_is_better_and_a_shared_expert_pays(
    costs: CostModel, rows: list[tuple[int, int]], records: int, grain: int, busy: int, device: int
) -> None:
    misses = [Miss(*pair) for pair in rows]
    cuts = choose_split(costs, misses, records, grain, busy, device)
    chosen = finish(costs, misses, cuts, records, busy, device)
    wholes = [
        finish(costs, misses, list(whole), records, busy, device)
        for whole in product((0, records), repeat=len(misses))
    ]
    shared = [place for place, cut in enumerate(cuts) if cut not in (0, records)]
    assert len(shared) <= 1
    if shared:
        assert cuts[shared[0]] % grain == 0
        assert chosen <= min(wholes) - MIN_GAIN_NS
    else:
        assert chosen == min(wholes)


@settings(deadline=None, max_examples=150)
@given(
    costs=MODELS,
    rows=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=5
    ),
    grain=st.sampled_from([1, 7, 16]),
    busy=NS,
)
def test_no_shared_expert_in_fetching_order_is_better(
    costs: CostModel, rows: list[tuple[int, int, int]], grain: int, busy: int
) -> None:
    records = 40
    misses = [Miss(*triple) for triple in rows]
    cuts = choose_split(costs, misses, records, grain, busy)
    assert all(miss.have <= cut <= records for cut, miss in zip(cuts, misses, strict=True))
    order = sorted(misses, key=lambda miss: (-miss.have, -miss.rows, -miss.frequency))
    tried = []
    for whole, miss in enumerate(order):
        inside = [c for c in range(0, records, grain) if c > miss.have]
        for cut in (miss.have, *inside, records):
            tail = [other.have for other in order[whole + 1 :]]
            tried.append(finish(costs, order, [*[records] * whole, cut, *tail], records, busy))
    assert finish(costs, misses, cuts, records, busy) <= min(tried) + MIN_GAIN_NS


def test_experts_of_more_rows_then_of_more_uses_are_fetched() -> None:
    costs = CostModel(fetch_fixed=0, fetch_expert=100_000, cpu_fixed=0, cpu_expert=100_000, cpu_row=0)
    misses = [Miss(1, 5), Miss(1, 9), Miss(3, 0), Miss(1, 7)]
    assert choose_split(costs, misses, 64, 16) == [0, 64, 64, 0]
    assert choose_split(costs, misses[:1], 64, 16) == [32]
    assert choose_split(costs, misses, 64, 16, mode="offload") == [64] * 4
    assert choose_split(costs, misses, 64, 16, mode="cpu") == [0] * 4


def test_what_is_there_already_is_not_computed_again() -> None:
    costs = CostModel(fetch_fixed=0, fetch_expert=10**9, cpu_fixed=0, cpu_expert=1000, cpu_row=0)
    assert choose_split(costs, [Miss(1, 0, 24), Miss(1)], 64, 16) == [24, 0]


@settings(deadline=None, max_examples=400)
@given(
    costs=MODELS,
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 60)), max_size=9),
    grain=st.sampled_from([1, 7, 16, 32]),
    busy=NS,
    device=NS,
    mode=st.sampled_from(MODES),
)
def test_the_native_twin_cuts_alike(
    library: ctypes.CDLL,
    costs: CostModel,
    rows: list[tuple[int, int, int]],
    grain: int,
    busy: int,
    device: int,
    mode: Mode,
) -> None:
    records = 60
    count = len(rows)
    cuts = (c_int32 * count)(*[-7] * count)
    packed = (NativeMiss * count)(*(NativeMiss(*row) for row in rows))
    given_input = NativeInput(records, grain, busy, device, MODES.index(mode), MIN_GAIN_NS)
    library.ft_costs_split(byref(native_costs(costs)), packed, count, byref(given_input), cuts)
    assert list(cuts) == choose_split(costs, [Miss(*row) for row in rows], records, grain, busy, device, mode)
