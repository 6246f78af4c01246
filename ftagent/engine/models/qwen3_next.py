"""Qwen3-Next (80B-A3B): the layers of Qwen3.5 MoE, stored with projections grouped by key head."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen3_next",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen3NextConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("attention_bias", (False,))
    layers = config.positive("num_hidden_layers", 48)
    head_dim = config.positive("head_dim", 256)
    return ModelConfig(
        family="qwen3_next",
        vocab=config.positive("vocab_size", 151936),
        hidden=config.positive("hidden_size", 2048),
        layers=config.hybrid_kinds(layers),
        heads=config.positive("num_attention_heads", 16),
        kv_heads=config.positive("num_key_value_heads", 2),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, share=0.25),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_experts", 512),
        experts_per_token=config.positive("num_experts_per_tok", 10),
        expert_intermediate=config.positive("moe_intermediate_size", 512),
        renormalise=config.flag("norm_topk_prob", True),
        shared_intermediate=config.integer("shared_expert_intermediate_size", 512),
        dense_layers=config.dense_layers(layers),
        dense_intermediate=config.positive("intermediate_size", 5632),
        centred_norm=True,
        gated_attention=True,
        linear=config.linear_shape(),
        delta_by_key_head=True,
    )
