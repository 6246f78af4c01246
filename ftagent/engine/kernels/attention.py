"""Causal attention of one request over its stored keys and values, in parts joined by their log-sum-exp.

Reference for other devices; on the CPU it runs torch's fused attention. Knows no pages: callers hand in keys
and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Partial(NamedTuple):
    """Attention over some of the keys: out [heads, rows, head_dim], lse [heads, rows] (log of the sum of
    exponents).
    """

    out: torch.Tensor
    lse: torch.Tensor


def attend_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Partial:
    """Every row of query [heads, rows, d] sees every key [kv_heads, n, d]; heads is a multiple of kv_heads.

    The query heads that share a KV head are folded into rows, so keys and values are not repeated.
    """
    heads, rows, head_dim = query.shape
    folded = query.reshape(key.shape[0], -1, head_dim)
    part = _fused(folded, key, value, False, scale)
    return Partial(part.out.reshape(heads, rows, head_dim), part.lse.reshape(heads, rows))


def attend_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Partial:
    """Row i of query [heads, rows, d] sees keys 0..i of key [kv_heads, rows, d]."""
    group = query.shape[0] // key.shape[0]
    return _fused(
        query, key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0), True, scale
    )


def join(parts: list[Partial]) -> torch.Tensor:
    """Attention over the union of disjoint sets of keys: [heads, rows, head_dim]."""
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])  # [parts, heads, rows]
    shares = torch.softmax(lse, dim=0).unsqueeze(-1)
    joined = parts[0].out.float() * shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        joined = joined.addcmul_(part.out.float(), share)
    return joined.to(parts[0].out.dtype)


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> Partial:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), 0.0, causal, scale=scale
    )
    return Partial(out.squeeze(0), lse.squeeze(0))
