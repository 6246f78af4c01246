"""Logits of further families against transformers, fp32, for random configurations of odd sizes: whole, in
chunks, by decode. The hybrid one is ill-conditioned at large weights; `test_logits` says how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.test_logits import TOKENS, runs, worst
from tests.engine.models.tiny import FAMILIES, Oracle

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, list[dict[str, Any]]] = {
    "qwen3": [
        {},
        {"use_sliding_window": True, "sliding_window": 50, "max_window_layers": 2},
        {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 72, "head_dim": 12},
        {"tie_word_embeddings": True, "intermediate_size": 17, "hidden_size": 48, "vocab_size": 97},
        {"attention_bias": True, "rope_parameters": YARN, "rms_norm_eps": 1e-5},
    ],
    "llama": [
        {},
        {"rope_parameters": LLAMA3, "num_key_value_heads": 4, "hidden_size": 72, "intermediate_size": 33},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, "head_dim": 20},
        {"attention_bias": True, "tie_word_embeddings": True, "num_hidden_layers": 3, "vocab_size": 101},
    ],
    "mixtral": [
        {},
        {"sliding_window": 32},
        {"num_local_experts": 5, "num_experts_per_tok": 1, "intermediate_size": 17, "hidden_size": 48},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": True, "vocab_size": 97},
    ],
    "qwen3_next": [
        {},
        {
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 12,
            "hidden_size": 56,
        },
        {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "norm_topk_prob": False, "num_experts": 6},
        {
            "mlp_only_layers": [1],
            "intermediate_size": 40,
            "num_key_value_heads": 1,
            "linear_conv_kernel_dim": 3,
        },
    ],
    "qwen3_5": [
        {},
        {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "intermediate_size": 33, "vocab_size": 97},
        {"tie_word_embeddings": True, "num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 56},
    ],
    "glm4_moe": [
        {},
        {"attention_bias": True, "use_qk_norm": False, "num_experts_per_tok": 1, "moe_intermediate_size": 17},
        {"n_group": 2, "n_routed_experts": 6, "first_k_dense_replace": 2, "n_shared_experts": 2},
        {"norm_topk_prob": False, "routed_scaling_factor": 1.7, "num_key_value_heads": 1, "hidden_size": 56},
    ],
    "minimax_m2": [
        {},
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "num_local_experts": 5,
            "num_experts_per_tok": 1,
        },
        {"rotary_dim": 8, "intermediate_size": 17, "hidden_size": 56, "tie_word_embeddings": True},
    ],
    "deepseek_v3": [
        {},
        {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "v_head_dim": 32, "kv_lora_rank": 9},
        {
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
        },
        {
            "rope_interleave": False,
            "norm_topk_prob": False,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
        },
        {"first_k_dense_replace": 0, "qk_nope_head_dim": 5, "qk_rope_head_dim": 2, "hidden_size": 56},
    ],
    "deepseek_v32": [
        {},
        {"index_topk": 1, "index_head_dim": 8, "num_attention_heads": 3, "num_key_value_heads": 3},
        {"index_topk": 70, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
        {"index_topk": 500, "first_k_dense_replace": 3, "hidden_size": 56},
    ],
    "glm_moe_dsa": [
        {},
        {"index_topk": 64, "v_head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2},
        {"index_topk": 7, "kv_lora_rank": 9, "norm_topk_prob": False, "first_k_dense_replace": 0},
        {"indexer_types": ["full", "shared", "shared", "full"], "index_topk": 30},
    ],
    "glm4_moe_lite": [
        {},
        {"q_lora_rank": None, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "v_head_dim": 32},
        {
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "hidden_size": 56,
            "rope_interleave": False,
        },
    ],
    "mistral": [
        {},
        {"head_dim": 24, "rope_parameters": YARN, "num_key_value_heads": 1},
        {"sliding_window": 16},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": True, "hidden_size": 72},
    ],
    "olmoe": [
        {},
        {"num_experts": 5, "num_experts_per_tok": 1, "hidden_size": 48, "head_dim": 12},
        {
            "norm_topk_prob": True,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "qwen2": [
        {},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 17},
        {"rope_parameters": YARN, "tie_word_embeddings": True, "vocab_size": 97},
    ],
    "qwen2_moe": [
        {},
        {"qkv_bias": False, "mlp_only_layers": [1], "intermediate_size": 40, "num_experts": 5},
        {"norm_topk_prob": True, "shared_expert_intermediate_size": 33, "decoder_sparse_step": 2},
    ],
}
SMALLER = {"qwen3_next": {"initializer_range": 0.1}, "qwen3_5": {"initializer_range": 0.1}, "deepseek_v3": {}}


@pytest.mark.parametrize("family", CASES)
def test_bfloat16_stays_near_float32(family: str, tmp_path: Path) -> None:
    """All experts are used, so that rounding cannot choose others."""
    changes: dict[str, Any] = {"initializer_range": 0.05, "index_topk": 500}
    every = {"num_experts_per_tok": 8, "n_group": 1, "topk_group": 1}
    known = FAMILIES[family][2]
    changes |= {key: value for key, value in every.items() if key in known}
    oracle = Oracle(family, tmp_path, 0, changes)
    tokens = oracle.tokens(80)
    expected = oracle.logits(tokens)
    runner = load_runner(tmp_path, EngineOptions(), dtype=torch.bfloat16)
    for position, logits in logits_by_chunks(runner, tokens, [40, 33]).items():
        error = (logits - expected[position]).norm() / expected[position].norm()
        assert float(error) < 0.05, position


@pytest.mark.parametrize(
    ("family", "case"), [(family, case) for family, cases in CASES.items() for case in range(len(cases))]
)
def test_logits_equal_transformers(family: str, case: int, tmp_path: Path) -> None:
    changes = {**SMALLER.get(family, {}), **CASES[family][case]}
    oracle = Oracle(family, tmp_path, seed=case, changes=changes)
    tokens = oracle.tokens(TOKENS, case)
    expected = oracle.logits(tokens)
    assert float(expected.std()) > 0.2, "the oracle's logits must be able to show a difference"
    for found in runs(tmp_path, tokens, case):
        assert worst(found, expected) <= 1e-4
