"""Attention of decode rows over KV pages: norms, rotary embedding, the new token's page entry, and the gate.

The context of a row is cut into splits that run side by side, each over the same number of blocks, with an
online softmax (Dao et al., "FlashAttention", arXiv 2205.14135; splits as in "Flash-Decoding"); a second
kernel joins them by their log-sum-exp. Where the cuts are depends only on the row's position and on the
number of splits, so a row's result is the same bits in any company. Where a window bounds what a row sees,
its pages are a ring (`context.windows`): the new token takes the place of the one that has just left. Bound
by memory: keys and values are read once for all query heads that share them. The reference is
`kernels.attention`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import INTERPRETED, launch, let_next_start, wait_for_inputs

PAGE = tl.constexpr(64)  # tokens; context.pages.PAGE_TOKENS
GROUP_TILE = tl.constexpr(16)  # query heads of a KV head, padded to the least that a tensor core takes
LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK_BYTES = 16384  # of keys, and again of values, in one turn of the loop
MAX_SPLITS = 128
PROGRAMS_A_PROCESSOR = 2
JOIN_DIMS = 64


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape of an attention layer. `rotary` dimensions of a head are turned; gated: one gate a query head;
    normed: queries and keys have norms of each head; window: tokens that one sees, itself included, 0 for
    all; sinks: each head has one score more, without a value.

    Raises ValueError for a shape that the kernels do not do.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    scale: float
    eps: float
    gated: bool
    normed: bool = True
    window: int = 0
    sinks: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.heads // self.kv_heads > GROUP_TILE.value:
            raise ValueError(
                f"{self.heads} query heads on {self.kv_heads} KV heads: 1 to 16 on each can be done"
            )
        if not 16 <= self.head_dim <= 256 or self.head_dim % 8:
            raise ValueError(f"a head of {self.head_dim}: multiples of 8 from 16 to 256 can be done")
        if self.rotary % 2 or not 0 <= self.rotary <= self.head_dim:
            raise ValueError(f"{self.rotary} rotary dimensions of {self.head_dim}: must be even and no more")
        if self.window % PAGE.value:
            raise ValueError(f"a window of {self.window} tokens: whole pages of {PAGE.value} can be done")

    @property
    def width(self) -> int:
        """Columns of a row of queries, keys, values and gates."""
        gates = self.heads if self.gated else 0
        return (self.heads + 2 * self.kv_heads + gates) * self.head_dim


def split_count(capacity: int, kv_heads: int, processors: int) -> int:
    """Splits for contexts of up to `capacity` tokens.

    Enough that one row alone puts two programs on each multiprocessor. It is the same for every batch size:
    otherwise a row's bits would depend on its company. More rows only make more programs, and those without
    a block return at once.
    """
    pages = -(-capacity // PAGE.value)
    wanted = -(-PROGRAMS_A_PROCESSOR * processors // kv_heads)
    return max(1, min(wanted, pages, MAX_SPLITS))


def block_tokens(head_dim: int, itemsize: int) -> int:
    """Tokens in one turn of the loop: a power of two from 16 to the size of a page."""
    padded = 1 << (head_dim - 1).bit_length()
    return max(16, min(PAGE.value, BLOCK_BYTES // (padded * itemsize)))


@triton.jit
def _first_block(
    position, split, SPLITS: tl.constexpr, BLOCK: tl.constexpr, APART: tl.constexpr, WINDOW: tl.constexpr
):
    """First block of a split, first of the next one, and all blocks of a row up to `position`."""
    if APART:  # the new token is in none of them
        if WINDOW > 0:
            position = tl.minimum(position, WINDOW)
        blocks = tl.cdiv(position, BLOCK)
        each = tl.cdiv(blocks, SPLITS - 1)
    else:
        if WINDOW > 0:
            position = tl.minimum(position, WINDOW - 1)
        blocks = position // BLOCK + 1
        each = tl.cdiv(blocks, SPLITS)
    first = split * each
    return first, tl.minimum(first + each, blocks), blocks


@triton.jit
def _turned(  # noqa: PLR0913
    places, norm, dims, angle_cos, angle_sin, eps, inside,
    DIM: tl.constexpr, ROTARY: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Heads [n, dims] at `places` [n, 1], normed by rows of `norm` [n, 1] and rotated; float32."""
    head = tl.load(places + dims, mask=inside, other=0.0)
    if NORMED:
        weight = tl.load(norm + dims, mask=inside, other=0.0)
    if ROTARY > 0:  # all that is to be loaded is asked for before the first sum
        other = tl.where(dims < ROTARY // 2, dims + ROTARY // 2, dims - ROTARY // 2)
        turns = inside & (dims < ROTARY)
        partner = tl.load(places + other, mask=turns, other=0.0)
        if NORMED:
            partner_weight = tl.load(norm + other, mask=turns, other=0.0)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(head * head, axis=1) / DIM + eps)[:, None]
        head = head * inverse * weight
        if ROTARY > 0:
            partner = partner * inverse * partner_weight
    if ROTARY > 0:
        head = head * angle_cos + partner * angle_sin
    return head


@triton.jit
def _load_block(
    key_plane, value_plane, page, tokens, position, dims, DIM: tl.constexpr, WINDOW: tl.constexpr
):
    """Keys and values [BLOCK, dims] of a KV head at `tokens` [BLOCK] of one page, zeros from `position` on;
    and which tokens are seen."""
    seen = tokens < position
    if WINDOW > 0:  # the new token's place holds the one that has left
        seen = (tokens < tl.minimum(position, WINDOW)) & (tokens != position % WINDOW)
    wanted = seen[:, None] & (dims < DIM)[None, :]
    places = (page.to(tl.int64) * PAGE + tokens % PAGE)[:, None] * DIM + dims[None, :]
    keys = tl.load(key_plane + places, mask=wanted, other=0.0, cache_modifier=".cg")
    values = tl.load(value_plane + places, mask=wanted, other=0.0, cache_modifier=".cg")
    return keys, values, seen


@triton.jit
def _new_token(  # noqa: PLR0913
    row_start, norms, kv_head, heads, real, dims, angle_cos, angle_sin, eps, dtype: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    """The token's queries [GROUP_TILE, dims] of one KV head, its key [1, dims] and its value [dims]."""
    inside = dims < DIM
    query = _turned(
        row_start + heads[:, None] * DIM, norms + heads[:, None] * DIM, dims[None, :],
        angle_cos, angle_sin, eps, real & inside[None, :], DIM, ROTARY, NORMED,
    )  # fmt: skip
    key_head = HEADS + kv_head + tl.zeros([1, 1], tl.int32)
    key = _turned(
        row_start + key_head * DIM, norms + key_head * DIM, dims[None, :],
        angle_cos, angle_sin, eps, inside[None, :], DIM, ROTARY, NORMED,
    )  # fmt: skip
    value = tl.load(row_start + (HEADS + KV_HEADS + kv_head) * DIM + dims, mask=inside, other=0.0)
    return query.to(dtype), key.to(dtype), value.to(dtype)


@triton.jit
def _start(query, key, value, owner, factor):
    """The online softmax over the new token alone where this split owns it, over nothing elsewhere."""
    query, value = query.to(tl.float32), value.to(tl.float32)
    own = tl.sum(query * key.to(tl.float32), axis=1) * factor
    top = tl.where(owner, own, float("-inf"))
    total = tl.where(owner, 1.0, 0.0) + tl.zeros_like(own)
    sums = tl.where(owner, value, 0.0)[None, :] + tl.zeros_like(query)
    return top, total, sums


@triton.jit
def _fold(  # noqa: PLR0913
    query, keys, values, seen, top, total, sums, factor, WIDEN: tl.constexpr
):
    """One turn of the online softmax to base 2: highest score, sum of powers, weighted values.

    The interpreter gets bfloat16 products wrong, so it takes them wide.
    """
    stored = query.dtype
    if WIDEN:
        query, keys, values = query.to(tl.float32), keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * factor
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1))
    shares = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(shares, axis=1)
    rounded = shares.to(stored)
    if WIDEN:
        rounded = rounded.to(tl.float32)
    sums = tl.dot(rounded, values, sums * fade[:, None], input_precision="ieee")
    return higher, total, sums


@triton.jit
def _attend_new(  # noqa: PLR0913
    row_start, norms, positions_cos, positions_sin, pages_of_row, key_plane, value_plane, partial, lse,
    token, row, kv_head, eps, factor, dtype: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    ROTARY: tl.constexpr, NORMED: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The split of the new token: it goes to its page, and its value is what it attends to."""
    group: tl.constexpr = HEADS // KV_HEADS
    dims, member = tl.arange(0, DIM_TILE), tl.arange(0, GROUP_TILE)
    inside, real = dims < DIM, (member < group)[:, None]
    angle_cos = tl.load(positions_cos + dims, mask=dims < ROTARY, other=1.0)[None, :]
    angle_sin = tl.load(positions_sin + dims, mask=dims < ROTARY, other=0.0)[None, :]
    place = tl.load(pages_of_row + token // PAGE).to(tl.int64) * PAGE + token % PAGE
    wait_for_inputs(PDL)
    heads = kv_head * group + member
    query, key, value = _new_token(
        row_start, norms, kv_head, heads, real, dims, angle_cos, angle_sin, eps, dtype,
        HEADS, KV_HEADS, DIM, ROTARY, NORMED,
    )  # fmt: skip
    tl.store(key_plane + place * DIM + dims[None, :], key, mask=inside[None, :])
    tl.store(value_plane + place * DIM + dims, value, mask=inside)
    target = (row * HEADS + heads) * SPLITS + SPLITS - 1
    own = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * factor
    tl.store(lse + target, own, mask=member < group)
    sums = value.to(tl.float32)[None, :] + tl.zeros([GROUP_TILE, 1], tl.float32)
    tl.store(partial + target[:, None] * DIM + dims[None, :], sums, mask=real & inside[None, :])


@triton.jit
def _attend(  # noqa: PLR0913
    flat, norms, cos, sin, positions, page_table, kv, partial, lse, live,
    eps, scale, width, pages, tokens,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    ROTARY: tl.constexpr, NORMED: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    WIDEN: tl.constexpr, STAGES: tl.constexpr, APART: tl.constexpr, WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if row >= tl.load(live):
        return
    position = tl.load(positions + row)
    token = position  # its place in the pages of the row
    if WINDOW > 0:
        token = position % WINDOW
    pages_of_row = page_table + row * pages
    key_plane = kv + kv_head * tokens.to(tl.int64) * DIM
    value_plane = kv + (KV_HEADS + kv_head) * tokens.to(tl.int64) * DIM
    factor = scale * LOG2_E
    if APART:
        if split == SPLITS - 1:
            _attend_new(
                flat + row * width, norms, cos + position * ROTARY, sin + position * ROTARY, pages_of_row,
                key_plane, value_plane, partial, lse, token, row, kv_head, eps, factor,
                kv.dtype.element_ty, HEADS, KV_HEADS, DIM, DIM_TILE, ROTARY, NORMED, SPLITS, PDL,
            )  # fmt: skip
            return
    first, last, blocks = _first_block(position, split, SPLITS, BLOCK, APART, WINDOW)
    if first >= blocks:
        return
    group: tl.constexpr = HEADS // KV_HEADS
    dims = tl.arange(0, DIM_TILE)
    inside = dims < DIM
    within = tl.arange(0, BLOCK)
    # What earlier steps wrote needs no waiting: the first block is on its way before the queries are there.
    page = tl.load(pages_of_row + first * BLOCK // PAGE)
    past = first * BLOCK + within
    keys, values, seen = _load_block(key_plane, value_plane, page, past, position, dims, DIM, WINDOW)
    angle_cos = tl.load(cos + position * ROTARY + dims, mask=dims < ROTARY, other=1.0)[None, :]
    angle_sin = tl.load(sin + position * ROTARY + dims, mask=dims < ROTARY, other=0.0)[None, :]
    member = tl.arange(0, GROUP_TILE)
    heads = kv_head * group + member
    real = (member < group)[:, None]
    wait_for_inputs(PDL)

    if APART:
        query = _turned(
            flat + row * width + heads[:, None] * DIM, norms + heads[:, None] * DIM, dims[None, :],
            angle_cos, angle_sin, eps, real & inside[None, :], DIM, ROTARY, NORMED,
        ).to(kv.dtype.element_ty)  # fmt: skip
        top = tl.full([GROUP_TILE], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_TILE], tl.float32)
        sums = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    else:
        query, key, value = _new_token(
            flat + row * width, norms, kv_head, heads, real, dims, angle_cos, angle_sin, eps,
            kv.dtype.element_ty, HEADS, KV_HEADS, DIM, ROTARY, NORMED,
        )  # fmt: skip
        # The split with the last block owns the new token: it starts from it and writes it to the page.
        owner = last == blocks
        if owner:
            place = tl.load(pages_of_row + token // PAGE).to(tl.int64) * PAGE + token % PAGE
            tl.store(key_plane + place * DIM + dims[None, :], key, mask=inside[None, :])
            tl.store(value_plane + place * DIM + dims, value, mask=inside)
        top, total, sums = _start(query, key, value, owner, factor)
    top, total, sums = _fold(query, keys, values, seen, top, total, sums, factor, WIDEN)

    if (not APART) | (first + 1 < last):  # what a loop sets up is dear to a split of one block
        # The page is looked up one turn ahead: in front of the loads it would halve the loads in flight.
        page = tl.load(pages_of_row + tl.minimum(first + 1, last - 1) * BLOCK // PAGE)
        for block in tl.range(first + 1, last, num_stages=STAGES):
            past = block * BLOCK + within
            keys, values, seen = _load_block(key_plane, value_plane, page, past, position, dims, DIM, WINDOW)
            page = tl.load(pages_of_row + tl.minimum(block + 1, last - 1) * BLOCK // PAGE)
            top, total, sums = _fold(query, keys, values, seen, top, total, sums, factor, WIDEN)

    target = (row * HEADS + heads) * SPLITS + split
    tl.store(lse + target, top + tl.log2(total), mask=member < group)
    tl.store(
        partial + target[:, None] * DIM + dims[None, :], sums / total[:, None], mask=real & inside[None, :]
    )


@triton.jit
def _join(  # noqa: PLR0913
    partial, lse, flat, positions, sinks, out, live, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, GATED: tl.constexpr,
    SPLITS: tl.constexpr, SPLITS_TILE: tl.constexpr, BLOCK: tl.constexpr, DIMS: tl.constexpr,
    APART: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    head = tl.program_id(0)
    row = tl.program_id(1)
    if row >= tl.load(live):
        return
    position = tl.load(positions + row)
    splits = tl.arange(0, SPLITS_TILE)
    first, _, blocks = _first_block(position, splits, SPLITS, BLOCK, APART, WINDOW)
    used = (splits < SPLITS) & (first < blocks)
    if APART:
        used = ((splits < SPLITS - 1) & (first < blocks)) | (splits == SPLITS - 1)
    dims = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    inside = dims < DIM
    wait_for_inputs(PDL)
    sources = (row * HEADS + head) * SPLITS + splits
    sums = tl.load(lse + sources, mask=used, other=float("-inf"))
    parts = tl.load(
        partial + sources[:, None] * DIM + dims[None, :], mask=used[:, None] & inside[None, :], other=0.0
    )
    if GATED:  # asked for before the sums, so that it comes with the parts and not behind them
        gates = flat + row * width + (HEADS + 2 * KV_HEADS + head) * DIM
        gate = tl.load(gates + dims, mask=inside, other=0.0)
    top = tl.max(sums, axis=0)
    if SINKS:
        sink = tl.load(sinks + head) * LOG2_E
        top = tl.maximum(top, sink)
    shares = tl.exp2(sums - top)
    total = tl.sum(shares, axis=0)
    if SINKS:
        total += tl.exp2(sink - top)
    joined = tl.sum(parts * shares[:, None], axis=0) / total
    if GATED:
        joined *= tl.sigmoid(gate)
    tl.store(out + (row * HEADS + head) * DIM + dims, joined.to(out.dtype.element_ty), mask=inside)


def decode_attention(  # noqa: PLR0913
    flat: torch.Tensor,
    spec: AttentionSpec,
    norms: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    page_table: torch.Tensor,
    kv: torch.Tensor,
    partial: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attention of one new token of each of the first rows[0] rows; its key and value go to its page.

    flat float32 [B, q | k | v (| gate)]; norms float32 [heads + kv_heads, d] of queries and keys, None where
    `spec` has none; cos and sin float32 [context, rotary], sin with the sign of the rotation
    (`models.layers.Rope`); positions int32 [B]: the new token's place, so that many tokens are in the pages
    already; page_table int32 [B, pages]; kv T [2 * kv_heads, tokens, d], keys first
    (`context.pages.KvStorage`). Scratch: partial float32 [B, heads, S, d] and lse (to base 2) float32
    [B, heads, S], with S from `split_count`. out T [B, heads * d]; sinks float32 [heads] where `spec` has
    them. With a window the pages of a row are its ring, of window / 64 pages. The pages of a row that another
    row shares must not be the one that it writes.
    """
    batch, splits = flat.shape[0], partial.shape[2]
    norms = cos if norms is None else norms  # some memory: it is not read then
    block = block_tokens(spec.head_dim, kv.element_size())
    shape = {
        "HEADS": spec.heads,
        "KV_HEADS": spec.kv_heads,
        "DIM": spec.head_dim,
        "SPLITS": splits,
        "BLOCK": block,
        "APART": splits > 1,  # the last split is the new token alone, which the others skip
        "WINDOW": spec.window,
    }
    launch(
        _attend,
        (splits, spec.kv_heads, batch),
        flat, norms, cos, sin, positions, page_table, kv, partial, lse, rows,
        spec.eps, spec.scale, flat.stride(0), page_table.stride(0), kv.shape[1],
        DIM_TILE=triton.next_power_of_2(spec.head_dim), ROTARY=spec.rotary, NORMED=spec.normed,
        WIDEN=INTERPRETED and kv.dtype == torch.bfloat16, STAGES=3, warps=kv.element_size() * 2, **shape,
    )  # fmt: skip
    launch(
        _join,
        (spec.heads, batch, triton.cdiv(spec.head_dim, JOIN_DIMS)),
        partial, lse, flat, positions, lse if sinks is None else sinks, out, rows, flat.stride(0),
        GATED=spec.gated, SINKS=spec.sinks, SPLITS_TILE=triton.next_power_of_2(splits), DIMS=JOIN_DIMS,
        **shape,
    )  # fmt: skip
