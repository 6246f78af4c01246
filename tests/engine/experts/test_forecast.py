"""The forecast against limits that can be worked out by hand, published hit rates, and figures of a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.forecast import (
    DEVICE_NS,
    NOMINAL_FLOPS,
    Rates,
    Work,
    cpu_decode,
    cpu_prefill,
    device_decode,
    device_prefill,
    hit_rate,
)

# 24 layers of Qwen3.6-35B-A3B: 256 experts of 3 x 2048 x 512, 8 a token, 28 million dense weights a layer.
WORK = Work(
    layers=24,
    moe_layers=24,
    experts=256,
    per_token=8,
    intermediate=512,
    expert_weights=3 * 2048 * 512,
    expert_bytes=2 * 3 * 2048 * 512,
    dense_bytes=2 * (24 * 28_000_000 + 248_320 * 2048),
    weights=24 * (28_000_000 + 8 * 3 * 2048 * 512) + 248_320 * 2048,
)
ALL = 24 * 256
LINK_NS, CPU_NS = round(WORK.expert_bytes / 46), round(WORK.expert_bytes / 81)  # bytes over GB/s
H200 = Rates(CostModel(10_000, LINK_NS, 3_000, CPU_NS - 4_000, 4_000), 4_500_000_000_000, *DEVICE_NS)


@pytest.mark.parametrize(
    ("share", "published"), [(0.059, 0.476), (0.125, 0.67), (0.25, 0.81), (0.11, 0.61), (0.37, 0.84)]
)
def test_the_curve_passes_by_published_hit_rates(share: float, published: float) -> None:
    assert hit_rate(share) == pytest.approx(published, abs=0.05)


def test_the_curve_rises_from_nothing_to_all() -> None:
    rates = [hit_rate(step / 100) for step in range(101)]
    assert (rates[0], rates[-1]) == (0.0, 1.0)
    assert all(less < more for less, more in pairwise(rates))


def test_with_every_expert_resident_bytes_and_fixed_costs_are_all() -> None:
    seconds = (WORK.dense_bytes + 24 * 8 * WORK.expert_bytes) / 4.5e12 + 24 * 22e-6 + 600e-6
    assert device_decode(WORK, ALL, "fused", H200) == pytest.approx(1 / seconds)


def test_without_a_slot_the_processor_computes_every_expert() -> None:
    layer = (40_000 + 3_000 + 8 * CPU_NS) * 1e-9
    seconds = WORK.dense_bytes / 4.5e12 + 24 * (22e-6 + layer) + 600e-6
    assert device_decode(WORK, 0, "cpu", H200) == pytest.approx(1 / seconds, rel=1e-3)


def test_one_expert_of_a_token_misses_as_often_as_the_curve_says() -> None:
    one = replace(WORK, per_token=1)
    hit = one.expert_bytes / 4.5e12
    miss = (40_000 + 10_000 + LINK_NS) * 1e-9
    found = hit_rate(0.25)
    seconds = WORK.dense_bytes / 4.5e12 + 600e-6 + 24 * (22e-6 + found * hit + (1 - found) * miss)
    assert device_decode(one, ALL // 4, "offload", H200) == pytest.approx(1 / seconds, rel=1e-3)


def test_sharing_misses_is_never_slower_than_either_side() -> None:
    for slots in range(ALL // 20, ALL, ALL // 20):
        both = device_decode(WORK, slots, "hybrid", H200)
        assert both >= device_decode(WORK, slots, "offload", H200)
        assert both >= device_decode(WORK, slots, "cpu", H200)


@pytest.mark.parametrize(
    ("slots", "seen"), [(0.49, (300, 319, 335)), (1.0, (524, 531))], ids=["half", "resident"]
)
def test_it_is_within_a_quarter_of_what_was_measured(slots: float, seen: tuple[int, ...]) -> None:
    """docs/performance.md, workload B: tokens/s on an H200 with these bandwidths of link and CPU."""
    expected = device_decode(WORK, round(slots * ALL), "fused" if slots == 1 else "hybrid", H200)
    assert all(expected == pytest.approx(each, rel=0.25) for each in seen)


def test_prompts_wait_for_the_link_or_for_arithmetic() -> None:
    assert device_prefill(WORK, 0, 1024, H200) == pytest.approx(1024e9 / (ALL * LINK_NS))
    assert device_prefill(WORK, ALL, 1024, H200) == pytest.approx(NOMINAL_FLOPS / (2 * WORK.weights))


def test_on_the_cpu_everything_is_read_from_memory() -> None:
    rates = Rates(CostModel(0, 0, 1_000, 50_000, 10_000), 50_000_000_000, 100_000, 0)
    token = WORK.dense_bytes / 50 + 24 * (100_000 + 8 * WORK.expert_bytes / 50)
    assert cpu_decode(WORK, rates) == pytest.approx(1e9 / token)
    dense = WORK.weights - 24 * 8 * WORK.expert_weights
    chunk = (
        24 * (256 * WORK.expert_bytes / 50 + 1024 * 8 * 10_000) + 1024 * dense / WORK.expert_weights * 10_000
    )
    fixed = WORK.dense_bytes / 50 + 24 * 100_000
    assert cpu_prefill(WORK, 1024, rates) == pytest.approx(1024e9 / (chunk + fixed))


def test_a_model_without_experts_is_its_dense_weights() -> None:
    dense = replace(
        WORK, moe_layers=0, experts=0, per_token=0, intermediate=0, expert_weights=0, expert_bytes=0
    )
    seconds = WORK.dense_bytes / 4.5e12 + 24 * 22e-6 + 600e-6
    assert device_decode(dense, 0, "fused", H200) == pytest.approx(1 / seconds)
    assert device_prefill(dense, 0, 512, H200) == pytest.approx(NOMINAL_FLOPS / (2 * WORK.weights))
