"""A prefill step with the kernels of `kernels.gpu`: the layers of `decoder` once more, for rows on a device.

Every layer does one span of the step after the other, so that a chunk of any length needs little more memory
than its rows; the projections of a span are gone when the next one starts. Nothing here waits for the device.
Queries of a span see its own keys and those of earlier spans, which are in the pages by then. States that are
kept inside a span cut the delta rule there and nothing else: experts see all rows of the step at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftagent.engine.context.pages import KvStorage
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.context.windows import WindowRings
from ftagent.engine.experts.routed import RoutedExperts
from ftagent.engine.kernels.attention import attend_all, attend_causal, attend_window, join
from ftagent.engine.kernels.experts import gated
from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.kernels.gpu.delta_rows import delta_rows, gated_norm
from ftagent.engine.kernels.gpu.norm import rms_norm
from ftagent.engine.kernels.gpu.rope import qk_norm_rope
from ftagent.engine.kernels.gpu.scan import delta_prefill
from ftagent.engine.models.batch import Batch, Span
from ftagent.engine.models.decoder import Block, Pools, Weights
from ftagent.engine.models.gated_delta_net import GatedDeltaNet
from ftagent.engine.models.latent_attention import LatentAttention
from ftagent.engine.models.layers import (
    Attention,
    Mlp,
    Moe,
    ProjectionNorm,
    RmsNorm,
    Rope,
    WindowAttention,
)
from ftagent.engine.models.sigmoid_moe import SigmoidMoe


def prefill(weights: Weights, rope: Rope, pools: Pools, batch: Batch) -> torch.Tensor:
    """Hidden rows T [rows, H] behind the last block; advances KV pages and state slots."""
    x = F.embedding(batch.tokens, weights.embedding)
    for block in weights.blocks:
        x += _mix(block, _normed(block.mixer_norm, x), batch, rope, pools)
        x += _feed(block, _normed(block.mlp_norm, x), batch, pools.experts)
    return x


def _normed(norm: RmsNorm, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, norm.weight, norm.eps)


def _mix(block: Block, x: torch.Tensor, batch: Batch, rope: Rope, pools: Pools) -> torch.Tensor:
    if isinstance(block.mixer, GatedDeltaNet):
        return mix_delta(block.mixer, x, batch, pools.states)
    if isinstance(block.mixer, WindowAttention):
        return mix_window(block.mixer, x, batch, pools.states.windows, rope)
    if isinstance(block.mixer, LatentAttention):
        return mix_latent(block.mixer, x, batch, pools.kv, rope)
    return mix_attention(block.mixer, x, batch, pools.kv, rope)


def _feed(block: Block, x: torch.Tensor, batch: Batch, pool: RoutedExperts | None) -> torch.Tensor:
    if isinstance(block.mlp, Mlp):
        return feed_dense(block.mlp, x, batch)
    assert pool is not None, "a model with MoE layers has an expert pool"
    if isinstance(block.mlp, SigmoidMoe):
        return feed_scored(block.mlp, x, batch, pool)
    return feed_experts(block.mlp, x, batch, pool)


def attention_spec(
    layer: Attention | WindowAttention, rope: Rope
) -> tuple[AttentionSpec, torch.Tensor | None]:
    """A layer as the kernels see it, and its norms float32 [heads + kv_heads, head_dim] where each head has
    its own.
    """
    norm = layer.norm if isinstance(layer.norm, RmsNorm) else None
    eps, normed = (norm.eps, True) if norm else (0.0, False)
    shape = (layer.heads, layer.kv_heads, layer.head_dim, rope.size)
    return AttentionSpec(*shape, layer.scale, eps, layer.gated, normed), norm.weight if norm else None


def _into(layer: Attention | WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """q | k | v | gate of normed rows x, with the norms that are not of single heads applied."""
    flat = F.linear(x, layer.into, layer.into_bias)
    if isinstance(layer.norm, ProjectionNorm):
        heads = layer.heads + layer.kv_heads
        query_key = flat[:, : heads * layer.head_dim].view(len(x), heads, layer.head_dim)
        query_key.copy_(layer.norm.float32(query_key))
    return flat


def mix_attention(layer: Attention, x: torch.Tensor, batch: Batch, kv: KvStorage, rope: Rope) -> torch.Tensor:
    """The attention layer on normed rows x [rows, H], which are overwritten with the result."""
    spec, norms = attention_spec(layer, rope)
    for span in batch.spans:
        flat = _into(layer, x[span.rows])
        positions, places = batch.positions[span.rows], batch.places[span.rows]
        stored = kv.layer(layer.kv_layer)
        query = qk_norm_rope(flat, spec, norms, rope.cos, rope.sin, positions, places, stored)
        _project(layer, _attend(layer, query, span, kv), flat, x[span.rows])
    return x


def mix_window(
    layer: WindowAttention, x: torch.Tensor, batch: Batch, rings: WindowRings, rope: Rope
) -> torch.Tensor:
    """The window layer on normed rows x [rows, H], which are overwritten with the result."""
    spec, norms = attention_spec(layer, rope)
    for span in batch.spans:
        flat = _into(layer, x[span.rows])
        new = flat.new_empty(2 * layer.kv_heads, len(flat), layer.head_dim)
        positions, places = batch.positions[span.rows], torch.arange(len(flat), device=x.device)
        query = qk_norm_rope(flat, spec, norms, rope.cos, rope.sin, positions, places, new)
        past = rings.tail(layer.kv_layer, span.slot, span.start)
        key, value = torch.cat((past, new), dim=1).chunk(2)
        part = attend_window(query.transpose(0, 1), key, value, rings.shape.window, layer.scale)
        rings.write(layer.kv_layer, span.slot, span.start, new)
        out = join([part], layer.sinks).transpose(0, 1).reshape(len(query), -1)
        _project(layer, out, flat, x[span.rows])
    return x


def mix_latent(
    layer: LatentAttention, x: torch.Tensor, batch: Batch, kv: KvStorage, rope: Rope
) -> torch.Tensor:
    """The latent attention layer on normed rows x [rows, H], which are overwritten with the result."""
    for span in batch.spans:
        turn = rope.at(batch.positions[span.rows])
        x[span.rows] = layer.run_span(x[span.rows], batch.places[span.rows], span, kv, rope, turn)
    return x


def _project(
    layer: Attention | WindowAttention, out: torch.Tensor, flat: torch.Tensor, x: torch.Tensor
) -> None:
    """x = the output projection of the heads' values, gated where the family does so."""
    if layer.gated:
        out = out * torch.sigmoid(flat[:, (layer.heads + 2 * layer.kv_heads) * layer.head_dim :])
    torch.matmul(out, layer.out.t(), out=x)
    if layer.out_bias is not None:
        x += layer.out_bias


def _attend(layer: Attention, query: torch.Tensor, span: Span, kv: KvStorage) -> torch.Tensor:
    """query [rows, heads, d] over the past and the span itself, both in the pages: [rows, heads * d]."""
    by_head = query.transpose(0, 1)
    parts = [attend_causal(by_head, *kv.read_pairs(layer.kv_layer, span.own), layer.scale)]
    if span.past:
        parts.append(attend_all(by_head, *kv.read_pairs(layer.kv_layer, span.past), layer.scale))
    return join(parts, layer.sinks).transpose(0, 1).reshape(len(query), -1)


def mix_delta(layer: GatedDeltaNet, x: torch.Tensor, batch: Batch, states: StatePool) -> torch.Tensor:
    """The gated delta net layer on normed rows x [rows, H], which are overwritten with the result."""
    spec = layer.shape
    conv, recurrent = states.conv[layer.state_layer], states.recurrent[layer.state_layer]
    exact = x.dtype == torch.float32
    for span in batch.spans:
        flat = F.linear(x[span.rows], layer.into)  # q | k | v | z | b | a
        shape = (len(flat), spec.value_heads, spec.value_dim)
        found = torch.empty(shape, dtype=torch.float32, device=flat.device)
        for rows in span.pieces():
            inputs = delta_rows(flat[rows], spec, layer.taps, layer.rate, layer.bias, conv[span.slot])
            delta_prefill(inputs, recurrent[span.slot], exact, found[rows])
            if span.start + rows.stop in span.marks:
                states.keep(layer.state_layer, span.slot, span.start + rows.stop)
        normed = gated_norm(found, flat, spec, layer.norm.weight)
        torch.matmul(normed, layer.out.t(), out=x[span.rows])
    return x


def feed_dense(layer: Mlp, x: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The plain MLP on normed rows x [rows, H], which are overwritten with the result."""
    for span in batch.spans:
        inner = gated(F.linear(x[span.rows], layer.gate_up))
        torch.matmul(inner, layer.down.t(), out=x[span.rows])
    return x


def feed_experts(layer: Moe, x: torch.Tensor, batch: Batch, pool: RoutedExperts) -> torch.Tensor:
    """Router, routed experts on all rows at once (their weights may cross the link), shared expert."""
    rows = len(x)
    weights = x.new_empty(rows, layer.per_token)
    chosen = torch.empty(rows, layer.per_token, dtype=torch.int64, device=x.device)
    router, shared = layer.into[: layer.experts], layer.into[layer.experts :]
    for span in batch.spans:
        weights[span.rows], chosen[span.rows] = layer.route(F.linear(x[span.rows], router, layer.bias))
    out = pool.forward(layer.moe_layer, x, chosen, weights, 0)
    if layer.shared:
        for span in batch.spans:
            flat = F.linear(x[span.rows], shared)  # gate | up | gate of the shared expert
            inner = F.linear(gated(flat[:, :-1]), layer.down)
            out[span.rows].addcmul_(inner, torch.sigmoid(flat[:, -1:]))
    return out


def feed_scored(layer: SigmoidMoe, x: torch.Tensor, batch: Batch, pool: RoutedExperts) -> torch.Tensor:
    """The same for experts that are scored by sigmoids; the shared expert has no gate."""
    rows = len(x)
    weights = x.new_empty(rows, layer.per_token)
    chosen = torch.empty(rows, layer.per_token, dtype=torch.int64, device=x.device)
    for span in batch.spans:
        weights[span.rows], chosen[span.rows] = layer.route(F.linear(x[span.rows].float(), layer.router))
    out = pool.forward(layer.moe_layer, x, chosen, weights, 0)
    if layer.shared is not None:
        for span in batch.spans:
            inner = gated(F.linear(x[span.rows], layer.shared.gate_up))
            out[span.rows].add_(F.linear(inner, layer.shared.down))
    return out
