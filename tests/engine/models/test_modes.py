"""Where an expert is computed changes no bit: every mode, with few slots and evictions, equals all experts
resident.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions, Mode
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle

SIZES = [50, 7, 1, 30]
CASES: list[tuple[Mode, str | None]] = [
    ("offload", "1"),
    ("offload", "5"),
    ("offload", "0.5"),
    ("hybrid", "1"),
    ("hybrid", "13"),
    ("cpu", None),
    ("cpu", "7"),
    ("auto", "3"),
]


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_modes_give_equal_bits(family: str, stored: torch.dtype, tmp_path: Path) -> None:
    """Stored as float32, slots are views of the bank; stored as bfloat16, they are copies."""
    oracle = Oracle(family, tmp_path, 1, {})
    file = tmp_path / "model.safetensors"
    save_file({name: tensor.to(stored) for name, tensor in load_file(file).items()}, file)
    tokens = oracle.tokens(110)
    resident = load_runner(tmp_path, EngineOptions(mode="fused"))
    expected = logits_by_chunks(resident, tokens, SIZES)
    assert resident.experts is not None
    assert resident.experts.stats().misses == 0
    for mode, experts in CASES:
        runner = load_runner(tmp_path, EngineOptions(mode=mode, experts=experts))
        found = logits_by_chunks(runner, tokens, SIZES)
        assert all(torch.equal(found[position], expected[position]) for position in expected), (mode, experts)
        assert runner.experts is not None
        runner.experts.check_integrity()
        stats = runner.experts.stats()
        assert stats.misses > 0
        assert stats.mode == ("hybrid" if mode == "auto" else mode)
        assert (stats.fetched or 0) + (stats.cpu_computed or 0) == stats.misses
        if mode == "offload":
            assert stats.evictions > 0
            assert (stats.cpu_computed, stats.bytes_cpu, stats.q) == (0, 0, 1.0)
        if mode == "cpu":
            assert stats.evictions == 0
            assert (stats.fetched, stats.bytes_link, stats.q) == (0, 0, 0.0)
            assert stats.bytes_cpu


def test_look_ups_are_counted_once_for_each_expert_layer_and_step(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 2, {})
    runner = load_runner(tmp_path, EngineOptions(mode="offload", experts="6"))
    logits_by_chunks(runner, oracle.tokens(10), [])
    assert runner.experts is not None
    stats = runner.experts.stats()
    layers, per_token = 4, 3
    assert stats.hits + stats.misses == 10 * layers * per_token
    assert len(stats.layer_hit_rate) == layers
