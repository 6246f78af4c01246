"""Layers that families share: norms, rotary embedding, attention over pages, plain and routed MLPs.

Each layer takes its tensors from a `Source` and fuses projections of the same input at load. x is [rows,
hidden]. Norms and softmax run in float32, products in the compute dtype.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch

from ftagent.engine.context.pages import KvStorage
from ftagent.engine.context.windows import WindowRings
from ftagent.engine.experts.routed import RoutedExperts
from ftagent.engine.kernels.attention import attend_all, attend_causal, attend_window, join
from ftagent.engine.kernels.experts import gated
from ftagent.engine.kernels.linear import project
from ftagent.engine.models.batch import Batch
from ftagent.engine.models.config import ModelConfig, Rotary
from ftagent.engine.models.rotary import frequencies
from ftagent.engine.weights.source import Source


def norm_weight(source: Source, name: str, size: int, centred: bool) -> torch.Tensor:
    """float32 [size]; a zero-centred norm multiplies by 1 + the stored weight."""
    weight = source.dense(name, size, dtype=torch.float32)
    return weight + 1 if centred else weight


class RmsNorm:
    """x / sqrt(mean x^2 + eps) * weight over the last dimension, in float32, returned in the dtype of x.

    Computed as x / hypot(|x|, sqrt(size * eps)) * (weight * sqrt(size)): four calls where torch's own takes
    nine.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self.weight = weight
        self.eps = eps
        self._weight = weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.float32(x).to(x.dtype)

    def float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same, left in float32. A weight of more than one dimension multiplies after the norm."""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / torch.hypot(length, self._floor)).mul_(self._weight)


class Rope:
    """Rotary embedding of the first `size` dimensions of a head, half-split (Su et al., arXiv 2104.09864).

    Tables are made for `context` positions: cos, and sin with the sign of the rotation, [context, size]
    float32.
    """

    def __init__(self, rotary: Rotary, context: int, device: torch.device) -> None:
        self.size, amplitude = rotary.size, rotary.scaling.amplitude if rotary.scaling else 1.0
        angle = torch.arange(context, dtype=torch.float32).unsqueeze(1) * frequencies(*rotary)
        cos, sin = angle.cos() * amplitude, angle.sin() * amplitude
        self.cos = torch.cat((cos, cos), dim=-1).to(device)
        self.sin = torch.cat((-sin, sin), dim=-1).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin for rows at `positions`: [rows, 1, size] each."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate x [rows, heads, head_dim] float32 in place."""
        turned = x[..., : self.size]
        swapped = torch.roll(turned, self.size // 2, dims=-1)
        turned.mul_(cos).addcmul_(swapped, sin)


class ProjectionNorm:
    """Norms of all queries of a row together, and of all its keys (MiniMax-M2, OLMoE)."""

    def __init__(self, query: RmsNorm, key: RmsNorm) -> None:
        self._query, self._key = query, key

    def float32(self, query_key: torch.Tensor) -> torch.Tensor:
        """query_key [rows, heads + kv_heads, d], normed, in float32."""
        rows, heads, head_dim = query_key.shape
        flat, width = query_key.reshape(rows, -1), len(self._query.weight)
        both = self._query.float32(flat[:, :width]), self._key.float32(flat[:, width:])
        return torch.cat(both, dim=-1).view(rows, heads, head_dim)


def query_key_norm(config: ModelConfig, source: Source, prefix: str) -> RmsNorm | ProjectionNorm | None:
    """What an attention layer does to queries and keys before their rotation; for norms of each head, one
    RmsNorm with a row for each query head, then for each KV head.
    """
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    if config.query_key_norm == "none":
        return None
    together = config.query_key_norm == "projection"
    query, key = (
        norm_weight(source, f"{prefix}{part}_norm.weight", count * head_dim, config.centred_norm)
        for part, count in (("q", heads if together else 1), ("k", kv_heads if together else 1))
    )
    if together:
        return ProjectionNorm(RmsNorm(query, config.eps), RmsNorm(key, config.eps))
    return RmsNorm(torch.cat((query.expand(heads, -1), key.expand(kv_heads, -1))), config.eps)


Memory = TypeVar("Memory", KvStorage, WindowRings)


class GroupedAttention(ABC, Generic[Memory]):
    """Grouped-query attention over keys and values in `Memory`, of which this is layer `kv_layer`; norms of
    queries and keys, biases, sinks, and a sigmoid gate where the family has them.
    """

    def __init__(self, config: ModelConfig, source: Source, prefix: str, kv_layer: int) -> None:
        heads, kv_heads, head_dim, hidden = config.heads, config.kv_heads, config.head_dim, config.hidden
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.kv_layer = kv_layer
        self.scale = head_dim**-0.5
        self.gated = config.gated_attention
        sizes = (heads * head_dim * (2 if self.gated else 1), kv_heads * head_dim, kv_heads * head_dim)
        parts = [(f"{prefix}{part}_proj.weight", size) for part, size in zip("qkv", sizes, strict=True)]
        order = _gate_last(heads, head_dim, sum(sizes)) if self.gated else None
        self.into = source.joined(parts, hidden, order)  # q | k | v | gate
        self.out = source.dense(prefix + "o_proj.weight", hidden, heads * head_dim)
        self.norm = query_key_norm(config, source, prefix)
        self.into_bias = self.out_bias = None
        if config.qkv_bias:
            biases = (
                source.dense(f"{prefix}{part}_proj.bias", size)
                for part, size in zip("qkv", sizes, strict=True)
            )
            self.into_bias = torch.cat(tuple(biases))
        if config.out_bias:
            self.out_bias = source.dense(prefix + "o_proj.bias", hidden)
        self.sinks = source.dense(prefix + "sinks", heads, dtype=torch.float32) if config.sinks else None

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        memory: Memory,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        rows, heads, kv_heads, head_dim = len(x), self.heads, self.kv_heads, self.head_dim
        flat = _add(project(x, self.into, batch.decode), self.into_bias)
        width = (heads + 2 * kv_heads) * head_dim
        per_head = flat[:, :width].view(rows, -1, head_dim)
        query_key = per_head[:, : heads + kv_heads]
        query_key = self.norm.float32(query_key) if self.norm else query_key.float()
        rope.rotate(query_key, *turn)
        query_key = query_key.to(x.dtype)
        query = query_key[:, :heads]
        keys_values = torch.cat((query_key[:, heads:], per_head[:, heads + kv_heads :]), dim=1).transpose(
            0, 1
        )
        out = self._attend(query, keys_values, batch, memory).reshape(rows, -1)
        if self.gated:
            out = out * torch.sigmoid(flat[:, width:])
        return _add(project(out, self.out, batch.decode), self.out_bias)

    @abstractmethod
    def _attend(
        self, query: torch.Tensor, keys_values: torch.Tensor, batch: Batch, memory: Memory
    ) -> torch.Tensor:
        """query [rows, heads, d], keys_values [2 * kv_heads, rows, d] to [rows, heads, d]; the new keys and
        values are stored.
        """
        ...


class Attention(GroupedAttention[KvStorage]):
    """Every token sees all before it."""

    def _attend(
        self, query: torch.Tensor, keys_values: torch.Tensor, batch: Batch, memory: KvStorage
    ) -> torch.Tensor:
        kv = memory
        kv.write(self.kv_layer, batch.places, keys_values)
        done: list[torch.Tensor] = []
        for row, segments in enumerate(batch.decode_pasts):
            one = query[row].unsqueeze(1)
            parts = [attend_all(one, *kv.read_pairs(self.kv_layer, runs), self.scale) for runs in segments]
            done.append(join(parts, self.sinks).transpose(0, 1))
        for span in batch.spans:
            rows = slice(span.begin, span.end)
            own = query[rows].transpose(0, 1)
            key, value = keys_values[: self.kv_heads, rows], keys_values[self.kv_heads :, rows]
            parts = [attend_causal(own, key, value, self.scale)]
            if span.past:
                parts.append(attend_all(own, *kv.read_pairs(self.kv_layer, span.past), self.scale))
            done.append(join(parts, self.sinks).transpose(0, 1))
        return done[0] if len(done) == 1 else torch.cat(done)


class WindowAttention(GroupedAttention[WindowRings]):
    """Every token sees those within the window, itself included; what lies before it is not kept."""

    def _attend(
        self, query: torch.Tensor, keys_values: torch.Tensor, batch: Batch, memory: WindowRings
    ) -> torch.Tensor:
        layer, rings = self.kv_layer, memory
        done: list[torch.Tensor] = []
        for row, (slot, position) in enumerate(zip(batch.decode_slots, batch.decode_starts, strict=True)):
            rings.write(layer, slot, position, keys_values[:, row : row + 1])
            key, value = rings.seen(layer, slot, position).chunk(2)
            part = attend_all(query[row].unsqueeze(1), key, value, self.scale)
            done.append(join([part], self.sinks).transpose(0, 1))
        for span in batch.spans:
            new = keys_values[:, span.begin : span.end]
            key, value = torch.cat((rings.tail(layer, span.slot, span.start), new), dim=1).chunk(2)
            own = query[span.begin : span.end].transpose(0, 1)
            part = attend_window(own, key, value, rings.shape.window, self.scale)
            done.append(join([part], self.sinks).transpose(0, 1))
            rings.write(layer, span.slot, span.start, new)
        return done[0] if len(done) == 1 else torch.cat(done)


def _add(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x.add_(bias)


def _gate_last(heads: int, head_dim: int, rows: int) -> torch.Tensor:
    """Stored rows in the order q, k, v, gate. Stored is, for each head, its query then its gate; then k and
    v.
    """
    per_head = torch.arange(2 * heads * head_dim).view(heads, 2, head_dim)
    key_value = torch.arange(2 * heads * head_dim, rows)
    return torch.cat((per_head[:, 0].flatten(), key_value, per_head[:, 1].flatten()))


class Mlp:
    """A plain SwiGLU MLP."""

    def __init__(self, source: Source, prefix: str, hidden: int, inner: int) -> None:
        parts = [(prefix + f"{part}_proj.weight", inner) for part in ("gate", "up")]
        self.gate_up = source.joined(parts, hidden)
        self.down = source.dense(prefix + "down_proj.weight", hidden, inner)

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        return project(gated(project(x, self.gate_up, batch.decode)), self.down, batch.decode)


class Moe:
    """A router, the routed experts of one layer, and a shared expert behind a sigmoid gate where the family
    has one.
    """

    def __init__(self, config: ModelConfig, source: Source, prefix: str, moe_layer: int) -> None:
        hidden, inner = config.hidden, config.shared_intermediate
        self.experts, self.per_token = config.experts, config.experts_per_token
        self.renormalise = config.renormalise
        self.moe_layer = moe_layer
        self.shared = inner
        router = prefix + config.moe_names.router
        parts = [(router + ".weight", config.experts)]
        self.bias = source.dense(router + ".bias", config.experts) if config.biased_moe else None
        if inner:
            shared = prefix + "shared_expert."
            parts += [(shared + "gate_proj.weight", inner), (shared + "up_proj.weight", inner)]
            parts.append((prefix + "shared_expert_gate.weight", 1))
            self.down = source.dense(shared + "down_proj.weight", hidden, inner)
        self.into = source.joined(
            parts, hidden
        )  # router | shared gate | shared up | gate of the shared expert

    def __call__(self, x: torch.Tensor, batch: Batch, pool: RoutedExperts) -> torch.Tensor:
        flat = project(x, self.into, batch.decode)
        weights, chosen = self.route(_add(flat[:, : self.experts], self.bias))
        out = pool.forward(self.moe_layer, x, chosen, weights.to(x.dtype), batch.decode)
        if self.shared:
            inner = gated(flat[:, self.experts : self.experts + 2 * self.shared])
            out = out.addcmul_(project(inner, self.down, batch.decode), torch.sigmoid(flat[:, -1:]))
        return out

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights float32 and experts int64 of each row, [rows, k], best first. logits [rows, experts]."""
        scores = torch.softmax(logits.float(), dim=-1)
        weights, chosen = torch.topk(scores, self.per_token, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, chosen
