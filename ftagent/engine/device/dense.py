"""The weights of a model as its decode step reads them: one tuple per layer, in the order of the kernels.

Built from the same Block objects that prefill runs, so nothing is stored twice but the routers: a layer's
router has the next layer's below it, which makes guesses of what that layer will ask for at no launch.
Knows no pools and no buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.kernels.gpu.route import RouteSpec
from ftagent.engine.models.decoder import Block, Weights
from ftagent.engine.models.gated_delta_net import GatedDeltaNet
from ftagent.engine.models.layers import Attention, Mlp, Moe, RmsNorm, Rope, WindowAttention
from ftagent.engine.models.prefill import attention_spec


class Norm(NamedTuple):
    """float32 [H], and the epsilon under the root."""

    weight: torch.Tensor
    eps: float


class AttentionStep(NamedTuple):
    norm: Norm
    into: torch.Tensor  # T [q | k | v | gate, H]
    out: torch.Tensor  # T [H, heads * head_dim]
    norms: torch.Tensor | None  # float32 [heads + kv_heads, head_dim]
    spec: AttentionSpec
    kv_layer: int  # with a window: of the rings
    into_bias: torch.Tensor | None = None  # T [q | k | v]
    out_bias: torch.Tensor | None = None  # T [H]
    sinks: torch.Tensor | None = None  # float32 [heads]


class DeltaStep(NamedTuple):
    norm: Norm
    into: torch.Tensor  # T [q | k | v | z | b | a, H]
    out: torch.Tensor  # T [H, values]
    taps: torch.Tensor  # float32 [kernel, channels]
    rate: torch.Tensor  # float32 [value heads]
    bias: torch.Tensor  # float32 [value heads]
    gate_norm: Norm  # over a value head
    spec: DeltaShape
    state_layer: int


class MoeStep(NamedTuple):
    norm: Norm
    into: torch.Tensor  # T [router | shared gate | shared up | gate of the shared expert | next router, H]
    shared_down: torch.Tensor | None  # T [H, shared]
    spec: RouteSpec
    layer: int  # among the MoE layers
    bias: torch.Tensor | None = None  # T [experts] of the router


class MlpStep(NamedTuple):
    norm: Norm
    gate_up: torch.Tensor  # T [gate | up, H]
    down: torch.Tensor  # T [H, inner]


class LayerStep(NamedTuple):
    mixer: AttentionStep | DeltaStep
    feed: MoeStep | MlpStep


def layer_steps(weights: Weights, rope: Rope, window: int = 0) -> tuple[LayerStep, ...]:
    """The decode view of every block; `window` is that of the window layers."""
    blocks = weights.blocks
    return tuple(
        LayerStep(_mixer(block, rope, window), _feed(blocks, place)) for place, block in enumerate(blocks)
    )


def _norm(norm: RmsNorm) -> Norm:
    return Norm(norm.weight, norm.eps)


def _mixer(block: Block, rope: Rope, window: int) -> AttentionStep | DeltaStep:
    mixer = block.mixer
    if isinstance(mixer, Attention | WindowAttention):
        spec, norms = attention_spec(mixer, rope)
        window = window if isinstance(mixer, WindowAttention) else 0
        return AttentionStep(
            norm=_norm(block.mixer_norm),
            into=mixer.into,
            out=mixer.out,
            norms=norms if norms is None else norms.contiguous(),
            spec=replace(spec, window=window, sinks=mixer.sinks is not None),
            kv_layer=mixer.kv_layer,
            into_bias=mixer.into_bias,
            out_bias=mixer.out_bias,
            sinks=mixer.sinks,
        )
    assert isinstance(mixer, GatedDeltaNet)
    return DeltaStep(
        norm=_norm(block.mixer_norm),
        into=mixer.into,
        out=mixer.out,
        taps=mixer.taps,
        rate=mixer.rate,
        bias=mixer.bias,
        gate_norm=_norm(mixer.norm),
        spec=mixer.shape,
        state_layer=mixer.state_layer,
    )


def _feed(blocks: Sequence[Block], place: int) -> MoeStep | MlpStep:
    block = blocks[place]
    norm, mlp = _norm(block.mlp_norm), block.mlp
    if isinstance(mlp, Mlp):
        return MlpStep(norm, mlp.gate_up, mlp.down)
    assert isinstance(mlp, Moe)
    into, guess_at = mlp.into, -1
    following = next((later for later in blocks[place + 1 :] if isinstance(later.mlp, Moe)), None)
    if following is not None:
        guess_at = len(into)
        into = torch.cat((into, _next_router(norm, following)))
        mlp.into = into[:guess_at]  # prefill reads the same memory
    spec = RouteSpec(mlp.experts, mlp.per_token, mlp.renormalise, guess_at)
    return MoeStep(norm, into, mlp.down if mlp.shared else None, spec, mlp.moe_layer, mlp.bias)


def _next_router(norm: Norm, following: Block) -> torch.Tensor:
    """The next MoE layer's router for inputs that were scaled by this layer's norm: a guess, not a result."""
    mlp = following.mlp
    assert isinstance(mlp, Moe)
    router = mlp.into[: mlp.experts].float()
    small = norm.weight.abs() < 1e-3  # such a channel tells nothing about the next layer's input
    ratio = torch.where(small, 0.0, following.mlp_norm.weight / torch.where(small, 1.0, norm.weight))
    return (router * ratio).to(mlp.into.dtype)
