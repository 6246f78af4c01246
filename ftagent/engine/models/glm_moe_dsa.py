"""GLM-5: the layers of DeepSeek-V3.2, with an indexer whose rotation is interleaved."""

from __future__ import annotations

from ftagent.engine.models.config import ConfigFile, ModelConfig
from ftagent.engine.models.deepseek_v32 import with_indexer
from ftagent.errors import LoadFailed

MODEL_TYPES = ("glm_moe_dsa",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' GlmMoeDsaConfig."""
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
    following = _following(config, config.positive("num_hidden_layers"))
    return with_indexer(config, "glm_moe_dsa", interleaved=True, following=following)


def _following(config: ConfigFile, layers: int) -> frozenset[int]:
    """Layers that use the choice of an earlier one: named, or one indexer in every few layers."""
    kinds = config.values.get("indexer_types") or config.values.get("index_topk_pattern")
    if kinds is None:
        stride, offset = config.positive("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2)
        return frozenset(layer for layer in range(layers) if max(layer - offset + 1, 0) % stride)
    known = {"full": False, "F": False, "shared": True, "S": True}
    if not isinstance(kinds, list | str) or len(kinds) != layers or not set(kinds) <= set(known):
        raise LoadFailed(f"{config.path}: indexer_types must name {layers} layers of full, shared")
    if known[kinds[0]]:
        raise LoadFailed(f"{config.path}: the first layer has no indexer to share")
    return frozenset(layer for layer, kind in enumerate(kinds) if known[kind])
