"""Llama 2 to 3.3, dense: grouped-query attention and plain MLPs."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("llama",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' LlamaConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("mlp_bias", (False,))
    layers = config.positive("num_hidden_layers", 32)
    heads = config.positive("num_attention_heads", 32)
    hidden = config.positive("hidden_size", 4096)
    head_dim = config.positive("head_dim", hidden // heads)
    biased = config.flag("attention_bias", False)
    return ModelConfig(
        family="llama",
        vocab=config.positive("vocab_size", 32000),
        hidden=hidden,
        layers=config.attention_layers(layers),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", heads),
        head_dim=head_dim,
        rotary=config.rotary(head_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 2048),
        tied=config.flag("tie_word_embeddings", False),
        dense_layers=frozenset(range(layers)),
        dense_intermediate=config.positive("intermediate_size", 11008),
        query_key_norm="none",
        qkv_bias=biased,
        out_bias=biased,
    )
