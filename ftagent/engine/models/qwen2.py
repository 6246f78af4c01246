"""Qwen2 and Qwen2.5, dense: grouped-query attention with biases of queries, keys and values, plain MLPs."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("qwen2",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Qwen2Config."""
    config.refuse("hidden_act", ("silu",))
    layers = config.positive("num_hidden_layers", 32)
    heads = config.positive("num_attention_heads", 32)
    hidden = config.positive("hidden_size", 4096)
    head_dim = config.positive("head_dim", hidden // heads)
    kinds, window = config.later_windows(layers)
    return ModelConfig(
        family="qwen2",
        vocab=config.positive("vocab_size", 151936),
        hidden=hidden,
        layers=kinds,
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", 32),
        head_dim=head_dim,
        rotary=config.rotary(head_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 32768),
        tied=config.flag("tie_word_embeddings", False),
        dense_layers=frozenset(range(layers)),
        dense_intermediate=config.positive("intermediate_size", 22016),
        window=window,
        query_key_norm="none",
        qkv_bias=True,
    )
