"""q* is the best split of all, and constants move towards what is measured."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.costs import CostModel, choose_fetches

NS = st.integers(0, 1_000_000)


@settings(deadline=None)
@given(
    constants=st.tuples(NS, NS, NS, NS, NS),
    rows=st.lists(st.integers(1, 50), max_size=12),
    device_ns=NS,
)
def test_no_other_split_finishes_earlier(
    constants: tuple[int, int, int, int, int], rows: list[int], device_ns: int
) -> None:
    costs = CostModel(*constants)
    fetch_fixed, fetch_expert, cpu_fixed, cpu_expert, cpu_row = constants

    def finish(q: int) -> int:
        fetch = fetch_fixed + q * fetch_expert if q else 0
        left = rows[q:]
        cpu = cpu_fixed + len(left) * cpu_expert + sum(left) * cpu_row if left else 0
        return max(fetch, cpu, device_ns)

    chosen = choose_fetches(costs, rows, device_ns)
    assert 0 <= chosen <= len(rows)
    best = min(finish(q) for q in range(len(rows) + 1))
    assert finish(chosen) == best
    assert chosen == max(q for q in range(len(rows) + 1) if finish(q) == best)


def test_a_dead_link_leaves_everything_to_the_cpu_and_the_reverse() -> None:
    slow = 10**12
    assert choose_fetches(CostModel(fetch_expert=slow), [1, 1, 1]) == 0
    assert choose_fetches(CostModel(cpu_expert=slow), [1, 1, 1]) == 3


def test_measurements_move_the_constants() -> None:
    costs = CostModel(fetch_fixed=0, fetch_expert=1000, cpu_fixed=0, cpu_expert=1000, cpu_row=0)
    for _ in range(100):
        costs = costs.after_fetch(2, 2 * 5000).after_cpu(1, 4, 300)
    assert 4900 <= costs.fetch_expert <= 5000
    assert 290 <= costs.cpu_expert <= 310
