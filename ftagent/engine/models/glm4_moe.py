"""GLM-4.5, 4.6 and 4.7 MoE: grouped-query attention with biases, sigmoid routing, a shared expert."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig, SigmoidRouting

MODEL_TYPES = ("glm4_moe",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' Glm4MoeConfig."""
    config.refuse("hidden_act", ("silu",))
    layers = config.positive("num_hidden_layers", 46)
    heads = config.positive("num_attention_heads", 96)
    hidden = config.positive("hidden_size", 4096)
    head_dim = config.positive("head_dim", hidden // heads)
    inner = config.positive("moe_intermediate_size", 1408)
    return ModelConfig(
        family="glm4_moe",
        vocab=config.positive("vocab_size", 151552),
        hidden=hidden,
        layers=config.attention_layers(layers),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", 8),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, share=0.5),
        eps=config.number("rms_norm_eps", 1e-5),
        context=config.positive("max_position_embeddings", 131072),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("n_routed_experts", 128),
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=inner,
        renormalise=config.flag("norm_topk_prob", True),
        shared_intermediate=config.integer("n_shared_experts", 1) * inner,
        dense_layers=config.first_dense(layers, 1),
        dense_intermediate=config.positive("intermediate_size", 10944),
        query_key_norm="head" if config.flag("use_qk_norm", False) else "none",
        qkv_bias=config.flag("attention_bias", False),
        sigmoid=SigmoidRouting(
            groups=config.positive("n_group", 1),
            groups_kept=config.positive("topk_group", 1),
            scale=config.number("routed_scaling_factor", 1.0),
        ),
    )
