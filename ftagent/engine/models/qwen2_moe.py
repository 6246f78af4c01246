"""Qwen1.5 and Qwen2 MoE (A2.7B, 57B-A14B): Qwen2's attention, routed experts and a gated shared one."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen2_moe",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen2MoeConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("use_sliding_window", (False,))
    layers = config.positive("num_hidden_layers", 24)
    heads = config.positive("num_attention_heads", 16)
    hidden = config.positive("hidden_size", 2048)
    head_dim = config.positive("head_dim", hidden // heads)
    return ModelConfig(
        family="qwen2_moe",
        vocab=config.positive("vocab_size", 151936),
        hidden=hidden,
        layers=config.attention_layers(layers),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", 16),
        head_dim=head_dim,
        rotary=config.rotary(head_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_experts", 60),
        experts_per_token=config.positive("num_experts_per_tok", 4),
        expert_intermediate=config.positive("moe_intermediate_size", 1408),
        renormalise=config.flag("norm_topk_prob", False),
        shared_intermediate=config.integer("shared_expert_intermediate_size", 5632),
        dense_layers=config.dense_layers(layers),
        dense_intermediate=config.positive("intermediate_size", 5632),
        query_key_norm="none",
        qkv_bias=config.flag("qkv_bias", True),
    )
