"""MiniMax-M2: grouped-query attention with norms of whole projections, sigmoid routing, no shared expert."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig, MoeNames, SigmoidRouting

MODEL_TYPES = ("minimax_m2",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' MiniMaxM2Config."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("scoring_func", ("sigmoid",))
    config.refuse("use_qk_norm", (True,))
    config.refuse("qk_norm_type", ("per_layer",))
    config.refuse("use_routing_bias", (True,))
    config.refuse("shared_intermediate_size", (0,))
    layers = config.positive("num_hidden_layers", 62)
    head_dim = config.positive("head_dim", 128)
    turned = config.positive("rotary_dim", head_dim)  # the releases say so; newer files give a factor
    return ModelConfig(
        family="minimax_m2",
        vocab=config.positive("vocab_size", 200064),
        hidden=config.positive("hidden_size", 3072),
        layers=config.attention_layers(layers),
        heads=config.positive("num_attention_heads", 48),
        kv_heads=config.positive("num_key_value_heads", 8),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, theta=5e6, share=turned / head_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 196608),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_local_experts", 256),
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=config.positive("intermediate_size", 1536),
        renormalise=True,
        query_key_norm="projection",
        sigmoid=SigmoidRouting(bias="e_score_correction_bias"),
        moe_names=MoeNames("block_sparse_moe.", ("w1", "w3", "w2")),
    )
