"""The embedded model's shape: one place for config.json, the training network and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A `qwen3_5_moe` text model. Sizes in units of their name; defaults are the shipped model's."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8  # even index: gated delta net; odd index: gated attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: float = 0.25  # share of head_dim that is rotated
    rope_theta: float = 1e6
    key_heads: int = 4
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    experts: int = 16
    top_k: int = 4
    intermediate: int = 112
    shared: int = 112
    eps: float = 1e-6
    context: int = 131072

    @property
    def layer_types(self) -> list[str]:
        return ["full_attention" if layer % 2 else "linear_attention" for layer in range(self.layers)]

    @property
    def qkv_width(self) -> int:
        """Channels of the delta net's convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def config(self) -> dict[str, Any]:
        """config.json in the layout of Hugging Face's Qwen3_5MoeForCausalLM."""
        return {
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text",
            "dtype": "bfloat16",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "layer_types": self.layer_types,
            "full_attention_interval": 2,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attention_bias": False,
            "attn_output_gate": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary,
            },
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "linear_conv_kernel_dim": self.conv,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.intermediate,
            "shared_expert_intermediate_size": self.shared,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": True,
            "eos_token_id": None,
            "bos_token_id": None,
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": [
                    "lm_head",
                    "embed_tokens",
                    "mlp.gate",
                    "mlp.shared_expert_gate",
                    "in_proj_a",
                    "in_proj_b",
                    "conv1d",
                ],
            },
        }
