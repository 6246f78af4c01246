"""Mixtral (8x7B, 8x22B): grouped-query attention, routed experts in every layer."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig, MoeNames

MODEL_TYPES = ("mixtral",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' MixtralConfig."""
    config.refuse("hidden_act", ("silu",))
    layers = config.positive("num_hidden_layers", 32)
    heads = config.positive("num_attention_heads", 32)
    hidden = config.positive("hidden_size", 4096)
    head_dim = config.positive("head_dim", hidden // heads)
    window = config.integer("sliding_window", 0)
    return ModelConfig(
        family="mixtral",
        vocab=config.positive("vocab_size", 32000),
        hidden=hidden,
        layers=config.window_layers(layers, window),
        window=window,
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", 8),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, theta=1e6),
        eps=config.number("rms_norm_eps", 1e-5),
        context=config.positive("max_position_embeddings", 131072),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_local_experts", 8),
        experts_per_token=config.positive("num_experts_per_tok", 2),
        expert_intermediate=config.positive("intermediate_size", 14336),
        renormalise=True,
        query_key_norm="none",
        moe_names=MoeNames("block_sparse_moe.", ("w1", "w3", "w2")),
    )
