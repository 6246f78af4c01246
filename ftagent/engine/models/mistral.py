"""Mistral 7B, Nemo and Small, dense: the layers of Llama. Versions with a sliding window are refused."""

from __future__ import annotations

from dataclasses import replace

from ftagent.engine.models import llama
from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("mistral",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' MistralConfig."""
    config = config.defaults(
        intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096
    )
    config.refuse("sliding_window", ())
    return replace(llama.parse(config), family="mistral")
