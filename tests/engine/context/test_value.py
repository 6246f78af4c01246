"""The order in which anchors go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.context.value import STALE_REQUESTS, Order, Rank, may_displace, rank_of, worth

SIZES = st.integers(1, 1 << 40)


@given(SIZES, SIZES, st.integers(1, 10**6), st.integers(1, 10**9))
def test_worth_is_time_per_byte(gap: int, freed: int, factor: int, cost: int) -> None:
    assert worth(gap * factor, cost, freed * factor) == worth(gap, cost, freed)
    assert worth(gap + 1, cost, freed) >= worth(gap, cost, freed)
    assert worth(gap, cost, freed + 1) <= worth(gap, cost, freed)


def test_worth_of_what_costs_no_memory_is_finite() -> None:
    assert worth(5, 1, 0) == worth(5, 1, 1) > 0


def test_ranks() -> None:
    assert rank_of(newest=True, goes_on=False, uses=0) is Rank.ONE_SHOT
    assert rank_of(newest=False, goes_on=False, uses=1) is Rank.SHARED
    assert rank_of(newest=False, goes_on=True, uses=0) is Rank.SHARED
    assert rank_of(newest=True, goes_on=True, uses=0) is Rank.NEWEST
    assert Order(Rank.ONE_SHOT, 10**9) < Order(Rank.SHARED, 5) < Order(Rank.SHARED, 6) < Order(Rank.NEWEST, 0)


def test_only_what_goes_on_displaces_the_newest_of_a_conversation() -> None:
    assert may_displace(False, Rank.ONE_SHOT, 0)
    assert may_displace(False, Rank.SHARED, 0)
    assert not may_displace(False, Rank.NEWEST, STALE_REQUESTS)
    assert may_displace(False, Rank.NEWEST, STALE_REQUESTS + 1)
    assert may_displace(True, Rank.NEWEST, 0)
