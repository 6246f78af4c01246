"""Which cores the expert workers get: the decision on invented machines, and the real one on this."""

from __future__ import annotations

import os

from ftagent.engine.machine.cores import choose, worker_cores


def test_two_cores_stay_free_on_a_machine_with_many() -> None:
    assert choose(list(range(16)), {}, None, None) == list(range(14))
    assert choose(list(range(5)), {}, None, None) == [0, 1, 2]


def test_few_cores_are_all_taken() -> None:
    for count in (1, 2, 3, 4):
        assert choose(list(range(count)), {}, None, None) == list(range(count))


def test_one_worker_per_execution_unit() -> None:
    # Eight cores with two threads each, numbered as Linux does: the second threads come last.
    siblings: dict[int, object] = {core: core % 8 for core in range(16)}
    assert choose(list(range(16)), siblings, None, None) == [0, 1, 2, 3, 4, 5]
    # And numbered in pairs.
    pairs: dict[int, object] = {core: core // 2 for core in range(16)}
    assert choose(list(range(16)), pairs, None, None) == [0, 2, 4, 6, 8, 10]


def test_second_threads_are_used_when_asked_for_more() -> None:
    pairs: dict[int, object] = {core: core // 2 for core in range(4)}
    assert choose([0, 1, 2, 3], pairs, None, 3) == [0, 2, 1]
    assert choose([0, 1, 2, 3], pairs, None, 5) == [0, 2, 1, 3, 0]


def test_a_quota_bounds_the_default_and_not_a_wish() -> None:
    assert choose(list(range(64)), {}, 3.5, None) == [0, 1, 2]
    assert choose(list(range(64)), {}, 10.0, None) == list(range(8))
    assert choose(list(range(64)), {}, 0.5, None) == [0]
    assert len(choose(list(range(64)), {}, 2.0, 20)) == 20


def test_only_cores_of_the_mask() -> None:
    assert choose([3, 9], {}, None, None) == [3, 9]
    assert set(worker_cores()) <= os.sched_getaffinity(0)
    assert len(worker_cores(3)) == 3
