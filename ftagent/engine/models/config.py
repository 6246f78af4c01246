"""A model's shape, read from config.json and checked. Knows families only by the values they fill in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.errors import LoadFailed

LayerKind = Literal["full_attention", "sliding_attention", "linear_attention", "latent_attention"]
KERNEL_HEADS = range(16, 257, 8)  # sizes of heads that `kernels.gpu.attention` does
KERNEL_GROUP = 16  # and query heads on one KV head, at most
RING_UNIT = 64  # tokens: a ring of whole pages is read as these are
ROPE_KINDS = ("default", "mrope", "linear", "llama3", "yarn")


class IndexShape(NamedTuple):
    """The indexer of sparse attention: its heads, their size, and how many tokens a row attends to."""

    heads: int
    dim: int
    top: int
    interleaved: bool = False  # as in LatentShape
    following: frozenset[int] = frozenset()  # layers that take over what the last one before them has chosen


class LatentShape(NamedTuple):
    """Multi-head latent attention: ranks of what is compressed, and the parts of a head."""

    query_rank: int  # 0: queries are not compressed
    rank: int  # of the latent that keys and values are made of
    plain_dim: int  # of queries and keys, without position
    rotary_dim: int  # of queries and of the key that all heads share
    value_dim: int
    interleaved: bool = True  # weights have the two dimensions of a rotation beside each other
    indexer: IndexShape | None = None  # None: every row attends to all tokens before it

    @property
    def head_dim(self) -> int:
        """Of queries and keys."""
        return self.plain_dim + self.rotary_dim

    @property
    def stored(self) -> int:
        """Values of a token that attention reads."""
        return self.rank + self.rotary_dim

    @property
    def kept(self) -> int:
        """Values that a token leaves in the pages: those, then the indexer's key."""
        return self.stored + (self.indexer.dim if self.indexer else 0)


class SigmoidRouting(NamedTuple):
    """How experts are chosen whose scores are sigmoids; see `sigmoid_moe.choose`."""

    groups: int = 1
    groups_kept: int = 1
    scale: float = 1.0  # of all weights
    bias: str = "gate.e_score_correction_bias"  # its tensor, below the MoE layer


class RopeScaling(NamedTuple):
    """How rotary frequencies are stretched to contexts longer than `original`; see `rotary.frequencies`.

    `slow` and `fast` are rotations within `original` positions: dimensions that turn less than `slow` are
    stretched by `factor`, those that turn more than `fast` are left, between them both are mixed.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original: int = 0
    slow: float = 1.0
    fast: float = 32.0
    amplitude: float = 1.0  # cos and sin are multiplied by this
    whole: bool = True  # yarn: the mixed dimensions begin and end at whole ones


class Rotary(NamedTuple):
    """The rotary embedding: its dimensions of a head, base, and how frequencies are stretched."""

    size: int
    theta: float
    scaling: RopeScaling | None


QueryKeyNorm = Literal["none", "head", "projection"]


class MoeNames(NamedTuple):
    """Where a family keeps a MoE layer, below "layers.N.", the names of an expert's gate, up and down, and
    that of the router; `interleaved`: experts lie as `experts.interleaved` says.
    """

    block: str = "mlp."
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    interleaved: bool = False


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
    rotary: Rotary
    eps: float
    context: int
    tied: bool
    experts: int = 0  # 0: every layer is one of `dense_layers`
    experts_per_token: int = 0
    expert_intermediate: int = 0
    renormalise: bool = False  # the k chosen weights are divided by their sum
    shared_intermediate: int = 0  # 0: no shared expert
    dense_layers: frozenset[int] = frozenset()  # layers with one plain MLP instead of experts
    dense_intermediate: int = 0
    centred_norm: bool = False  # norms multiply by 1 + weight
    gated_attention: bool = False
    linear: DeltaShape | None = None
    delta_by_key_head: bool = False  # linear layers store q, k, v, z of each key head together, and b, a
    query_key_norm: QueryKeyNorm = "head"  # of each head, of all heads together, or not at all
    qkv_bias: bool = False
    out_bias: bool = False  # of attention's output projection
    window: int = 0  # tokens that one of a sliding layer sees, itself included
    sinks: bool = False  # each attention head has one score more, without a value
    latent: LatentShape | None = None
    score_scale: float = 1.0  # latent attention: times 1 / sqrt(head size)
    sigmoid: SigmoidRouting | None = None  # None: softmax, and shared experts have a gate
    moe_names: MoeNames = MoeNames()  # noqa: RUF009 - a tuple
    biased_moe: bool = False  # router and experts
    swiglu: Swiglu = Swiglu()  # noqa: RUF009 - a tuple; of routed experts

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(len(self.layers)) if layer not in self.dense_layers)

    @property
    def cpu_only(self) -> str | None:
        """What of this model the kernels of a GPU do not compute; None when there is nothing of the kind."""
        if self.latent is not None:
            return None
        group = self.heads // self.kv_heads
        return _named(
            {
                f"attention heads of {self.head_dim}": self.head_dim not in KERNEL_HEADS,
                f"{group} query heads on a KV head": group > KERNEL_GROUP,
            }
        )

    @property
    def unchained(self) -> str | None:
        """What of it those of a decode chain do not compute: its decode steps take the way of prompts."""
        return _named(
            {
                f"a window of {self.window} tokens": bool(self.window % RING_UNIT),
                "attention over latents": self.latent is not None,
                "norms of all heads together": self.query_key_norm == "projection",
                "routing by sigmoids": self.sigmoid is not None,
            }
        )


def _named(given: Mapping[str, bool]) -> str | None:
    return ", ".join(name for name, true in given.items() if true) or None


class ConfigFile:
    """Typed look-ups in the text part of a config.json. Every refusal is LoadFailed with file and key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def defaults(self, **values: object) -> ConfigFile:
        """The same with `values` where the file gives none."""
        return ConfigFile(self.path, {**values, **self.values})

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise LoadFailed(f"{self.path}: {key} must be a whole number, found {value!r}")
        return value

    def optional(self, key: str, default: int) -> int:
        """A whole number, 0 where the file says null."""
        return 0 if key in self.values and self.values[key] is None else self.positive(key, default)

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.integer(key, default)
        if value == 0:
            raise LoadFailed(f"{self.path}: {key} must be at least 1")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
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

    def rotary(self, head_dim: int, theta: float = 10000.0, share: float = 1.0) -> Rotary:
        """The rotary embedding of heads of `head_dim`; `theta` and `share` (of a head that is turned) are the
        family's defaults.
        """
        found = self.rope()
        share, theta = float(found.get("partial_rotary_factor", share)), float(found.get("rope_theta", theta))
        return Rotary(int(head_dim * share), theta, self._scaling(found))

    def _scaling(self, found: Mapping[str, Any]) -> RopeScaling | None:
        kind = found.get("rope_type", found.get("type", "default"))
        if kind in ("default", "mrope"):
            return None
        values = ConfigFile(self.path, found)
        if kind == "linear":
            return RopeScaling("linear", values.number("factor", 1.0))
        context = self.positive("max_position_embeddings")
        inside = values.positive("original_max_position_embeddings", context)
        original = self.positive("original_max_position_embeddings", inside)
        factor = values.number("factor", context / original)
        if kind == "llama3":
            slow, fast = values.number("low_freq_factor", 1.0), values.number("high_freq_factor", 4.0)
            return RopeScaling("llama3", factor, original, slow, fast)
        return RopeScaling(
            "yarn",
            factor,
            original,
            slow=values.number("beta_slow", 1.0),
            fast=values.number("beta_fast", 32.0),
            amplitude=_yarn_amplitude(values, factor),
            whole=values.flag("truncate", True),
        )

    def rope(self) -> Mapping[str, Any]:
        """rope_parameters, or the older top-level keys in the same form. Refuses kinds that are not known."""
        found = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(found, Mapping):
            raise LoadFailed(f"{self.path}: rope_parameters must be an object")
        kind = found.get("rope_type", found.get("type", "default"))
        if kind not in ROPE_KINDS:
            raise LoadFailed(f"{self.path}: rope_type {kind!r} is not supported")
        older = {
            key: self.values[key] for key in ("rope_theta", "partial_rotary_factor") if key in self.values
        }
        return {**older, **found}

    def dense_layers(self, layers: int) -> frozenset[int]:
        """Layers of a MoE model that have one plain MLP, as the configurations of Qwen name them."""
        stride = self.positive("decoder_sparse_step", 1)
        plain = self.values.get("mlp_only_layers") or ()
        return frozenset(layer for layer in range(layers) if layer in plain or (layer + 1) % stride)

    def first_dense(self, layers: int, default: int) -> frozenset[int]:
        """Layers of a MoE model that have one plain MLP: as mlp_layer_types says, or the first few."""
        kinds = self.values.get("mlp_layer_types")
        if kinds is None:
            return frozenset(range(min(layers, self.integer("first_k_dense_replace", default))))
        if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}:
            raise LoadFailed(f"{self.path}: mlp_layer_types must name {layers} layers of dense, sparse")
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")

    def linear_shape(self) -> DeltaShape:
        """The gated delta net of Qwen3-Next and its successors."""
        return DeltaShape(
            key_heads=self.positive("linear_num_key_heads", 16),
            value_heads=self.positive("linear_num_value_heads", 32),
            key_dim=self.positive("linear_key_head_dim", 128),
            value_dim=self.positive("linear_value_head_dim", 128),
            kernel=self.positive("linear_conv_kernel_dim", 4),
            eps=self.number("rms_norm_eps", 1e-6),
        )

    def hybrid_kinds(self, layers: int) -> tuple[LayerKind, ...]:
        """layer_types, or full attention in every few layers."""
        interval = self.positive("full_attention_interval", 4)
        return self.layer_kinds(
            tuple("linear_attention" if (n + 1) % interval else "full_attention" for n in range(layers))
        )

    def attention_layers(self, layers: int) -> tuple[LayerKind, ...]:
        """Full attention in every layer, which layer_types may say too."""
        return self.layer_kinds(self.window_layers(layers, 0))

    def window_layers(self, layers: int, window: int) -> tuple[LayerKind, ...]:
        """Attention in every layer, within a window where there is one."""
        every: LayerKind = "sliding_attention" if window else "full_attention"
        return (every,) * layers

    def later_windows(self, layers: int) -> tuple[tuple[LayerKind, ...], int]:
        """Attention layers and their window as Qwen's configurations give them: full ones first."""
        if not self.flag("use_sliding_window", False):
            return self.attention_layers(layers), 0
        full = self.integer("max_window_layers", 28)
        kinds: tuple[LayerKind, ...] = tuple(
            "full_attention" if layer < full else "sliding_attention" for layer in range(layers)
        )
        return self.layer_kinds(kinds), self.positive("sliding_window", 4096)

    def layer_kinds(self, default: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
        """layer_types when given, one for each layer."""
        given = self.values.get("layer_types")
        if given is None:
            return default
        known: dict[str, LayerKind] = {
            "full_attention": "full_attention",
            "sliding_attention": "sliding_attention",
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


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies by when contexts grow by `factor` (arXiv 2309.00071, section 3.4)."""
    return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_amplitude(values: ConfigFile, factor: float) -> float:
    every, over_all = values.number("mscale", 0.0), values.number("mscale_all_dim", 0.0)
    if given := values.number("attention_factor", 0.0):
        return given
    if every and over_all:
        return yarn_scale(factor, every) / yarn_scale(factor, over_all)
    return yarn_scale(factor)


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
