"""The gated delta rule token by token and the layer around it, in float64: the oracle of kernel tests."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.delta_rule import DeltaInputs, recurrent_step
from ftagent.engine.kernels.delta_shape import DeltaShape


class Layer(NamedTuple):
    """Random weights of a layer, float32."""

    taps: torch.Tensor
    rate: torch.Tensor
    bias: torch.Tensor
    norm: torch.Tensor


def random_layer(spec: DeltaShape, device: torch.device) -> Layer:
    return Layer(
        torch.randn(spec.kernel, spec.channels, device=device) * 0.5,
        -torch.rand(spec.value_heads, device=device).mul(3).exp(),
        torch.randn(spec.value_heads, device=device),
        torch.rand(spec.value_dim, device=device) + 0.5,
    )


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def rows_of(
    flat: torch.Tensor, spec: DeltaShape, layer: Layer, conv: torch.Tensor
) -> tuple[DeltaInputs, torch.Tensor]:
    """Rows of the rule for the tokens of one request, one key for each value head, and the last inputs."""
    flat, conv, layer = flat.double(), conv.double(), Layer(*(part.double() for part in layer))
    window = torch.cat((conv, flat[:, : spec.channels]))
    total = torch.zeros_like(flat[:, : spec.channels])
    for tap in range(spec.kernel):
        total += window[tap : tap + len(flat)] * layer.taps[tap]
    query, key, value = F.silu(total).tensor_split((spec.keys, 2 * spec.keys), dim=-1)
    group = spec.value_heads // spec.key_heads
    query, key = (
        unit(part.reshape(-1, spec.key_heads, spec.key_dim)).repeat_interleave(group, 1)
        for part in (query, key)
    )
    first = spec.channels + spec.values
    b, a = flat[:, first : first + spec.value_heads], flat[:, first + spec.value_heads :]
    inputs = DeltaInputs(
        query * spec.key_dim**-0.5,
        key,
        value.reshape(-1, spec.value_heads, spec.value_dim),
        layer.rate * torch.log1p(torch.exp(a + layer.bias)),
        torch.sigmoid(b),
    )
    return inputs, window[len(flat) :]


def token_by_token(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [n, heads, dv] and the states [heads, dk, dv] before the first token and behind each."""
    wide = DeltaInputs(*(part.double() for part in inputs))
    current = state.double().unsqueeze(0)
    out, states = [], [current[0].clone()]
    for token in range(len(wide.value)):
        out.append(recurrent_step(wide.rows(token, token + 1), current))
        states.append(current[0].clone())
    return torch.cat(out), states


def normed(found: torch.Tensor, flat: torch.Tensor, spec: DeltaShape, layer: Layer) -> torch.Tensor:
    """Rows of the output projection, [n, values], from the rule's result [n, heads, dv]."""
    wide = found.double()
    z = flat[:, spec.channels : spec.channels + spec.values].double().view_as(wide)
    scaled = wide / (wide.square().mean(-1, keepdim=True) + spec.eps).sqrt() * layer.norm.double()
    return (scaled * F.silu(z)).reshape(len(flat), -1)
