"""DeepSeek-V3, R1, V3.1: latent attention, sigmoid routing in groups, a shared expert, dense first layers."""

from __future__ import annotations

from ftagent.engine.models.config import (
    ConfigFile,
    LatentShape,
    LayerKind,
    ModelConfig,
    SigmoidRouting,
    yarn_scale,
)

MODEL_TYPES = ("deepseek_v3",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' DeepseekV3Config."""
    config.refuse("hidden_act", ("silu",))
    config.refuse("attention_bias", (False,))
    config.refuse("scoring_func", ("sigmoid",))
    config.refuse("topk_method", ("noaux_tc",))
    config.refuse("moe_layer_freq", (1,))
    layers = config.positive("num_hidden_layers", 61)
    kind: LayerKind = "latent_attention"
    heads = config.positive("num_attention_heads", 128)
    shape = LatentShape(
        query_rank=config.optional("q_lora_rank", 1536),
        rank=config.positive("kv_lora_rank", 512),
        plain_dim=config.positive("qk_nope_head_dim", 128),
        rotary_dim=config.positive("qk_rope_head_dim", 64),
        value_dim=config.positive("v_head_dim", 128),
        interleaved=config.flag("rope_interleave", True),
    )
    experts = config.positive("n_routed_experts", 256)
    inner = config.positive("moe_intermediate_size", 2048)
    return ModelConfig(
        family="deepseek_v3",
        vocab=config.positive("vocab_size", 129280),
        hidden=config.positive("hidden_size", 7168),
        layers=(kind,) * layers,
        heads=heads,
        kv_heads=heads,
        head_dim=shape.head_dim,
        rotary=config.rotary(shape.rotary_dim),
        eps=config.number("rms_norm_eps", 1e-6),
        context=config.positive("max_position_embeddings", 4096),
        tied=config.flag("tie_word_embeddings", False),
        experts=experts,
        experts_per_token=config.positive("num_experts_per_tok", 8),
        expert_intermediate=inner,
        renormalise=config.flag("norm_topk_prob", True),
        shared_intermediate=config.integer("n_shared_experts", 1) * inner,
        dense_layers=config.first_dense(layers, 3),
        dense_intermediate=config.positive("intermediate_size", 18432),
        latent=shape,
        score_scale=_score_scale(config),
        sigmoid=SigmoidRouting(
            groups=config.positive("n_group", 8),
            groups_kept=config.positive("topk_group", 4),
            scale=config.number("routed_scaling_factor", 2.5),
        ),
    )


def _score_scale(config: ConfigFile) -> float:
    """With YaRN, scores grow by the square of its scale, to the weight that the config gives it."""
    scaling = config.rotary(2).scaling
    weight = float(config.rope().get("mscale_all_dim") or 0)
    return yarn_scale(scaling.factor, weight) ** 2 if scaling and weight else 1.0
