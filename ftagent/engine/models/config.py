"""A model's shape, read from config.json and checked. Knows families only by the values they fill in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ftagent.errors import LoadFailed

LayerKind = Literal["full_attention", "linear_attention"]


class LinearShape(NamedTuple):
    """Gated delta net: key heads, value heads, sizes of their vectors, convolution width."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v together."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the layers need. Sizes are in elements; `context` is the longest position trained for."""

    family: str
    vocab: int
    hidden: int
    layers: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    eps: float
    context: int
    tied: bool
    experts: int
    experts_per_token: int
    expert_intermediate: int
    renormalise: bool  # the k chosen weights are divided by their sum
    shared_intermediate: int = 0  # 0: no shared expert
    dense_layers: frozenset[int] = frozenset()  # layers with one plain MLP instead of experts
    dense_intermediate: int = 0
    centred_norm: bool = False  # norms multiply by 1 + weight
    gated_attention: bool = False
    linear: LinearShape | None = None

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(len(self.layers)) if layer not in self.dense_layers)


class ConfigFile:
    """Typed look-ups in the text part of a config.json. Every refusal is LoadFailed with file and key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise LoadFailed(f"{self.path}: {key} must be a whole number, found {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.integer(key, default)
        if value == 0:
            raise LoadFailed(f"{self.path}: {key} must be at least 1")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LoadFailed(f"{self.path}: {key} must be a number, found {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        return default if value is None else bool(value)

    def refuse(self, key: str, allowed: tuple[object, ...]) -> None:
        """Raise LoadFailed when `key` is given with a value that this engine does not compute."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            raise LoadFailed(f"{self.path}: {key} = {value!r} is not supported")

    def rope(self) -> Mapping[str, Any]:
        """rope_parameters, or the older top-level keys in the same form. Only the plain rotary embedding."""
        found = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(found, Mapping):
            raise LoadFailed(f"{self.path}: rope_parameters must be an object")
        kind = found.get("rope_type", found.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise LoadFailed(f"{self.path}: rope_type {kind!r} is not supported")
        older = {
            key: self.values[key] for key in ("rope_theta", "partial_rotary_factor") if key in self.values
        }
        return {**older, **found}

    def layer_kinds(self, default: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
        """layer_types when given, one for each layer."""
        given = self.values.get("layer_types")
        if given is None:
            return default
        known: dict[str, LayerKind] = {
            "full_attention": "full_attention",
            "linear_attention": "linear_attention",
        }
        if (
            not isinstance(given, list)
            or len(given) != len(default)
            or any(kind not in known for kind in given)
        ):
            raise LoadFailed(
                f"{self.path}: layer_types must name {len(default)} layers of {', '.join(known)}"
            )
        return tuple(known[kind] for kind in given)


def read_config(directory: Path) -> ConfigFile:
    """The text model's part of config.json: top level, or `text_config`. Raises LoadFailed."""
    path = directory / "config.json"
    if not directory.is_dir():
        wrong = "a file, not a model directory" if directory.exists() else "no such model directory"
        raise LoadFailed(f"{directory}: {wrong}; give one with config.json and *.safetensors")
    try:
        parsed = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LoadFailed(f"{path}: not found; {directory} is not a model directory") from None
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LoadFailed(f"{path}: not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise LoadFailed(f"{path}: not a JSON object")
    text = parsed.get("text_config")
    if not isinstance(text, dict):
        return ConfigFile(path, parsed)
    outer = {key: parsed[key] for key in ("model_type", "tie_word_embeddings") if key in parsed}
    return ConfigFile(path, {**outer, **text})
