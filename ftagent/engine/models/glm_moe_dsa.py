"""GLM-5: the layers of DeepSeek-V3.2, with an indexer whose rotation is interleaved."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig
from ftagent.engine.models.deepseek_v32 import with_indexer
from ftagent.errors import LoadFailed

MODEL_TYPES = ("glm_moe_dsa",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' GlmMoeDsaConfig."""
    shared = config.integer("index_topk_freq", 1) > 1 or config.values.get("index_topk_pattern") is not None
    if shared or "shared" in (config.values.get("indexer_types") or ()):
        raise LoadFailed(f"{config.path}: layers that share another layer's indexer are not supported")
    config = config.defaults(
        vocab_size=154880,
        hidden_size=6144,
        intermediate_size=12288,
        num_hidden_layers=78,
        num_attention_heads=64,
        q_lora_rank=2048,
        v_head_dim=256,
        qk_nope_head_dim=192,
        n_group=1,
        topk_group=1,
        max_position_embeddings=202752,
        rms_norm_eps=1e-5,
        index_n_heads=32,
    )
    return with_indexer(config, "glm_moe_dsa", interleaved=True)
