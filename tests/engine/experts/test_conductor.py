"""The conductor against a device that checks every byte: random routing, all modes, and faults."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ftagent.engine.experts.conductor import LayerTimes
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.link import loopback_link
from ftagent.engine.machine import native
from ftagent.engine.options import Mode
from tests.engine.experts.conductor_bench import Bench, Case
from tests.engine.experts.fake_device import LayerUse


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    return loaded


@pytest.fixture
def opened() -> Iterator[list[Bench]]:
    benches: list[Bench] = []
    yield benches
    for bench in benches:
        bench.close()
    benches.clear()
    gc.collect()


CASES = {
    "hybrid": Case("hybrid", 24),
    "hybrid, slow link": Case("hybrid", 24, bytes_per_s=3e7, delay_s=50e-6),
    "hybrid, no look-ahead": Case("hybrid", 20, guesses=0, delay_s=100e-6),
    "hybrid, fewest slots": Case("hybrid", 3, reserve=1),
    "hybrid, floors": Case("hybrid", 20, floor=4, reserve=2, delay_s=60e-6),
    "hybrid, pieces on end": Case("hybrid", 24, pieces=3, delay_s=60e-6),
    "hybrid, all fit": Case("hybrid", 60),
    "hybrid, many rows": Case("hybrid", 40, rows=5, per_token=4, guesses=4, delay_s=60e-6),
    "hybrid, one layer": Case("hybrid", 6, layers=1, rows=3),
    "offload": Case("offload", 24, delay_s=60e-6),
    "offload, fewer slots than a layer needs": Case("offload", 4, rows=3, reserve=0),
    "offload, more changes than a plan holds": Case(
        "offload", 120, layers=2, experts=80, rows=10, per_token=8, guesses=8, reserve=8
    ),
    "cpu": Case("cpu", 24),
}


@pytest.mark.parametrize("name", CASES)
def test_every_byte_that_the_device_uses_is_right(
    library: ctypes.CDLL, opened: list[Bench], name: str
) -> None:
    case = CASES[name]
    bench = Bench(library, case, seed=sum(map(ord, name)))
    opened.append(bench)
    keys = [(layer, e) for e in range(case.experts) for layer in range(case.layers)]
    bench.device.fill(bench.policy, keys[: int(bench.generator.integers(0, case.slots + 1))])
    total: dict[str, int] = {}
    for step in range(60):
        if step % 3 == 0:
            bench.conductor.set_costs(bench.random_costs())
        if step % 4 == 0:
            bench.device.between = (lambda: time.sleep(2e-4)) if step % 8 else os.sched_yield
        counters, uses = bench.step()
        assert bench.conductor.failed is None
        assert not bench.device.failed
        assert counters.layer_hits == tuple(use.hits for use in uses)
        assert counters.layer_misses == tuple(use.misses for use in uses)
        assert counters.hits == sum(counters.layer_hits)
        assert counters.misses == sum(counters.layer_misses)
        check_times(bench.conductor.layer_times(), uses)
        for field, value in zip(counters._fields, counters, strict=True):
            if isinstance(value, int):
                total[field] = total.get(field, 0) + value
        if step % 10 == 9:
            bench.check()
    check_totals(case, total)


def check_times(times: list[LayerTimes], uses: list[LayerUse]) -> None:
    """Layers are posted one after the other, and only those that miss have copies or a CPU part."""
    posts = [time for each in times for time in (each.post, each.answered)]
    assert posts == sorted(posts)
    assert posts[0] > 0
    for each, use in zip(times, uses, strict=True):
        ends = [end for end in (each.landed, each.computed) if end]
        assert use.misses or not ends
        assert all(end > each.post for end in ends)


def check_totals(case: Case, total: dict[str, int]) -> None:
    """What the mode is for has happened, and what it excludes has not."""
    assert total["hits"] > 0 or case.mode == "cpu" or case.slots < 6
    if case.mode == "cpu":
        moved = ("fetched", "split", "backfilled", "guessed", "bytes_link", "evictions", "records_fetched")
        assert all(total[name] == 0 for name in moved)
    if case.mode == "offload" and case.slots >= 2 * case.rows * case.per_token and case.experts < 60:
        assert total["cpu_experts"] == total["bytes_cpu"] == 0
        assert total["records_fetched"] > 0
    if case.mode == "hybrid" and case.slots < case.layers * case.experts:
        assert total["split"] > 0
        assert total["fetched"] > 0
        assert total["cpu_experts"] > 0
        assert total["backfilled"] > 0 or case.slots < 6
    if case.guesses and case.mode != "cpu" and case.layers > 1 and 6 < case.slots < 60:
        assert total["guessed"] >= total["guess_used"] > 0
    assert total["records_fetched"] <= total["records_missed"]
    assert total["records_optimum"] <= total["records_missed"]


def test_modes_change_between_steps(library: ctypes.CDLL, opened: list[Bench]) -> None:
    bench = Bench(library, Case("hybrid", 20, delay_s=100e-6), seed=5)
    opened.append(bench)
    modes: tuple[Mode, ...] = ("hybrid", "cpu", "offload")
    for step in range(45):
        mode = modes[step // 3 % 3]
        bench.conductor.set_mode(mode)
        counters, _ = bench.step()
        assert bench.conductor.mode == mode
        if mode == "cpu":
            assert counters.records_fetched == 0
    bench.check()
    with pytest.raises(ValueError, match="fused"):
        bench.conductor.set_mode("fused")


def test_what_the_cpu_computed_is_there_at_the_next_step(library: ctypes.CDLL, opened: list[Bench]) -> None:
    """Backfill and nothing else: the same routing twice, and time for the link in between."""
    bench = Bench(library, Case("hybrid", 60, rows=1, guesses=0, reserve=3), seed=6)
    opened.append(bench)
    bench.conductor.set_costs(CostModel(fetch_expert=10**9, cpu_expert=1000))
    routing = bench.router.step(1)
    bench.conductor.begin_step(1, 1)
    bench.device.step(1, routing)
    first = bench.conductor.end_step()
    assert (first.hits, first.fetched, first.cpu_experts) == (0, 0, 15)
    deadline = time.monotonic() + 20
    table = bench.device.slot_of
    while (table >= 0).sum() < 15 and time.monotonic() < deadline:
        os.sched_yield()
    bench.conductor.begin_step(2, 1)
    bench.device.step(2, routing)
    second = bench.conductor.end_step()
    assert (second.hits, second.misses) == (15, 0)
    assert first.backfilled + second.backfilled == 15
    bench.check()


def test_constants_follow_the_measured_times(library: ctypes.CDLL, opened: list[Bench]) -> None:
    bench = Bench(library, Case("offload", 15, guesses=0, bytes_per_s=2e7), seed=7)
    opened.append(bench)
    bench.conductor.set_costs(CostModel(fetch_fixed=0, fetch_expert=40_000))
    for _ in range(40):
        bench.step()
    expert_ns = bench.device.bank[0, 0].nbytes / 2e7 * 1e9
    assert bench.conductor.costs.fetch_expert > 0.7 * expert_ns


def test_a_hanging_worker_costs_one_step(
    library: ctypes.CDLL, opened: list[Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(library, Case("hybrid", 24), seed=8)
    opened.append(bench)
    bench.conductor.set_costs(CostModel(fetch_expert=10**9, cpu_expert=1000))
    bench.conductor.set_watchdog(0.1, 10)
    bench.executor.stall_for_test(3.0)
    with caplog.at_level(logging.WARNING):
        bench.step()
    assert bench.device.failed
    assert bench.conductor.failed is not None
    assert "layer 0: CPU worker 0 did not end its part within 0.1 s" in bench.conductor.failed
    assert bench.conductor.mode == "offload"
    assert "falling back from hybrid to offload" in caplog.text
    goes_on(bench, "offload")


def residents(bench: Bench, layer: int) -> set[int]:
    """As the device sees it."""
    return set(np.flatnonzero(bench.device.slot_of[layer] >= 0).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_layers_without_a_link_are_left_to_the_cpu(
    library: ctypes.CDLL, opened: list[Bench], seed: int
) -> None:
    """In hybrid nothing comes into their slots, whatever the costs; offload still fetches for them."""
    case = Case("hybrid", 24, delay_s=60e-6)
    bench = Bench(library, case, seed=40 + seed)
    opened.append(bench)
    drawn = bench.generator.permutation(case.layers)[: int(bench.generator.integers(1, case.layers))]
    unlinked = set(drawn.tolist())
    keys = [(layer, e) for e in range(4) for layer in range(case.layers)]
    bench.device.fill(bench.policy, keys)
    bench.conductor.set_unlinked(unlinked)
    before = {layer: residents(bench, layer) for layer in unlinked}
    asked = computed = fetched = 0
    for step in range(40):
        if step % 3 == 0:
            bench.conductor.set_costs(bench.random_costs())
        counters, _ = bench.step()
        assert bench.conductor.failed is None
        assert not bench.device.failed
        assert counters.records_optimum <= counters.records_missed
        asked += sum(counters.layer_misses[layer] for layer in unlinked)
        computed += counters.cpu_experts
        fetched += counters.records_fetched
        for layer in unlinked:
            now = residents(bench, layer)
            assert now <= before[layer], "an expert came to a layer without a link"
            before[layer] = now
    assert computed >= asked > 0
    assert fetched > 0, "the other layers have their link"
    bench.check()
    bench.conductor.set_mode("offload")
    for _ in range(10):
        bench.step()
        assert bench.conductor.failed is None
    assert any(residents(bench, layer) - before[layer] for layer in unlinked)
    bench.conductor.set_mode("hybrid")
    for _ in range(10):
        bench.step()
        assert bench.conductor.failed is None
    bench.check()


def test_layers_without_a_link_are_served_when_the_cpu_fails(
    library: ctypes.CDLL, opened: list[Bench]
) -> None:
    bench = Bench(library, Case("hybrid", 24), seed=45)
    opened.append(bench)
    bench.conductor.set_unlinked(range(5))
    bench.conductor.set_watchdog(0.1, 10)
    bench.executor.stall_for_test(3.0)
    bench.step()
    assert bench.conductor.failed is not None
    goes_on(bench, "offload")


@pytest.mark.parametrize("case", [Case("offload", 24), Case("hybrid", 24)])
def test_a_link_error_costs_one_step(
    library: ctypes.CDLL, opened: list[Bench], caplog: pytest.LogCaptureFixture, case: Case
) -> None:
    bench = Bench(library, case, seed=9, link=loopback_link(library, fail_at=20))
    opened.append(bench)
    bench.conductor.set_costs(CostModel(fetch_expert=100_000, cpu_expert=100_000))
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            bench.step()
            if bench.conductor.failed is not None:
                break
    assert bench.conductor.failed is not None
    assert "copies into slots failed: loopback copy: refused" in bench.conductor.failed
    assert "falling back" in caplog.text
    goes_on(bench, "cpu")


def test_a_copy_that_never_ends_costs_one_step(library: ctypes.CDLL, opened: list[Bench]) -> None:
    bench = Bench(library, Case("offload", 24, guesses=0), seed=10, link=loopback_link(library, stall_at=7))
    opened.append(bench)
    bench.conductor.set_watchdog(0.1, 10)
    bench.device.patience_s = 0.5
    for _ in range(40):
        bench.step()
        if bench.conductor.failed is not None:
            break
    assert bench.conductor.failed is not None
    assert "a copy did not end within 0.1 s" in bench.conductor.failed
    assert bench.device.failed
    goes_on(bench, "cpu")


def goes_on(bench: Bench, mode: Mode) -> None:
    """After a failure and new tables on the device, steps are right again."""
    bench.device.publish(bench.policy)
    misses = 0
    for _ in range(5):
        counters, _ = bench.step()
        assert bench.conductor.failed is None
        assert not bench.device.failed
        assert bench.conductor.mode == mode
        misses += counters.misses
    assert misses > 0
    bench.check()


def test_a_device_that_posts_nothing_ends_the_step(library: ctypes.CDLL, opened: list[Bench]) -> None:
    bench = Bench(library, Case("hybrid", 24), seed=11)
    opened.append(bench)
    bench.conductor.set_watchdog(10, 0.02)
    bench.epoch = 1
    bench.conductor.begin_step(1, 1)
    bench.conductor.end_step()
    assert bench.conductor.failed is not None
    assert "layer 0: the device posted nothing for 0.1 s" in bench.conductor.failed
    bench.conductor.set_watchdog(10, 10)
    goes_on(bench, "hybrid")


@pytest.mark.parametrize(("expert", "slot", "reason"), [(1, 3, "the device finds expert 1"), (99, -1, "99")])
def test_a_post_that_cannot_be_is_refused(
    library: ctypes.CDLL, opened: list[Bench], expert: int, slot: int, reason: str
) -> None:
    bench = Bench(library, Case("hybrid", 24, layers=1), seed=13)
    opened.append(bench)
    bench.epoch = 1
    bench.conductor.begin_step(1, 1)
    for name, value in (("ids", expert), ("seen", slot)):
        bench.device.arrays[name][0, :3] = value
    bench.device.arrays["post"][0, 0] = 1
    bench.conductor.end_step()
    assert bench.conductor.failed is not None
    assert reason in bench.conductor.failed
    assert bench.device.arrays["planned"][0, 0] == bench.device.arrays["done"][0, 0] == -1
    goes_on(bench, "hybrid")
