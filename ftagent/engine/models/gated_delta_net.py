"""The gated delta net layer of Qwen3.5 and its like: causal convolution, gated delta rule, gated norm.

State lives in a `StatePool` slot: the last inputs of the convolution and the matrix of the delta rule,
float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftagent.engine.context.recurrent import StatePool, StateShape
from ftagent.engine.kernels.delta_rule import DeltaInputs, chunked, recurrent_step, unit_length
from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.linear import project
from ftagent.engine.models.batch import Batch
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.layers import RmsNorm
from ftagent.engine.weights.source import Source


def state_shape(config: ModelConfig) -> StateShape:
    """What one slot of the state pool holds for this model; empty without linear layers."""
    linear = config.linear
    if linear is None:
        return StateShape()
    layers = config.layers.count("linear_attention")
    heads, key_dim, value_dim = linear.value_heads, linear.key_dim, linear.value_dim
    return StateShape(layers, linear.kernel - 1, linear.channels, heads, key_dim, value_dim)


def _projections(config: ModelConfig, shape: DeltaShape, source: Source, prefix: str) -> torch.Tensor:
    """[q | k | v | z | b | a, hidden] out of the family's tensors."""
    order = None
    sizes = {"qkv": shape.channels, "z": shape.values, "b": shape.value_heads, "a": shape.value_heads}
    if config.delta_by_key_head:
        sizes = {"qkvz": shape.channels + shape.values, "ba": 2 * shape.value_heads}
        order = _out_of_key_heads(shape)
    parts = [(f"{prefix}in_proj_{part}.weight", size) for part, size in sizes.items()]
    return source.joined(parts, config.hidden, order)


def _out_of_key_heads(shape: DeltaShape) -> torch.Tensor:
    """Stored rows in the order q, k, v, z, b, a. Stored are, for each key head, its q and k, v and z of its
    value heads; then for each key head b and a of its value heads.
    """
    group = shape.value_heads // shape.key_heads
    widths = [shape.key_dim, shape.key_dim, group * shape.value_dim, group * shape.value_dim]
    wide = torch.arange(shape.key_heads * sum(widths)).view(shape.key_heads, -1)
    narrow = wide.numel() + torch.arange(2 * shape.value_heads).view(shape.key_heads, -1)
    columns = (*torch.split(wide, widths, dim=1), *torch.split(narrow, group, dim=1))
    return torch.cat([rows.flatten() for rows in columns])


class GatedDeltaNet:
    """One linear-attention layer; `state_layer` is its index among the linear layers."""

    def __init__(
        self, shape: DeltaShape, config: ModelConfig, source: Source, prefix: str, state_layer: int
    ) -> None:
        hidden, channels, heads = config.hidden, shape.channels, shape.value_heads
        self.shape = shape
        self.state_layer = state_layer
        self._sizes = [channels, shape.values, heads, heads]
        self.into = _projections(config, shape, source, prefix)
        convolution = source.dense(prefix + "conv1d.weight", channels, 1, shape.kernel, dtype=torch.float32)
        self.taps = convolution.squeeze(1).t().contiguous()  # [kernel, channels], oldest first
        self.rate = -source.dense(prefix + "A_log", heads, dtype=torch.float32).exp()
        self.bias = source.dense(prefix + "dt_bias", heads, dtype=torch.float32)
        self.norm = RmsNorm(
            source.dense(prefix + "norm.weight", shape.value_dim, dtype=torch.float32), shape.eps
        )
        self.out = source.dense(prefix + "out_proj.weight", hidden, shape.values)

    def __call__(self, x: torch.Tensor, batch: Batch, states: StatePool) -> torch.Tensor:
        shape, rows = self.shape, len(x)
        flat = project(x, self.into, batch.decode).float()
        mixed, z, b, a = torch.split_with_sizes(flat, self._sizes, dim=-1)
        mixed = F.silu(self._convolve(mixed, batch, states.conv[self.state_layer]))
        query_key = unit_length(mixed[:, : 2 * shape.keys].view(rows, 2 * shape.key_heads, shape.key_dim))
        query_key = query_key.view(rows, 2, shape.key_heads, shape.key_dim)
        if shape.value_heads != shape.key_heads:
            query_key = query_key.repeat_interleave(shape.value_heads // shape.key_heads, dim=2)
        query, key = query_key[:, 0] * shape.key_dim**-0.5, query_key[:, 1]
        value = mixed[:, 2 * shape.keys :].view(rows, shape.value_heads, shape.value_dim)
        beta = torch.sigmoid(b)
        decay = self.rate * F.softplus(a + self.bias)
        out = self._mix(
            DeltaInputs(query, key, value, decay, beta), batch, states.recurrent[self.state_layer]
        )
        normed = self.norm.float32(out) * F.silu(z.view_as(out))
        return project(normed.view(rows, -1).to(x.dtype), self.out, batch.decode)

    def _convolve(self, x: torch.Tensor, batch: Batch, conv: torch.Tensor) -> torch.Tensor:
        """Causal depthwise convolution of x [rows, channels] with the state conv [slots, kernel - 1,
        channels].
        """
        parts: list[torch.Tensor] = []
        if batch.decode == 1:
            state = conv[batch.decode_slots[0]]
            window = torch.cat((state, x[:1]))
            state.copy_(window[1:])
            parts.append((window * self.taps).sum(0, keepdim=True))
        elif batch.decode:
            window = torch.cat((conv[batch.decode_index], x[: batch.decode].unsqueeze(1)), dim=1)
            conv[batch.decode_index] = window[:, 1:]
            parts.append((window * self.taps).sum(1))
        for span in batch.spans:
            window = torch.cat((conv[span.slot], x[span.begin : span.end]))
            count = span.end - span.begin
            conv[span.slot] = window[count:]
            total = window[:count] * self.taps[0]
            for tap in range(1, self.shape.kernel):
                total.addcmul_(window[tap : tap + count], self.taps[tap])
            parts.append(total)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _mix(self, inputs: DeltaInputs, batch: Batch, recurrent: torch.Tensor) -> torch.Tensor:
        """Run the delta rule on all rows, advancing the slots of their requests: [rows, heads, dv]."""
        parts: list[torch.Tensor] = []
        decode = batch.decode
        if decode == 1:
            slot = batch.decode_slots[0]
            parts.append(recurrent_step(inputs.rows(0, 1), recurrent[slot : slot + 1]))
        elif decode:
            states = recurrent[batch.decode_index]
            parts.append(recurrent_step(inputs.rows(0, decode), states))
            recurrent[batch.decode_index] = states
        parts += [chunked(inputs.rows(s.begin, s.end), recurrent[s.slot]) for s in batch.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
