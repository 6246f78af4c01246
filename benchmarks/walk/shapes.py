"""The model shapes that checkpoints are made in, and their config.json. Knows no values of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Family = Literal["qwen3_moe", "qwen3_5_moe"]


class Linear(NamedTuple):
    """Gated delta net: heads, sizes of their vectors, convolution width."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.values


@dataclass(frozen=True, slots=True)
class Shape:
    """A mixture-of-experts decoder; sizes are in elements. `linear` None: full attention in all layers."""

    family: Family
    layers: int
    hidden: int
    experts: int
    per_token: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    shared_inner: int = 0
    linear: Linear | None = None
    interval: int = 1  # every interval-th layer has full attention
    rotary_share: float = 1.0

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @property
    def prefix(self) -> str:
        """The names of the text model's tensors begin with it in the published files."""
        return "model." if self.family == "qwen3_moe" else "model.language_model."

    @property
    def expert_bytes(self) -> int:
        """All routed experts in BF16."""
        return self.layers * self.experts * 3 * self.inner * self.hidden * 2


SHAPES: dict[Family, Shape] = {
    # Qwen3-30B-A3B and Qwen3.6-35B-A3B: sizes from their published config.json.
    "qwen3_moe": Shape(
        "qwen3_moe", 48, 2048, 128, 8, 768, 32, 4, 128, vocab=151936, context=40960, rope_theta=1e6
    ),
    "qwen3_5_moe": Shape(
        "qwen3_5_moe",
        *(40, 2048, 256, 8, 512, 16, 2, 256),
        vocab=248320,
        context=262144,
        rope_theta=1e7,
        shared_inner=512,
        linear=Linear(16, 32, 128, 128),
        interval=4,
        rotary_share=0.25,
    ),
}

TINY: dict[Family, Shape] = {
    "qwen3_moe": replace(
        SHAPES["qwen3_moe"], layers=4, hidden=256, experts=16, per_token=4, inner=48, heads=4, kv_heads=2,
        head_dim=32, vocab=1088, context=2048,
    ),
    "qwen3_5_moe": replace(
        SHAPES["qwen3_5_moe"], layers=4, hidden=256, experts=16, per_token=4, inner=48, heads=4, kv_heads=2,
        head_dim=32, vocab=1088, context=2048, shared_inner=32, linear=Linear(2, 4, 16, 16),
    ),
}  # fmt: skip


def config_json(shape: Shape, eos: int) -> dict[str, Any]:
    """The text model's config.json, with the keys that published ones have."""
    common: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": shape.context,
        "moe_intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.per_token,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "output_router_logits": False,
        "rms_norm_eps": 1e-6,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }
    return {**common, **(_plain(shape) if shape.linear is None else _hybrid(shape, shape.linear))}


def _plain(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "intermediate_size": 3 * shape.hidden,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _hybrid(shape: Shape, linear: Linear) -> dict[str, Any]:
    kinds = [
        "full_attention" if shape.is_full(layer) else "linear_attention" for layer in range(shape.layers)
    ]
    rope = {
        "rope_type": "default",
        "rope_theta": shape.rope_theta,
        "partial_rotary_factor": shape.rotary_share,
    }
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": True,
        "full_attention_interval": shape.interval,
        "layer_types": kinds,
        "linear_conv_kernel_dim": linear.kernel,
        "linear_key_head_dim": linear.key_dim,
        "linear_num_key_heads": linear.key_heads,
        "linear_num_value_heads": linear.value_heads,
        "linear_value_head_dim": linear.value_dim,
        "mamba_ssm_dtype": "float32",
        "partial_rotary_factor": shape.rotary_share,
        "rope_parameters": rope,
        "shared_expert_intermediate_size": shape.shared_inner,
    }
