"""GLM-4.7-Flash: the layers of DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace

from ftagent.engine.models import deepseek_v3
from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("glm4_moe_lite",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Glm4MoeLiteConfig."""
    config = config.defaults(
        vocab_size=154880,
        hidden_size=2048,
        intermediate_size=10240,
        moe_intermediate_size=1536,
        num_hidden_layers=47,
        num_attention_heads=20,
        n_routed_experts=64,
        routed_scaling_factor=1.8,
        q_lora_rank=768,
        v_head_dim=256,
        qk_nope_head_dim=192,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=4,
        max_position_embeddings=202752,
        rms_norm_eps=1e-5,
        first_k_dense_replace=1,
    )
    return replace(deepseek_v3.parse(config), family="glm4_moe_lite")
