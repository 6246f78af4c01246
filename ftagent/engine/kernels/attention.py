"""Causal attention of one request over its stored keys and values, in parts joined by their log-sum-exp.

A window bounds how far back a row sees. A sink is one more score of a head, with no value behind it: it takes
its share of the softmax and gives nothing (arXiv 2309.17453; learnt ones as in gpt-oss).

Runs torch's fused attention: on the CPU in any dtype, on CUDA devices of capability 8.0 and later in bfloat16
and float16 for heads of up to 256 in steps of 8, and for long prompts cuDNN's where that is faster. What is
left, float32 on CUDA above all, is written out in blocks of rows. Knows no pages: callers hand in keys and
values.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import NamedTuple

import torch

log = logging.getLogger(__name__)

SCORE_BYTES = 256 * 2**20  # of the largest block of scores that attention without a fused kernel makes
WINDOW_ROWS = 128  # that attention with a window takes at a time
FLASH_CAPABILITY = (8, 0)
FLASH_HEAD = 256  # the widest head of torch's flash attention; sizes are multiples of 8
CUDNN_CAPABILITY = (9, 0)  # from here on cuDNN's attention takes about half as long as flash attention
LONG = 1 << 27  # scores (rows x keys) from which on that pays for the plan that cuDNN makes for each new size


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
    if query.is_cuda:
        return _on_device(query, key, value, False, scale)
    heads, rows, head_dim = query.shape
    folded = query.reshape(key.shape[0], -1, head_dim)
    part = _fused(folded, key, value, False, scale)
    return Partial(part.out.reshape(heads, rows, head_dim), part.lse.reshape(heads, rows))


def attend_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Partial:
    """Row i of query [heads, rows, d] sees keys 0..i of key [kv_heads, rows, d]."""
    if query.is_cuda:
        return _on_device(query, key, value, True, scale)
    group = query.shape[0] // key.shape[0]
    return _fused(
        query, key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0), True, scale
    )


def attend_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, scale: float
) -> Partial:
    """Row i of query [heads, rows, d] sees the last `window` of keys 0..past + i of key [kv_heads, past +
    rows, d]; past is at most window - 1. The work grows with rows * window.
    """
    heads, rows, _ = query.shape
    past = key.shape[1] - rows
    wide_key, wide_value = key.float(), value.float()
    index = torch.arange(past + rows, device=query.device)
    out = torch.empty_like(query)
    lse = torch.empty(heads, rows, dtype=torch.float32, device=query.device)
    for begin in range(0, rows, WINDOW_ROWS):
        end = min(begin + WINDOW_ROWS, rows)
        first, last = max(past + begin + 1 - window, 0), past + end
        own, seen = index[past + begin : last].unsqueeze(1), index[first:last]
        hidden = (seen > own) | (seen <= own - window)
        keys, values = wide_key[:, first:last], wide_value[:, first:last]
        part = _written_out(query[:, begin:end], keys, values, hidden, scale)
        out[:, begin:end], lse[:, begin:end] = part
    return Partial(out, lse)


def merge(first: Partial, second: Partial) -> Partial:
    """Attention over the union of two disjoint sets of keys; `out` in float32."""
    lse = torch.logaddexp(first.lse, second.lse)
    out = first.out.float() * (first.lse - lse).exp().unsqueeze(-1)
    return Partial(out.addcmul_(second.out.float(), (second.lse - lse).exp().unsqueeze(-1)), lse)


def join(parts: list[Partial], sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Attention over the union of disjoint sets of keys: [heads, rows, head_dim]. `sinks` float32 [heads]."""
    if len(parts) == 1 and sinks is None:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])  # [parts, heads, rows]
    if sinks is not None:
        lse = torch.cat((lse, sinks.view(1, -1, 1).expand(1, *lse.shape[1:])))
    shares = torch.softmax(lse, dim=0).unsqueeze(-1)[: len(parts)]
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


def _on_device(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> Partial:
    """torch's flash attention, which takes fewer KV heads than query heads as they are, or the plain form."""
    head_dim = query.shape[2]
    half = query.dtype in (torch.bfloat16, torch.float16)
    if not half or head_dim % 8 or head_dim > FLASH_HEAD or not _has_flash(query.device):
        return attend_plain(query, key, value, causal, scale)
    if query.shape[1] * key.shape[1] >= LONG and _has_cudnn(query.device):
        try:
            return _by_cudnn(query, key, value, causal, scale)
        except RuntimeError as error:  # it has no plan for these sizes
            log.debug("cuDNN's attention refuses %s: %s", tuple(query.shape), error)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), 0.0, causal, scale=scale
    )
    return Partial(out.squeeze(0), lse.reshape(query.shape[:2]))


def _by_cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> Partial:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), None, True, 0.0, causal, False, scale=scale
    )
    return Partial(out.squeeze(0), lse.reshape(query.shape[:2]))


@cache
def _has_cudnn(device: torch.device) -> bool:
    """Tried out once: not every build of torch brings a cuDNN that does this."""
    if torch.cuda.get_device_capability(device) < CUDNN_CAPABILITY:
        return False
    query, key = (torch.zeros(heads, 64, 64, dtype=torch.bfloat16, device=device) for heads in (2, 1))
    try:
        _by_cudnn(query, key, key, True, 1.0)
    except RuntimeError as error:
        log.info("cuDNN's attention is not there (%s): long prompts take flash attention", error)
        return False
    return True


@cache
def _has_flash(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY


def attend_plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> Partial:
    """Attention written out in float32, in blocks of rows whose scores take at most SCORE_BYTES.

    Shapes as for `attend_all` and, with `causal`, `attend_causal`; `out` in the dtype of the query.
    """
    heads, rows, _ = query.shape
    columns = key.shape[1]
    wide_key, wide_value = key.float(), value.float()
    index = torch.arange(columns, device=query.device)
    out = torch.empty_like(query)
    lse = torch.empty(heads, rows, dtype=torch.float32, device=query.device)
    block = max(SCORE_BYTES // (4 * heads * columns), 1)
    for begin in range(0, rows, block):
        end = min(begin + block, rows)
        hidden = index > index[begin:end].unsqueeze(1) if causal else None
        part = _written_out(query[:, begin:end], wide_key, wide_value, hidden, scale)
        out[:, begin:end], lse[:, begin:end] = part
    return Partial(out, lse)


def _written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor | None, scale: float
) -> Partial:
    """Row i of query [heads, rows, d] sees the keys float32 [kv_heads, n, d] that `hidden` [rows, n] leaves,
    one at least. `out` is float32.
    """
    heads, rows, head_dim = query.shape
    kv_heads, columns = key.shape[:2]
    some = query.float().reshape(kv_heads, -1, head_dim)  # [kv_heads, group * rows, d]
    scores = torch.bmm(some, key.transpose(1, 2)).mul_(scale).view(heads, rows, columns)
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    total = torch.logsumexp(scores, dim=-1)
    shares = scores.sub_(total.unsqueeze(-1)).exp_().view(kv_heads, -1, columns)
    return Partial(torch.bmm(shares, value).view(heads, rows, head_dim), total)
