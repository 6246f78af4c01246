"""Logits of both families against transformers, fp32, for random configurations: whole, in chunks, by decode.

Random weights of standard deviation 0.2 make the hybrid family ill-conditioned: there transformers' own
float32 is further than 1e-4 from its float64. It is held to 1e-4 at 0.1, and at 0.2 to a multiple of
transformers' own error.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle

TOKENS = 200

QWEN3_MOE: list[dict[str, Any]] = [
    {},
    {"norm_topk_prob": True, "num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 72},
    {"num_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 17, "hidden_size": 48},
    {"tie_word_embeddings": True, "norm_topk_prob": True, "num_key_value_heads": 4, "head_dim": 32},
    {"mlp_only_layers": [1], "intermediate_size": 40, "num_experts_per_tok": 8, "norm_topk_prob": True},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rms_norm_eps": 1e-5, "vocab_size": 97},
]
QWEN3_5_MOE: list[dict[str, Any]] = [
    {},
    {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 12, "hidden_size": 56},
    {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_value_head_dim": 24, "num_experts": 6},
    {"tie_word_embeddings": True, "num_key_value_heads": 1, "linear_conv_kernel_dim": 3},
    {"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]},
    {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 9,
        "shared_expert_intermediate_size": 33,
    },
]


def random_sizes(seed: int) -> list[int]:
    """Chunk sizes that add up to less than TOKENS, some of one token, some over the delta rule's 64."""
    generator = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < TOKENS - 100:
        sizes.append(generator.choice((1, 2, 3, generator.randint(4, 63), 64, generator.randint(65, 100))))
    return sizes


def worst(found: dict[int, torch.Tensor], expected: torch.Tensor) -> float:
    return max(float((logits - expected[position]).abs().max()) for position, logits in found.items())


def runs(directory: Path, tokens: list[int], seed: int) -> list[dict[int, torch.Tensor]]:
    """The prompt whole, in random chunks with decode behind them, and all by decode."""
    runner = load_runner(directory, EngineOptions())
    return [logits_by_chunks(runner, tokens, sizes) for sizes in ([TOKENS], random_sizes(seed), [])]


@pytest.mark.parametrize("case", range(len(QWEN3_MOE)))
def test_qwen3_moe_equals_transformers(case: int, tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, seed=case, changes=QWEN3_MOE[case])
    tokens = oracle.tokens(TOKENS, case)
    expected = oracle.logits(tokens)
    assert float(expected.std()) > 0.5, "the oracle's logits must be able to show a difference"
    for found in runs(tmp_path, tokens, case):
        assert worst(found, expected) <= 1e-4


@pytest.mark.parametrize("case", range(len(QWEN3_5_MOE)))
def test_qwen3_5_moe_equals_transformers(case: int, tmp_path: Path) -> None:
    changes = {"initializer_range": 0.1, **QWEN3_5_MOE[case]}
    oracle = Oracle("qwen3_5_moe", tmp_path, seed=case, changes=changes)
    tokens = oracle.tokens(TOKENS, case)
    expected = oracle.logits(tokens)
    assert float(expected.std()) > 0.2, "the oracle's logits must be able to show a difference"
    for found in runs(tmp_path, tokens, case):
        assert worst(found, expected) <= 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_qwen3_5_moe_at_large_weights_is_as_near_to_float64_as_transformers(
    seed: int, tmp_path: Path
) -> None:
    oracle = Oracle("qwen3_5_moe", tmp_path, seed=seed, changes={})
    tokens = oracle.tokens(TOKENS, seed)
    expected = oracle.logits(tokens)
    oracle.model.double()
    exact = oracle.logits(tokens)
    theirs = (expected - exact).abs().amax(dim=-1)
    whole, chunks, decode = (
        torch.stack([(logits - exact[position]).abs().max() for position, logits in found.items()])
        for found in runs(tmp_path, tokens, seed)
    )
    for ours in (whole, chunks, decode):
        assert float(ours.max()) <= 4 * float(theirs.max())
    assert float(decode.median()) <= 2 * float(theirs.median())
