"""The gated delta rule over the tokens of one request, in chunks of 64, for prefill.

Same rule as `kernels.delta_rule.chunked` (Yang et al., arXiv 2412.06464, section 3.3). For each chunk and
head the corrections of the tokens solve (I + A) u = beta v - (beta exp(G) k) S, with A strictly lower
triangular and G the running sum of the log decays. `_prepare` inverts I + A for all chunks at once;
`_advance` carries the state S from chunk to chunk, one program for a head and some columns of S; `_finish`
computes all outputs from the states at the chunks' starts. Three launches for each SEGMENT tokens bound the
workspace. Knows tensors only.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.delta_rule import CHUNK, DeltaInputs
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

SEGMENT = 4096  # tokens of one set of launches: 0.3 GB of workspace for 32 heads of 128 x 128
BLOCK = 16  # rows of a diagonal block of A, which is inverted by forward substitution
ADVANCE_COLUMNS = 32  # columns of the state in one program: 32 heads of 128 then fill 128 multiprocessors
ROOMY = ((8, 0), (9, 0), (10, 0))  # capabilities with shared memory for two chunks in one program, 148 KB


class Tiling(NamedTuple):
    """Columns of the tiles in `_prepare` and `_finish`, of the state in `_advance`, and how dots multiply.

    Three passes of TF32 need twice the registers, hence the narrower tiles.
    """

    tile: int
    width: int
    precision: str


def tiling(key_dim: int, value_dim: int, exact: bool) -> Tiling:
    """What fits the registers of a thread for heads of this shape."""
    key_size, value_size = (max(16, triton.next_power_of_2(size)) for size in (key_dim, value_dim))
    tile = min(16 if exact else 64, max(key_size, value_size))
    width = min(ADVANCE_COLUMNS // 2 if exact else ADVANCE_COLUMNS, value_size)
    return Tiling(tile, width, "tf32x3" if exact else "tf32")


class Workspace(NamedTuple):
    """What the kernels hand on, float32: inverse [heads, chunks, 64, 64]; total, the running log decay
    [heads, chunks, 64]; reading [heads, chunks, 64, dk] and writing [heads, chunks, 64, dv], which `_advance`
    turns into the corrections; before [heads, chunks, dk, dv], the state at each chunk's start.
    """

    inverse: torch.Tensor
    total: torch.Tensor
    reading: torch.Tensor
    writing: torch.Tensor
    before: torch.Tensor


@triton.jit
def _diagonal(blocks, which: tl.constexpr, BLOCK: tl.constexpr):
    """Block `which` of [4, BLOCK, BLOCK], with ones on its diagonal."""
    chosen = tl.arange(0, 4)[:, None, None] == which
    index = tl.arange(0, BLOCK)
    one = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
    return tl.sum(tl.where(chosen, blocks, 0.0), axis=0) + one


@triton.jit
def _block_at(system, row: tl.constexpr, column: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Addresses of block (row, column) of a matrix [CHUNK, CHUNK]."""
    index = tl.arange(0, BLOCK)
    return system + (row * BLOCK + index)[:, None] * CHUNK + (column * BLOCK + index)[None, :]


@triton.jit
def _mul(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _invert(system, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Replace A [CHUNK, CHUNK] at `system`, strictly lower triangular with CHUNK = 4 * BLOCK, by (I + A)^-1.

    Diagonal blocks by forward substitution, all four at once; the others by block substitution. (The product
    (I - A)(I + A^2)(I + A^4)... would need no loop, but its factors grow like binomials.)
    """
    index = tl.arange(0, BLOCK)
    starts = system + tl.arange(0, 4) * (BLOCK * CHUNK + BLOCK)
    lower = tl.zeros([4, BLOCK, BLOCK], dtype=tl.float32)
    for row in range(1, BLOCK):
        entries = tl.load(starts[:, None] + row * CHUNK + index[None, :])  # zero from the diagonal on
        found = -entries - tl.sum(entries[:, :, None] * lower, axis=1)
        lower = tl.where(index[None, :, None] == row, found[:, None, :], lower)
    t00, t11 = _diagonal(lower, 0, BLOCK), _diagonal(lower, 1, BLOCK)
    t22, t33 = _diagonal(lower, 2, BLOCK), _diagonal(lower, 3, BLOCK)
    a10 = tl.load(_block_at(system, 1, 0, BLOCK, CHUNK))
    a20 = tl.load(_block_at(system, 2, 0, BLOCK, CHUNK))
    a21 = tl.load(_block_at(system, 2, 1, BLOCK, CHUNK))
    a30 = tl.load(_block_at(system, 3, 0, BLOCK, CHUNK))
    a31 = tl.load(_block_at(system, 3, 1, BLOCK, CHUNK))
    a32 = tl.load(_block_at(system, 3, 2, BLOCK, CHUNK))
    t10 = -_mul(t11, _mul(a10, t00))
    t21 = -_mul(t22, _mul(a21, t11))
    t32 = -_mul(t33, _mul(a32, t22))
    t20 = -_mul(t22, _mul(a20, t00) + _mul(a21, t10))
    t31 = -_mul(t33, _mul(a31, t11) + _mul(a32, t21))
    t30 = -_mul(t33, _mul(a30, t00) + _mul(a31, t10) + _mul(a32, t20))
    tl.debug_barrier()  # every thread has read A
    tl.store(_block_at(system, 0, 0, BLOCK, CHUNK), t00)
    tl.store(_block_at(system, 1, 0, BLOCK, CHUNK), t10)
    tl.store(_block_at(system, 1, 1, BLOCK, CHUNK), t11)
    tl.store(_block_at(system, 2, 0, BLOCK, CHUNK), t20)
    tl.store(_block_at(system, 2, 1, BLOCK, CHUNK), t21)
    tl.store(_block_at(system, 2, 2, BLOCK, CHUNK), t22)
    tl.store(_block_at(system, 3, 0, BLOCK, CHUNK), t30)
    tl.store(_block_at(system, 3, 1, BLOCK, CHUNK), t31)
    tl.store(_block_at(system, 3, 2, BLOCK, CHUNK), t32)
    tl.store(_block_at(system, 3, 3, BLOCK, CHUNK), t33)


@triton.jit(do_not_specialize=["tokens"])
def _prepare(  # noqa: PLR0913
    key, value, decay, beta, inverse, total, reading, writing,
    tokens, group, key_stride, value_stride, gate_stride,
    DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head: running decay, (I + A)^-1, and its products with keys and values."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    chunk, head = tl.program_id(0), tl.program_id(1)
    place = (head * tl.num_programs(0) + chunk).to(tl.int64)
    inside = tl.arange(0, CHUNK)
    token = (chunk * CHUNK + inside).to(tl.int64)
    live = token < tokens
    running = tl.cumsum(tl.load(decay + token * gate_stride + head, mask=live, other=0.0), axis=0)
    step = tl.load(beta + token * gate_stride + head, mask=live, other=0.0)
    tl.store(total + place * CHUNK + inside, running)
    columns = tl.arange(0, TILE)
    keys = key + token[:, None] * key_stride + (head // group) * DK
    product = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    for first in range(0, DK, TILE):
        mask = live[:, None] & (first + columns < DK)[None, :]
        k = tl.load(keys + first + columns[None, :], mask=mask, other=0.0)
        product += tl.dot(k, tl.trans(k), input_precision=PRECISION)
    before = inside[None, :] < inside[:, None]
    between = tl.exp(tl.where(before, running[:, None] - running[None, :], float("-inf")))
    system = inverse + place * CHUNK * CHUNK
    square = system + inside[:, None] * CHUNK + inside[None, :]
    tl.store(square, product * step[:, None] * between)
    tl.debug_barrier()
    _invert(system, BLOCK, CHUNK)
    tl.debug_barrier()
    solver = tl.load(square)
    scale = step * tl.exp(running)
    rows = place * CHUNK + inside
    for first in range(0, DK, TILE):
        within = (first + columns < DK)[None, :]
        k = tl.load(keys + first + columns[None, :], mask=live[:, None] & within, other=0.0)
        found = tl.dot(solver, k * scale[:, None], input_precision=PRECISION)
        tl.store(reading + rows[:, None] * DK + first + columns[None, :], found, mask=within)
    values = value + token[:, None] * value_stride + head * DV
    for first in range(0, DV, TILE):
        within = (first + columns < DV)[None, :]
        v = tl.load(values + first + columns[None, :], mask=live[:, None] & within, other=0.0)
        found = tl.dot(solver, v * step[:, None], input_precision=PRECISION)
        tl.store(writing + rows[:, None] * DV + first + columns[None, :], found, mask=within)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def _advance(  # noqa: PLR0913
    key, total, reading, writing, before, state, tokens, chunks, group, key_stride,
    DK: tl.constexpr, DK_TILE: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Carry TILE columns of one head's state through all chunks of the segment."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    head = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, DK_TILE)
    inside = tl.arange(0, CHUNK)
    in_state = (inner < DK)[:, None] & (columns < DV)[None, :]
    square = inner[:, None] * DV + columns[None, :]
    own = state + head * DK * DV + square
    carried = tl.load(own, mask=in_state, other=0.0)
    for chunk in range(chunks):
        place = head * chunks + chunk
        tl.store(before + place * DK * DV + square, carried, mask=in_state)
        rows = place * CHUNK + inside
        w = tl.load(reading + rows[:, None] * DK + inner[None, :], mask=(inner < DK)[None, :], other=0.0)
        corrections = writing + rows[:, None] * DV + columns[None, :]
        u = tl.load(corrections, mask=(columns < DV)[None, :], other=0.0)
        u -= tl.dot(w, carried, input_precision=PRECISION)
        tl.store(corrections, u, mask=(columns < DV)[None, :])
        running = tl.load(total + rows)
        last = tl.load(total + place * CHUNK + CHUNK - 1)
        token = chunk * CHUNK + inside
        keys = key + token.to(tl.int64)[:, None] * key_stride + (head // group) * DK + inner[None, :]
        k = tl.load(keys, mask=(token < tokens)[:, None] & (inner < DK)[None, :], other=0.0)
        k *= tl.exp(last - running)[:, None]
        carried = carried * tl.exp(last) + tl.dot(tl.trans(k), u, input_precision=PRECISION)
    tl.store(own, carried, mask=in_state)


@triton.jit(do_not_specialize=["tokens"])
def _finish(  # noqa: PLR0913
    query, key, total, writing, before, out, tokens, group, key_stride,
    DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Outputs of one chunk of one head: from the state before it and from the chunk's own corrections."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    chunk, head = tl.program_id(0), tl.program_id(1)
    place = (head * tl.num_programs(0) + chunk).to(tl.int64)
    inside = tl.arange(0, CHUNK)
    columns = tl.arange(0, TILE)
    token = (chunk * CHUNK + inside).to(tl.int64)
    live = token < tokens
    running = tl.load(total + place * CHUNK + inside)
    corner = token[:, None] * key_stride + (head // group) * DK
    within = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
    for first in range(0, DK, TILE):
        mask = live[:, None] & (first + columns < DK)[None, :]
        q = tl.load(query + corner + first + columns[None, :], mask=mask, other=0.0)
        k = tl.load(key + corner + first + columns[None, :], mask=mask, other=0.0)
        within += tl.dot(q, tl.trans(k), input_precision=PRECISION)
    seen = inside[None, :] <= inside[:, None]
    within *= tl.exp(tl.where(seen, running[:, None] - running[None, :], float("-inf")))
    from_start = tl.exp(running)[:, None]
    rows = place * CHUNK + inside
    for side in range(0, DV, TILE):
        wide = (side + columns < DV)[None, :]
        u = tl.load(writing + rows[:, None] * DV + side + columns[None, :], mask=wide, other=0.0)
        found = tl.dot(within, u, input_precision=PRECISION)
        for first in range(0, DK, TILE):
            depth = first + columns < DK
            q = tl.load(
                query + corner + first + columns[None, :], mask=live[:, None] & depth[None, :], other=0.0
            )
            at = before + place * DK * DV + (first + columns)[:, None] * DV + side + columns[None, :]
            s = tl.load(at, mask=depth[:, None] & wide, other=0.0)
            found += tl.dot(q * from_start, s, input_precision=PRECISION)
        places = out + (token[:, None] * tl.num_programs(1) + head) * DV + side + columns[None, :]
        tl.store(places, found, mask=live[:, None] & wide)


def delta_prefill(
    inputs: DeltaInputs, state: torch.Tensor, exact: bool = True, out: torch.Tensor | None = None
) -> torch.Tensor:
    """All tokens of one request; `state` float32 [heads, dk, dv] is advanced. Returns float32 [n, heads, dv],
    contiguous: `out` where that is given.

    As `kernels.delta_rule.chunked`, with two freedoms: query and key [n, key heads, dk] may have fewer heads
    than value [n, heads, dv] (value head h reads key head h // (heads / key heads)), and rows may lie apart
    (the last two dimensions must be dense, query and key spaced alike, decay and beta spaced alike). `exact`
    multiplies in float32 (three passes of TF32), otherwise in TF32, which keeps eleven bits.
    Raises ValueError for a state with gaps.
    """
    tokens, heads, value_dim = inputs.value.shape
    if not state.is_contiguous():
        raise ValueError("the state of the delta rule must be contiguous: it is advanced in place")
    if out is None:
        out = torch.empty(tokens, heads, value_dim, dtype=torch.float32, device=state.device)
    space = _workspace(min(tokens, SEGMENT), heads, state)
    for begin in range(0, tokens, SEGMENT):
        end = min(begin + SEGMENT, tokens)
        _segment(inputs.rows(begin, end), state, out[begin:end], space, exact)
    return out


def _workspace(tokens: int, heads: int, state: torch.Tensor) -> Workspace:
    """Room for a segment of so many tokens, one flat tensor each: shorter segments use the front."""
    chunks = triton.cdiv(tokens, CHUNK)
    key_dim, value_dim = state.shape[1:]
    sizes = (CHUNK * CHUNK, CHUNK, CHUNK * key_dim, CHUNK * value_dim, key_dim * value_dim)
    return Workspace(
        *(torch.empty(heads * chunks * size, dtype=torch.float32, device=state.device) for size in sizes)
    )


def _segment(
    inputs: DeltaInputs, state: torch.Tensor, out: torch.Tensor, space: Workspace, exact: bool
) -> None:
    """Run one segment into `out`."""
    query, key, value, decay, beta = inputs
    tokens, heads, value_dim = value.shape
    key_dim = key.shape[2]
    chunks, group = triton.cdiv(tokens, CHUNK), heads // key.shape[1]
    tile, width, precision = tiling(key_dim, value_dim, exact)
    shape: dict[str, Any] = {"DK": key_dim, "DV": value_dim, "CHUNK": CHUNK, "PRECISION": precision}
    launch(
        _prepare, (chunks, heads), key, value, decay, beta,
        space.inverse, space.total, space.reading, space.writing,
        tokens, group, key.stride(0), value.stride(0), decay.stride(0),
        TILE=tile, BLOCK=BLOCK, num_stages=1, warps=8, **shape,
    )  # fmt: skip
    launch(
        _advance, (triton.cdiv(value_dim, width), heads),
        key, space.total, space.reading, space.writing, space.before, state, tokens, chunks, group,
        key.stride(0), DK_TILE=max(16, triton.next_power_of_2(key_dim)), TILE=width,
        num_stages=_advance_stages(state.device), **shape,
    )  # fmt: skip
    launch(
        _finish, (chunks, heads),
        query, key, space.total, space.writing, space.before, out, tokens, group, key.stride(0),
        TILE=tile, num_stages=1, **shape,
    )  # fmt: skip


@cache
def _advance_stages(device: torch.device) -> int:
    """2 where `_advance` can load a chunk ahead, else 1."""
    return 2 if device.type == "cuda" and torch.cuda.get_device_capability(device) in ROOMY else 1
