"""Families that have no decode chain: prompts and replies by the layers of prefill, against transformers.

As in test_twin, on CPU tensors by Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.options import Mode
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.test_gpt_oss import PACKABLE, pack
from tests.engine.models.tiny import Oracle
from tests.engine.test_reuse import greedy
from tests.engine.test_scheduler import Bench, reply
from tests.support.device_twin import load_on, twin_options

TOKENS = 26
SIZES = [11, 7, 4]  # longer together than the window, and the rest token by token
# Chains read rings of whole pages: they cannot do a window of 8.
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.1, "sliding_window": 8}
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.1}
Case = tuple[str, Mode, str | None, dict[str, Any]]
CASES: list[Case] = [
    ("gpt_oss", "fused", None, SMALL),
    ("gpt_oss", "hybrid", "4", {**SMALL, "swiglu_limit": 0.7}),
    ("minimax_m2", "offload", "5", {**LAYERS, "rotary_dim": 8}),
    ("deepseek_v3", "hybrid", "4", LAYERS),
]
SLOW: list[Case] = [
    ("gpt_oss", "offload", "5", {**SMALL, "sliding_window": 1}),
    ("gpt_oss", "cpu", "1", {**SMALL, "sliding_window": 100, "attention_bias": False}),
    ("olmoe", "hybrid", "4", LAYERS),
    ("glm4_moe", "hybrid", "4", {**LAYERS, "attention_bias": True}),
    ("glm4_moe_lite", "fused", None, LAYERS),
    ("deepseek_v32", "hybrid", "4", {**LAYERS, "index_topk": 9}),
    ("glm_moe_dsa", "fused", None, {**LAYERS, "index_topk": 9, "indexer_types": ["full", "shared"]}),
]


@pytest.mark.parametrize(
    ("family", "mode", "experts", "changes"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_logits_are_the_oracles(
    family: str,
    mode: Mode,
    experts: str | None,
    changes: dict[str, Any],
    tmp_path: Path,
    device: torch.device,
) -> None:
    oracle = Oracle(family, tmp_path, 3, changes)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options(mode, experts), torch.float32)
    try:
        for position, row in logits_by_chunks(runner, tokens, SIZES).items():
            assert float((row.cpu() - expected[position]).abs().max()) < 2e-4
        if runner.experts is not None:
            runner.experts.check_integrity()
            reason = runner.experts.stats().mode_reason
            assert reason is not None
            assert "decode steps take the way of prompts" in reason
    finally:
        runner.close()


def test_mxfp4_is_widened_into_the_banks(tmp_path: Path, device: torch.device) -> None:
    oracle = Oracle("gpt_oss", tmp_path, 3, {**PACKABLE, "sliding_window": 8})
    pack(oracle, 3)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options("hybrid", "3"), torch.float32)
    try:
        for position, row in logits_by_chunks(runner, tokens, SIZES).items():
            assert float((row.cpu() - expected[position]).abs().max()) < 2e-4
    finally:
        runner.close()


def test_bfloat16_stays_near_float32(tmp_path: Path, device: torch.device) -> None:
    """Every expert is asked for: otherwise one that is near the border of the choice would decide."""
    changes = {**SMALL, "initializer_range": 0.05, "num_local_experts": 4, "num_experts_per_tok": 4}
    oracle = Oracle("gpt_oss", tmp_path, 5, changes)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options("offload", "6"), torch.bfloat16)
    try:
        for position, row in logits_by_chunks(runner, tokens, SIZES).items():
            error = (row.cpu() - expected[position]).norm() / expected[position].norm()
            assert float(error) < 0.05
    finally:
        runner.close()


def test_prompts_resume_with_their_windows(tmp_path: Path, device: torch.device) -> None:
    """Each turn begins as the one before did: warm replies are those of transformers, which keeps nothing."""
    oracle = Oracle("gpt_oss", tmp_path, 4, SMALL)
    runner = load_on(device, tmp_path, twin_options("hybrid", "6"), torch.float32)
    try:
        bench = Bench(runner, 8, chunk_tokens=16)
        history = oracle.tokens(30)
        cached = 0
        for turn in range(3):
            job = bench.submit(history, 3, (12, 20))
            bench.drain()
            assert reply(job) == greedy(oracle, history, 3)
            cached += job.cached
            history = [*job.tokens[: 22 + 2 * turn], *oracle.tokens(9, seed=turn)]
        assert cached >= 40
    finally:
        runner.close()
