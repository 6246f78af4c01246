"""Maps a config.json to the family that reads it. A new family is one file and one line here."""

from __future__ import annotations

from pathlib import Path

from ftagent.engine.models import (
    deepseek_v3,
    deepseek_v32,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    gpt_oss,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    olmoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)
from ftagent.engine.models.config import ModelConfig, read_config
from ftagent.errors import LoadFailed

FAMILIES = (
    qwen3_moe,
    qwen3_5_moe,
    qwen3_next,
    gpt_oss,
    deepseek_v3,
    deepseek_v32,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen2,
    llama,
    mistral,
)
NOT_YET = {
    "deepseek_v4": "its compressed attention and hyper-connections are not computed here yet",
}


def model_config(directory: Path) -> ModelConfig:
    """Read and check `directory`/config.json. Raises LoadFailed; for an unknown family it lists the known
    ones.
    """
    config = read_config(directory)
    model_type = config.values.get("model_type")
    for family in FAMILIES:
        if model_type in family.MODEL_TYPES:
            return _consistent(config.path, family.parse(config))
    if model_type in NOT_YET:
        raise LoadFailed(f"{config.path}: model_type {model_type!r} is not supported: {NOT_YET[model_type]}")
    known = ", ".join(name for family in FAMILIES for name in family.MODEL_TYPES)
    raise LoadFailed(f"{config.path}: model_type {model_type!r} is not known here; known are {known}")


def _consistent(path: Path, config: ModelConfig) -> ModelConfig:
    linear = config.linear
    if config.heads % config.kv_heads:
        raise LoadFailed(
            f"{path}: {config.heads} attention heads do not divide into {config.kv_heads} KV heads"
        )
    if config.experts_per_token > config.experts:
        raise LoadFailed(
            f"{path}: {config.experts_per_token} experts per token, but only {config.experts} experts"
        )
    rotary = config.rotary.size
    if rotary % 2 or rotary > config.head_dim:
        raise LoadFailed(f"{path}: a rotary size of {rotary} does not fit heads of {config.head_dim}")
    if "sliding_attention" in config.layers and not config.window:
        raise LoadFailed(f"{path}: layers of {config.family} with sliding_attention are not supported")
    if linear and linear.value_heads % linear.key_heads:
        raise LoadFailed(
            f"{path}: {linear.value_heads} linear value heads do not divide into {linear.key_heads} key heads"
        )
    return config
