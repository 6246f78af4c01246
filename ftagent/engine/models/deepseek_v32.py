"""DeepSeek-V3.2: DeepSeek-V3 with an indexer, which chooses the tokens that a row attends to."""

from __future__ import annotations

from dataclasses import replace

from ftagent.engine.models import deepseek_v3
from ftagent.engine.models.config import ConfigFile, IndexShape, ModelConfig
from ftagent.errors import LoadFailed

MODEL_TYPES = ("deepseek_v32",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' DeepseekV32Config."""
    config = config.defaults(max_position_embeddings=163840, index_n_heads=64)
    return with_indexer(config, "deepseek_v32", interleaved=False)


def with_indexer(
    config: ConfigFile, family: str, *, interleaved: bool, following: frozenset[int] = frozenset()
) -> ModelConfig:
    """DeepSeek-V3's layers with sparse attention; `interleaved`: the indexer's weights, too, have the two
    dimensions of a rotation beside each other; `following`: layers without an indexer of their own.
    """
    base = deepseek_v3.parse(config)
    assert base.latent is not None
    if not base.latent.query_rank:
        raise LoadFailed(f"{config.path}: q_lora_rank must be given: the indexer's queries are made of it")
    index = IndexShape(
        heads=config.positive("index_n_heads", 64),
        dim=config.positive("index_head_dim", 128),
        top=config.positive("index_topk", 2048),
        interleaved=interleaved,
        following=following,
    )
    if index.dim < base.latent.rotary_dim:
        raise LoadFailed(f"{config.path}: index_head_dim = {index.dim} is less than qk_rope_head_dim")
    return replace(base, family=family, latent=base.latent._replace(indexer=index))
