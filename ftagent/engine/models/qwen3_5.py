"""Qwen3.5 and Qwen3.6 dense, text part: gated delta net and gated attention, plain MLPs."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen3_5TextConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("attention_bias", (False,))
    config.refuse("attn_output_gate", (True,))
    layers = config.positive("num_hidden_layers", 32)
    head_dim = config.positive("head_dim", 256)
    return ModelConfig(
        family="qwen3_5",
        vocab=config.positive("vocab_size", 248320),
        hidden=config.positive("hidden_size", 4096),
        layers=config.hybrid_kinds(layers),
        heads=config.positive("num_attention_heads", 16),
        kv_heads=config.positive("num_key_value_heads", 4),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, share=0.25),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        dense_layers=frozenset(range(layers)),
        dense_intermediate=config.positive("intermediate_size", 12288),
        centred_norm=True,
        gated_attention=True,
        linear=config.linear_shape(),
    )
