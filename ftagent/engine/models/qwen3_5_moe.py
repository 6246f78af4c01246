"""Qwen3.5 and Qwen3.6 MoE, text part: gated delta net and gated attention, routed and shared experts."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen3_5MoeTextConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("attention_bias", (False,))
    config.refuse("attn_output_gate", (True,))
    layers = config.positive("num_hidden_layers", 40)
    head_dim = config.positive("head_dim", 256)
    return ModelConfig(
        family="qwen3_5_moe",
        vocab=config.positive("vocab_size", 248320),
        hidden=config.positive("hidden_size", 2048),
        layers=config.hybrid_kinds(layers),
        heads=config.positive("num_attention_heads", 16),
        kv_heads=config.positive("num_key_value_heads", 2),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, share=0.25),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_experts", 256),
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=config.positive("moe_intermediate_size", 512),
        renormalise=True,
        shared_intermediate=config.integer("shared_expert_intermediate_size", 512),
        centred_norm=True,
        gated_attention=True,
        linear=config.linear_shape(),
    )
