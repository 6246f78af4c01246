"""The memory plan: what is promised fits, nothing that fits is wasted, and a refusal names need and have."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.planner import CHUNKS, GIB, MIB, ModelSizes, Plan, plan_cpu, plan_device, prefill_bytes
from ftagent.errors import ConfigError, LoadFailed

# Qwen3-30B-A3B in bfloat16: 48 layers of 128 experts of 3 x 2048 x 768, 98,304 bytes of KV for a token.
QWEN3 = ModelSizes(
    dense=3_080_000_000,
    experts=48 * 128,
    per_token=8,
    slot_bytes=9_437_184,
    bank_bytes=48 * 128 * 9_437_184,
    page_bytes=64 * 98_304,
    page_tokens=64,
    state_bytes=0,
    context=262_144,
    hidden=2048,
    widest=5120,
    intermediate=768,
    vocab=151_936,
    itemsize=2,
)
# Workload of the comparison with other engines: the same with 24 layers.
HALF = replace(
    QWEN3, dense=2_170_000_000, experts=24 * 128, bank_bytes=24 * 128 * 9_437_184, page_bytes=64 * 49_152
)


def device(sizes: ModelSizes, options: EngineOptions, free: int = 140 * GIB, host: int = 120 * GIB) -> Plan:
    return plan_device(sizes, options, free, host, "model")


@pytest.mark.parametrize("sizes", [QWEN3, HALF])
@pytest.mark.parametrize("gib", [4, 6, 8, 12, 16, 24, 32, 48, 80])
def test_every_card_from_four_gib_up_holds_some_experts(sizes: ModelSizes, gib: int) -> None:
    plan = device(sizes, EngineOptions(vram=f"{gib}GiB"))
    assert plan.device_bytes <= gib * GIB
    assert 8 <= plan.slots <= sizes.experts
    assert plan.mode == ("fused" if plan.slots == sizes.experts else "hybrid")
    assert 2048 <= plan.context <= 65536
    assert plan.pages * 64 >= plan.context
    assert plan.staging >= 4
    if plan.slots < sizes.experts:
        assert plan.device_bytes + sizes.slot_bytes > gib * GIB, "nothing is wasted"


def test_a_larger_card_never_gets_a_smaller_plan() -> None:
    plans = [device(QWEN3, EngineOptions(vram=f"{gib}GiB", context=8192)) for gib in range(6, 100)]
    for smaller, larger in pairwise(plans):
        assert larger.chunk_tokens >= smaller.chunk_tokens
        assert larger.pages >= smaller.pages or smaller.slots == QWEN3.experts
    assert [plan.slots for plan in plans] == sorted(plan.slots for plan in plans)


def test_the_default_context_is_64k_where_it_leaves_half_to_experts() -> None:
    assert device(QWEN3, EngineOptions(vram="24GiB")).context == 65536
    assert device(QWEN3, EngineOptions(vram="8GiB")).context < 65536
    assert device(QWEN3, EngineOptions(vram="24GiB", context=131_072)).context == 131_072
    assert device(replace(QWEN3, context=32_768), EngineOptions(vram="24GiB")).context == 32_768


def test_with_all_experts_resident_the_rest_goes_to_more_requests() -> None:
    plan = device(HALF, EngineOptions(max_running=4, context=4096))
    assert plan.slots == HALF.experts
    assert plan.pages == 4 * 64
    assert device(HALF, EngineOptions(max_running=4, context=4096, vram="34GiB")).pages >= 64


def test_random_plans_fit_or_are_refused_with_true_sums() -> None:
    generator = random.Random(7)
    refused = 0
    for _ in range(300):
        sizes = ModelSizes(
            dense=generator.randint(1, 4 * GIB),
            experts=generator.choice((0, 16, 128 * 24)),
            per_token=generator.randint(1, 8),
            slot_bytes=256 * generator.randint(1, 50_000),
            bank_bytes=generator.randint(0, 100 * GIB),
            page_bytes=generator.choice((0, 64 * generator.randint(1, 200_000))),
            page_tokens=64,
            state_bytes=generator.randint(0, 64 * MIB),
            context=generator.randint(256, 300_000),
            hidden=generator.randint(64, 8192),
            widest=generator.randint(64, 20_000),
            intermediate=generator.randint(8, 2048),
            vocab=generator.randint(100, 250_000),
            itemsize=generator.choice((2, 4)),
        )
        cap, free, host = generator.randint(1, 64), generator.randint(1, 64), generator.randint(1, 128)
        try:
            plan = device(sizes, EngineOptions(vram=f"{cap}GiB"), free * GIB, host * GIB)
        except LoadFailed as refusal:
            refused += 1
            need, have = map(float, re.findall(r"([\d.]+) GiB", str(refusal))[:2])
            pools = [float(part) for part in re.findall(r" ([\d.]+)(?=[,)])", str(refusal).split("(", 2)[-1])]
            assert need >= have
            assert sum(pools) == pytest.approx(need, abs=0.01)
            continue
        assert plan.device_bytes <= min(cap, free) * GIB
        assert sizes.bank_bytes <= host * GIB
        assert plan.slots >= min(sizes.per_token, sizes.experts)
        assert plan.context <= sizes.context
    assert 30 < refused < 270


def test_free_memory_less_a_margin_bounds_a_larger_cap() -> None:
    assert device(QWEN3, EngineOptions(vram="24GiB"), free=10 * GIB).device_bytes < 10 * GIB - 256 * MIB + 1


@pytest.mark.parametrize(
    ("options", "host", "words"),
    [
        (
            EngineOptions(vram="3GiB"),
            120,
            r"device memory \(vram\), 3.000 GiB may be used \(dense weights 2.868",
        ),
        (EngineOptions(vram="24GiB", experts="3000"), 120, r"3000 expert slots 26.367.*--experts"),
        (EngineOptions(vram="8GiB", context=200_000), 120, r"KV of 200000 tokens 18.311.*--context"),
        (EngineOptions(), 40, r"GiB of memory, 40.000 GiB may be used \(experts 54.000"),
        (EngineOptions(ram="20GiB"), 120, r"GiB of memory, 20.000 GiB may be used"),
    ],
)
def test_a_refusal_names_need_and_have_of_each_pool(options: EngineOptions, host: int, words: str) -> None:
    with pytest.raises(LoadFailed, match=words) as refusal:
        device(QWEN3, options, host=host * GIB)
    assert "\n" not in str(refusal.value)


def test_options_are_kept_or_refused() -> None:
    assert device(QWEN3, EngineOptions(experts="0.25")).slots == QWEN3.experts // 4
    assert device(QWEN3, EngineOptions(experts="1GiB")).slots == GIB // QWEN3.slot_bytes
    assert device(QWEN3, EngineOptions(chunk_tokens=777)).chunk_tokens == 777
    assert device(QWEN3, EngineOptions(mode="cpu")).slots == 0
    with pytest.raises(ConfigError, match="3 slots are fewer than the 8 experts of one token"):
        device(QWEN3, EngineOptions(experts="3"))
    with pytest.raises(ConfigError, match="mode fused needs slots for all"):
        device(QWEN3, EngineOptions(mode="fused", vram="24GiB"))
    with pytest.raises(ConfigError, match="is more than the 262144"):
        device(QWEN3, EngineOptions(context=300_000))


def test_a_pass_takes_as_many_tokens_as_a_twelfth_of_the_free_memory_allows() -> None:
    for gib in (4, 8, 24, 80):
        plan = device(QWEN3, EngineOptions(vram=f"{gib}GiB", context=2048 if gib < 24 else 65536))
        fixed = {pool.name: pool.bytes for pool in plan.pools}
        taken = ("dense weights", "copies of kept prompts", "decode", "CUDA")
        share = (gib * GIB - sum(fixed[name] for name in taken)) // 12
        assert prefill_bytes(QWEN3, plan.chunk_tokens) <= share
        larger = [tokens for tokens in CHUNKS if tokens > plan.chunk_tokens]
        assert not larger or larger[-1] > plan.context or prefill_bytes(QWEN3, larger[-1]) > share
    assert device(QWEN3, EngineOptions(vram="24GiB")).chunk_tokens == 32768


def test_the_cpu_plan_counts_shared_slots_once() -> None:
    need = HALF.bank_bytes + HALF.dense + 64 * HALF.page_bytes
    options = EngineOptions(context=4096, ram=str(need))
    shared = plan_cpu(replace(HALF, shared=True), options, 0, "model")
    assert (shared.slots, shared.mode) == (HALF.experts, "fused")
    apart = plan_cpu(HALF, replace(options, ram=str(need + 5 * HALF.slot_bytes)), 0, "model")
    assert (apart.slots, apart.mode) == (5, "hybrid")
    with pytest.raises(LoadFailed, match="GiB of memory"):
        plan_cpu(HALF, replace(options, ram=str(need - 1)), 0, "model")


@pytest.mark.parametrize("mode", ["auto", "fused", "offload", "cpu", "hybrid"])
def test_a_model_without_experts_needs_no_slots_in_any_mode(mode: Mode) -> None:
    dense = replace(
        QWEN3, dense=16_381_470_720, experts=0, per_token=0, slot_bytes=0, bank_bytes=0, intermediate=0
    )
    options = EngineOptions(mode=mode, vram="24GiB", max_running=4)
    plan = device(dense, options)
    assert (plan.slots, plan.staging, plan.mode) == (0, 0, "fused")
    assert plan.device_bytes <= 24 * GIB
    assert plan.pages * 64 > plan.context, "what experts do not take holds more requests"
    on_cpu = plan_cpu(dense, replace(options, vram=None), 32 * GIB, "model")
    assert (on_cpu.slots, on_cpu.mode) == (0, "fused")
    assert plan_cpu(dense, options, 32 * GIB, "model").slots == 0


# Qwen3.6-35B-A3B: a state of 66 MB for each request and each place to resume at.
HYBRID = replace(QWEN3, state_bytes=66_000_000, bank_bytes=64 * GIB)


def test_kept_prompts_are_part_of_the_plan() -> None:
    plan = device(HYBRID, EngineOptions(vram="24GiB"), host=128 * GIB)
    names = [pool.name for pool in plan.host]
    assert names == ["experts", "process", "kept prompts"]
    assert plan.host[-1].bytes == plan.kept.total(HYBRID.state_bytes) <= (128 - 64) * GIB // 8
    assert plan.kept.states > 4
    assert plan.copies_bytes >= HYBRID.state_bytes
    assert (
        sum(pool.bytes for pool in plan.pools if pool.name == "copies of kept prompts") == plan.copies_bytes
    )
    less = device(HYBRID, EngineOptions(vram="24GiB", ram="65GiB"), host=128 * GIB)
    assert less.kept.total(HYBRID.state_bytes) <= GIB // 16
    asked = device(HYBRID, EngineOptions(vram="24GiB", anchors="9"), host=128 * GIB)
    assert asked.kept.states == 9


def test_kept_prompts_that_do_not_fit_are_refused_by_name() -> None:
    words = r"84\.500 GiB of memory, 70\.000 GiB may be used .*kept prompts 20\.000\); keep fewer.*--anchors"
    with pytest.raises(LoadFailed, match=words):
        device(HYBRID, EngineOptions(vram="24GiB", anchors="20GiB"), host=70 * GIB)
    need = HALF.bank_bytes + HALF.dense + 64 * HALF.page_bytes
    options = EngineOptions(context=4096, ram=str(need), anchors="1GiB")
    with pytest.raises(LoadFailed, match=r"kept prompts 1\.000"):
        plan_cpu(replace(HALF, shared=True), options, 0, "model")
    plan = plan_cpu(replace(HALF, shared=True), replace(options, ram=str(need + GIB)), 0, "model")
    assert plan.kept.bytes == GIB


def test_the_planner_does_not_load_torch() -> None:
    program = "import sys, ftagent.engine.planner; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
