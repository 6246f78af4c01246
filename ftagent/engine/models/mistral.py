"""Mistral 7B, Nemo and Small, dense: the layers of Llama, in the first versions within a window."""

from __future__ import annotations

from dataclasses import replace

from ftagent.engine.models import llama
from ftagent.engine.models.config import ConfigFile, ModelConfig

MODEL_TYPES = ("mistral",)


def parse(config: ConfigFile) -> ModelConfig:
    """Defaults are those of transformers' MistralConfig."""
    config = config.defaults(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072)
    base, window = llama.parse(config), config.optional("sliding_window", 4096)
    kinds = config.window_layers(len(base.layers), window)
    return replace(base, family="mistral", layers=kinds, window=window)
