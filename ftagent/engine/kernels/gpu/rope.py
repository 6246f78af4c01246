"""Prefill rows of an attention layer: norms of queries and keys, rotary embedding, and keys and values to
their places in the KV pages, in one pass.

Knows places, no pages or requests. Reference: `models.layers.Attention` on the CPU.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

TILE_ELEMENTS = 2048  # of one program: rows x padded head


@triton.jit(do_not_specialize=["rows"])
def _qk_norm_rope(  # noqa: PLR0913
    flat, norms, cos, sin, positions, places, query, kv, rows, stride, tokens, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    NORMED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one head: of q into `query`, of k and v into `kv`."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    head = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dims = tl.arange(0, TILE)
    live = row < rows
    inside = live[:, None] & (dims < DIM)[None, :]
    source = flat + row[:, None] * stride + head * DIM
    stored = tl.load(source + dims[None, :], mask=inside, other=0.0)
    if head < HEADS + KV_HEADS:
        x = stored.to(tl.float32)
        if NORMED:
            inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / DIM + eps)
            x *= inverse[:, None] * tl.load(norms + head * DIM + dims, mask=dims < DIM, other=0.0)[None, :]
        if ROTARY > 0:
            partner = tl.where(dims < ROTARY // 2, dims + ROTARY // 2, dims - ROTARY // 2)
            turns = dims < ROTARY
            turned = live[:, None] & turns[None, :]
            angle = tl.load(positions + row, mask=live, other=0)[:, None] * ROTARY + dims[None, :]
            other = tl.load(source + partner[None, :], mask=turned, other=0.0).to(tl.float32)
            if NORMED:
                weight = tl.load(norms + head * DIM + partner, mask=turns, other=0.0)
                other *= inverse[:, None] * weight[None, :]
            x = x * tl.load(cos + angle, mask=turned, other=1.0)
            x += other * tl.load(sin + angle, mask=turned, other=0.0)
        stored = x.to(stored.dtype)
    if head < HEADS:
        tl.store(query + (row[:, None] * HEADS + head) * DIM + dims[None, :], stored, mask=inside)
    else:
        place = (head - HEADS).to(tl.int64) * tokens + tl.load(places + row, mask=live, other=0)
        tl.store(kv + place[:, None] * DIM + dims[None, :], stored, mask=inside)


def qk_norm_rope(
    flat: torch.Tensor,
    spec: AttentionSpec,
    norms: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    kv: torch.Tensor,
) -> torch.Tensor:
    """Queries T [n, heads, d] of the rows; keys and values go to `kv`.

    flat T [n, at least (heads + 2 kv_heads) * d], dense rows, is q | k | v | ...; norms float32 [heads +
    kv_heads, d], with the 1 of centred norms in it, None where `spec` has none; cos and sin float32 [context,
    rotary], sin with the sign of the rotation (`models.layers.Rope`); positions and places int64 [n], dense;
    kv T [2 * kv_heads, tokens, d] contiguous. Computed in float32, rounded once.
    """
    rows, tile = len(flat), triton.next_power_of_2(spec.head_dim)
    query = torch.empty(rows, spec.heads, spec.head_dim, dtype=flat.dtype, device=flat.device)
    norms = cos if norms is None else norms  # some memory: it is not read then
    block = max(TILE_ELEMENTS // tile, 1)
    launch(
        _qk_norm_rope, (triton.cdiv(rows, block), spec.heads + 2 * spec.kv_heads),
        flat, norms, cos, sin, positions, places, query, kv, rows, flat.stride(0), kv.shape[1], spec.eps,
        HEADS=spec.heads, KV_HEADS=spec.kv_heads, DIM=spec.head_dim, ROTARY=spec.rotary,
        NORMED=spec.normed, ROWS=block, TILE=tile,
    )  # fmt: skip
    return query
