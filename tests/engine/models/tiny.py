"""Small random models made and computed by transformers: the oracle of the model tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 20,
}
DENSE = {key: value for key, value in SMALL.items() if "expert" not in key and "moe" not in key}
DENSE |= {"intermediate_size": 40}
MIXTRAL: dict[str, Any] = {
    **DENSE,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 24,
    "head_dim": 16,
    "sliding_window": None,
}
GPT_OSS = {
    **{key: value for key, value in SMALL.items() if not key.startswith(("num_experts", "moe"))},
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 24,
    "sliding_window": 16,
}
LATENT: dict[str, Any] = {
    **{
        key: value
        for key, value in SMALL.items()
        if key not in ("head_dim", "num_experts", "num_key_value_heads")
    },
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "intermediate_size": 40,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
}
SPARSE: dict[str, Any] = {**LATENT, "index_n_heads": 16, "index_head_dim": 12, "index_topk": 20}
GLM: dict[str, Any] = {**SMALL, "n_routed_experts": 8, "intermediate_size": 40, "use_qk_norm": True}
del GLM["num_experts"]
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", SMALL),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {**SMALL, **LINEAR}),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {**SMALL, **LINEAR}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", DENSE),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**DENSE, **LINEAR}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", LATENT),
    "deepseek_v32": ("DeepseekV32Config", "DeepseekV32ForCausalLM", SPARSE),
    "glm_moe_dsa": ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", {**SPARSE, "n_group": 1, "topk_group": 1}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", LATENT),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**DENSE, "sliding_window": None}),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {**MIXTRAL, "num_experts": 8}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DENSE),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**SMALL, "shared_expert_intermediate_size": 20}),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", GLM),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", MIXTRAL),
    "llama": ("LlamaConfig", "LlamaForCausalLM", DENSE),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", MIXTRAL),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", GPT_OSS),
}


class Oracle:
    """A random transformers model, saved to `directory`."""

    def __init__(self, family: str, directory: Path, seed: int, changes: Mapping[str, Any]) -> None:
        config_name, model_name, base = FAMILIES[family]
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        config = getattr(transformers, config_name)(**{**base, **changes})
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        self.model: Any = getattr(transformers, model_name)(config).eval().float()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "norm" in name or "bias" in name or "sinks" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
            for name, buffer in self.model.named_buffers():
                if "correction_bias" in name:
                    buffer.add_(torch.randn_like(buffer) * 0.1)
        self.model.save_pretrained(directory)
        self.directory = directory
        self.vocab = int(config.vocab_size)

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        drawn: list[int] = torch.randint(0, self.vocab, (count,), generator=generator).tolist()
        return drawn

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """float32 [tokens, vocab], in one pass without a cache."""
        with torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([tokens]), use_cache=False).logits[0].float()
        return found
