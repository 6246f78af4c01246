"""Qwen3 MoE (Qwen3-30B-A3B and its like): grouped-query attention with per-head norms, routed experts."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen3_moe",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen3MoeConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("attention_bias", (False,))
    config.refuse("use_sliding_window", (False,))
    layers = config.positive("num_hidden_layers", 24)
    heads = config.positive("num_attention_heads", 32)
    hidden = config.positive("hidden_size", 2048)
    head_dim = config.positive("head_dim", hidden // heads)
    experts_key = "num_local_experts" if "num_local_experts" in config.values else "num_experts"
    return ModelConfig(
        family="qwen3_moe",
        vocab=config.positive("vocab_size", 151936),
        hidden=hidden,
        layers=config.attention_layers(layers),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", 4),
        head_dim=head_dim,
        rotary=config.rotary(head_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive(experts_key, 128),
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=config.positive("moe_intermediate_size", 768),
        renormalise=config.flag("norm_topk_prob", False),
        dense_layers=config.dense_layers(layers),
        dense_intermediate=config.positive("intermediate_size", 6144),
    )
