"""gpt-oss: attention within a window and in full by turns, with sinks and biases; clamped, biased experts."""

from __future__ import annotations

from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.models.config import ConfigFile, LayerKind, ModelConfig, MoeNames

MODEL_TYPES = ("gpt_oss",)
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' GptOssConfig."""
    config = _with_defaults(config)
    config.refuse("hidden_act", ("silu",))
    layers = config.positive("num_hidden_layers", 36)
    turns: tuple[LayerKind, ...] = ("sliding_attention", "full_attention")
    head_dim = config.positive("head_dim", 64)
    biased = config.flag("attention_bias", True)
    return ModelConfig(
        family="gpt_oss",
        vocab=config.positive("vocab_size", 201088),
        hidden=config.positive("hidden_size", 2880),
        layers=config.layer_kinds(tuple(turns[layer % 2] for layer in range(layers))),
        window=config.positive("sliding_window", 128),
        heads=config.positive("num_attention_heads", 64),
        kv_heads=config.positive("num_key_value_heads", 8),
        head_dim=head_dim,
        rotary=config.rotary(head_dim, theta=150000.0),
        eps=config.number("rms_norm_eps", 1e-5),
        context=config.positive("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings", False),
        experts=config.positive("num_local_experts", 128),
        experts_per_token=config.positive("num_experts_per_tok", 4),
        expert_intermediate=config.positive("intermediate_size", 2880),
        renormalise=True,
        query_key_norm="none",
        qkv_bias=biased,
        out_bias=biased,
        sinks=True,
        moe_names=MoeNames(router="router", interleaved=True),
        biased_moe=True,
        swiglu=Swiglu(config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0), offset=1.0),
    )


def _with_defaults(config: ConfigFile) -> ConfigFile:
    """What scales the rotary embedding, where it is left out."""
    values = {"max_position_embeddings": 131072, **config.values}
    if values.get("rope_parameters") is None and values.get("rope_scaling") is None:
        values["rope_scaling"] = ROPE
    return ConfigFile(config.path, values)
