"""The released configurations, by their public numbers: family, layers and parameters that they map to.

Parameters are held to transformers' own count of its classes on the meta device, and to the figure that the
release is known by where it has one. No weights are needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from ftagent.engine.models.decoder import kv_shape
from ftagent.engine.models.registry import model_config
from ftagent.engine.models.sizes import parameters

BYTES = torch.bfloat16


class Release(NamedTuple):
    config: str  # transformers' configuration, and below it its model
    model: str
    billions: float  # as published, and the digit to which it is rounded
    digit: float
    kv_bytes: int  # that a token leaves in the pages, in BF16
    values: dict[str, Any]


RELEASES = {
    "Qwen3-0.6B": Release(
        "Qwen3Config", "Qwen3ForCausalLM", 0.6, 0.1, 28 * 2 * 8 * 128 * 2,
        {
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": True,
        },
    ),
    "Qwen3-32B": Release(
        "Qwen3Config", "Qwen3ForCausalLM", 32.8, 0.1, 64 * 2 * 8 * 128 * 2,
        {
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 25600,
            "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 40960, "rope_theta": 1e6,
        },
    ),
    "Llama-3.1-8B": Release(
        "LlamaConfig", "LlamaForCausalLM", 8.03, 0.01, 32 * 2 * 8 * 128 * 2,
        {
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        },
    ),
    "Llama-3.3-70B": Release(
        "LlamaConfig", "LlamaForCausalLM", 70.6, 0.1, 80 * 2 * 8 * 128 * 2,
        {
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
            "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 131072, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
        },
    ),
    "Mistral-7B-v0.3": Release(
        "MistralConfig", "MistralForCausalLM", 7.25, 0.01, 32 * 2 * 8 * 128 * 2,
        {
            "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": None,
        },
    ),
    "Qwen2.5-7B": Release(
        "Qwen2Config", "Qwen2ForCausalLM", 7.61, 0.01, 28 * 2 * 4 * 128 * 2,
        {
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "use_sliding_window": False,
        },
    ),
    "Qwen1.5-MoE-A2.7B": Release(
        "Qwen2MoeConfig", "Qwen2MoeForCausalLM", 14.3, 0.1, 24 * 2 * 16 * 128 * 2,
        {
            "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
            "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632, "max_position_embeddings": 8192, "rope_theta": 1e6,
        },
    ),
    "OLMoE-1B-7B": Release(
        "OlmoeConfig", "OlmoeForCausalLM", 6.92, 0.01, 16 * 2 * 16 * 128 * 2,
        {
            "model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 1024,
            "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
            "num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 4096, "clip_qkv": None,
        },
    ),
    "Mixtral-8x7B": Release(
        "MixtralConfig", "MixtralForCausalLM", 46.7, 0.1, 32 * 2 * 8 * 128 * 2,
        {
            "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 32768,
            "rope_theta": 1e6, "sliding_window": None,
        },
    ),
    "Mixtral-8x22B": Release(
        "MixtralConfig", "MixtralForCausalLM", 141, 1, 56 * 2 * 8 * 128 * 2,
        {
            "model_type": "mixtral", "vocab_size": 32768, "hidden_size": 6144, "intermediate_size": 16384,
            "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8,
            "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 65536,
            "rope_theta": 1e6, "sliding_window": None,
        },
    ),
    "Qwen3-30B-A3B": Release(
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM", 30.5, 0.1, 96 * 1024,
        {
            "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144,
            "norm_topk_prob": True, "rope_theta": 1e6, "max_position_embeddings": 40960,
        },
    ),
    "Qwen3-Next-80B-A3B": Release(
        "Qwen3NextConfig", "Qwen3NextForCausalLM", 80, 1, 12 * 2 * 2 * 256 * 2,
        {
            "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512,
            "num_experts_per_tok": 10, "moe_intermediate_size": 512, "intermediate_size": 5120,
            "shared_expert_intermediate_size": 512, "norm_topk_prob": True, "rope_theta": 1e7,
            "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144,
        },
    ),
    "Qwen3.6-35B-A3B": Release(
        "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", 35, 1, 20 * 1024,
        {
            "model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048,
            "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"},
        },
    ),
    "Qwen3.5-9B": Release(
        "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", 9, 1, 8 * 2 * 4 * 256 * 2,
        {
            "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096,
            "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262144,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"},
        },
    ),
    "DeepSeek-V3": Release(
        "DeepseekV3Config", "DeepseekV3ForCausalLM", 671, 1, 61 * (512 + 64) * 2,
        {
            "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
            "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": True,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "rope_theta": 10000,
            "max_position_embeddings": 163840, "num_nextn_predict_layers": 1,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096, "type": "yarn",
            },
        },
    ),
    "GLM-5": Release(
        "GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", 744, 1, 78 * (512 + 64 + 128) * 2,
        {
            "model_type": "glm_moe_dsa", "vocab_size": 154880, "hidden_size": 6144,
            "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78,
            "num_attention_heads": 64, "num_key_value_heads": 64, "n_shared_experts": 1,
            "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
            "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
            "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "norm_topk_prob": True,
            "max_position_embeddings": 202752, "rms_norm_eps": 1e-5,
        },
    ),
    "GLM-4.5-Air": Release(
        "Glm4MoeConfig", "Glm4MoeForCausalLM", 106, 2, 46 * 2 * 8 * 128 * 2,
        {
            "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 4096,
            "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46,
            "num_attention_heads": 96, "head_dim": 128, "num_key_value_heads": 8, "attention_bias":
            True, "use_qk_norm": False, "n_routed_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 1.0, "norm_topk_prob": True, "rope_theta": 1000000,
            "partial_rotary_factor": 0.5, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        },
    ),
    "GLM-4.5": Release(
        "Glm4MoeConfig", "Glm4MoeForCausalLM", 355, 5, 92 * 2 * 8 * 128 * 2,
        {
            "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 5120,
            "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 92,
            "num_attention_heads": 96, "head_dim": 128, "num_key_value_heads": 8, "attention_bias":
            True, "use_qk_norm": True, "n_routed_experts": 160, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_theta": 1000000,
            "partial_rotary_factor": 0.5, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        },
    ),
    "MiniMax-M2": Release(
        "MiniMaxM2Config", "MiniMaxM2ForCausalLM", 230, 10, 62 * 2 * 8 * 128 * 2,
        {
            "model_type": "minimax_m2", "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
            "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
            "num_local_experts": 256, "num_experts_per_tok": 8, "rotary_dim": 64, "rope_theta": 5000000,
            "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
            "qk_norm_type": "per_layer", "shared_intermediate_size": 0, "max_position_embeddings": 196608,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_maps_to_its_size(name: str, tmp_path: Path) -> None:
    release = RELEASES[name]
    (tmp_path / "config.json").write_text(json.dumps(release.values))
    config = model_config(tmp_path)
    assert config.family == release.values["model_type"].removesuffix("_text")
    with torch.device("meta"):
        described = getattr(transformers, release.config)(**release.values)
        model = getattr(transformers, release.model)(described)
    counted = sum(parameter.numel() for parameter in model.parameters())
    ours = parameters(config)
    assert ours == pytest.approx(counted, rel=0.005)
    assert ours / 1e9 == pytest.approx(release.billions, rel=0.005, abs=release.digit / 2)
    token = kv_shape(config).page_bytes(BYTES, page_size=1)
    assert token == release.kv_bytes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen3-30B-A3B", 3.3),
        ("Mixtral-8x7B", 12.9),
        ("Mixtral-8x22B", 39),
        ("Qwen1.5-MoE-A2.7B", 2.7),
        ("OLMoE-1B-7B", 1.3),
        ("DeepSeek-V3", 37),
        ("GLM-5", 40),
    ],
)
def test_a_token_uses_as_many_as_published(name: str, billions: float, tmp_path: Path) -> None:
    """Rounded figures of the releases, some with and some without the embedding table."""
    (tmp_path / "config.json").write_text(json.dumps(RELEASES[name].values))
    config = model_config(tmp_path)
    active = parameters(config, active=True)
    assert active <= billions * 1.03e9
    assert active + config.vocab * config.hidden >= billions * 0.98e9
