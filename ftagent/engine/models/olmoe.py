"""OLMoE (1B-7B): attention with norms of whole projections, routed experts in every layer."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("olmoe",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' OlmoeConfig."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("clip_qkv", ())
    layers = config.positive("num_hidden_layers", 16)
    heads = config.positive("num_attention_heads", 16)
    hidden = config.positive("hidden_size", 2048)
    head_dim = config.positive("head_dim", hidden // heads)
    biased = config.flag("attention_bias", False)
    return ModelConfig(
        family="olmoe",
        vocab=config.positive("vocab_size", 50304),
        hidden=hidden,
        layers=config.attention_layers(layers),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", heads),
        head_dim=head_dim,
        rotary=config.rotary(head_dim),
        eps=config.number("rms_norm_eps", 1e-5),
        context=config.positive("max_position_embeddings", 4096),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_experts", 64),
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=config.positive("intermediate_size", 2048),
        renormalise=config.flag("norm_topk_prob", False),
        query_key_norm="projection",
        qkv_bias=biased,
        out_bias=biased,
    )
