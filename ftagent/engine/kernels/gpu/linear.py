"""Matrix-vector products of a decode step, and the embedding.

Bound by memory: a program holds a tile of whole weight rows in registers and uses it for every live row of
the step, so each weight byte is read once. The norm is computed again in every program: that costs less than
a launch. What is computed for a row does not depend on the other rows, to the bit. The reference is
`kernels.linear` behind `models.layers.RmsNorm`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import (
    INTERPRETED,
    launch,
    let_next_start,
    processors,
    wait_for_inputs,
)

MAX_IN = 16384  # columns: a row of weights has to fit the registers of a program
LANE_WEIGHTS = 64  # weights that one thread holds as float32
PROGRAMS_A_PROCESSOR = 2
EMBED_BLOCK = 1024
NATIVE = tl.constexpr(not INTERPRETED)
LINE = 128  # bytes that the cache fetches at once
RESIDENT_WARPS = 16  # of these kernels on a multiprocessor, by their registers
NEVER, EARLY, LATE = 0, 1, 2
# Whether a program asks the cache for the tile of a program that finds no room yet: not at all, before it
# waits for its inputs, or behind that.
NORM_PREFETCH = NEVER
ADD_PREFETCH = NEVER


class Tile(NamedTuple):
    """Weight rows of a program, its columns (a power of two that covers the row), and its warps."""

    rows: int
    columns: int
    warps: int


def dense_tile(out: int, columns: int, processors: int) -> Tile:
    """How a weight [out, columns] is cut for a device with so many multiprocessors.

    Large tiles spread the cost of the norm; small ones fill the device and balance it. So a program takes
    the most rows that still leave two programs for each multiprocessor, and no more weights than its
    threads hold in registers. Four warps where they can hold a row, since smaller programs mix better; eight
    for weights of many rows.
    Raises ValueError past MAX_IN columns.
    """
    if not 0 < columns <= MAX_IN:
        raise ValueError(f"a decode product takes 1 to {MAX_IN} columns, not {columns}")
    padded = max(triton.next_power_of_2(columns), 64)
    warps = max(1, min(4, padded // 512))
    while warps * 32 * LANE_WEIGHTS < padded:
        warps *= 2
    if out >= 64 * processors and padded >= 2048:
        warps = max(warps, 8)
    rows = max(warps * 32 * LANE_WEIGHTS // padded, 1)
    while rows > 1 and -(-out // rows) < PROGRAMS_A_PROCESSOR * processors:
        rows //= 2
    return Tile(min(rows, 16), padded, warps)


@triton.jit
def _load_tile(weight, first, out, columns, IN: tl.constexpr, IN_TILE: tl.constexpr, ROWS: tl.constexpr):
    """[ROWS, IN_TILE] of weight [out, IN]. Rows past the end repeat the last one; columns are zeros there."""
    rows = tl.minimum(first + tl.arange(0, ROWS), out - 1).to(tl.int64)
    places = weight + rows[:, None] * IN + columns[None, :]
    if IN == IN_TILE:
        tile = tl.load(places, cache_modifier=".cg")
    else:
        tile = tl.load(places, mask=(columns < IN)[None, :], other=0.0, cache_modifier=".cg")
    return tile


@triton.jit
def _prefetch(weight, first, size, IN: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr):
    """Ask the L2 cache for rows [first, first + ROWS) of weight [size, IN]; holds no registers meanwhile."""
    if NATIVE:
        if first < size:
            step: tl.constexpr = ROWS * IN // LINES + (ROWS * IN % LINES > 0)
            places = first.to(tl.int64) * IN + tl.arange(0, LINES) * step
            places = tl.minimum(places, size.to(tl.int64) * IN - 1)
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [(weight + places).to(tl.int64)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip


@triton.jit
def _normed_row(x, row, scale, columns, eps, IN: tl.constexpr, dtype: tl.constexpr):
    """rmsnorm of row `row` of x [B, IN] times scale, rounded to dtype."""
    vector = tl.load(x + row * IN + columns, mask=columns < IN, other=0.0)
    mean = tl.sum(vector * vector) / IN
    return (vector * tl.rsqrt(mean + eps) * scale).to(dtype)


@triton.jit
def _norm_linear(  # noqa: PLR0913
    x, norm, weight, out, normed, live, eps, size, ahead,
    IN: tl.constexpr, IN_TILE: tl.constexpr, ROWS: tl.constexpr, KEEP: tl.constexpr, LINES: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    program = tl.program_id(0)
    columns = tl.arange(0, IN_TILE)
    tile = _load_tile(weight, program * ROWS, size, columns, IN, IN_TILE, ROWS)
    scale = tl.load(norm + columns, mask=columns < IN, other=0.0)
    rows = tl.load(live)
    if PREFETCH == 1:
        _prefetch(weight, (program + ahead) * ROWS, size, IN, ROWS, LINES)
    wait_for_inputs(PDL)
    if PREFETCH == 2:
        _prefetch(weight, (program + ahead) * ROWS, size, IN, ROWS, LINES)
    targets = program * ROWS + tl.arange(0, ROWS)
    # A row is normed one turn ahead: the first while its weights are still on their way.
    rounded = _normed_row(x, 0, scale, columns, eps, IN, weight.dtype.element_ty)
    wide = tile.to(tl.float32)
    for row in range(rows):
        if KEEP:
            if program == 0:
                tl.store(normed + row * IN + columns, rounded, mask=columns < IN)
        sums = tl.sum(wide * rounded.to(tl.float32)[None, :], axis=1)
        tl.store(out + row * size + targets, sums, mask=targets < size)
        if row + 1 < rows:
            rounded = _normed_row(x, row + 1, scale, columns, eps, IN, weight.dtype.element_ty)


@triton.jit
def _linear_add(  # noqa: PLR0913
    a, weight, x, live, size, ahead,
    IN: tl.constexpr, IN_TILE: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    program = tl.program_id(0)
    columns = tl.arange(0, IN_TILE)
    inside = columns < IN
    tile = _load_tile(weight, program * ROWS, size, columns, IN, IN_TILE, ROWS)
    rows = tl.load(live)
    if PREFETCH == 1:
        _prefetch(weight, (program + ahead) * ROWS, size, IN, ROWS, LINES)
    wait_for_inputs(PDL)
    if PREFETCH == 2:
        _prefetch(weight, (program + ahead) * ROWS, size, IN, ROWS, LINES)
    targets = program * ROWS + tl.arange(0, ROWS)
    vector = tl.load(a + columns, mask=inside, other=0.0)
    before = tl.load(x + targets, mask=targets < size, other=0.0)
    wide = tile.to(tl.float32)
    for row in range(rows):
        sums = tl.sum(wide * vector.to(tl.float32)[None, :], axis=1)
        tl.store(x + row * size + targets, before + sums, mask=targets < size)
        if row + 1 < rows:
            vector = tl.load(a + (row + 1) * IN + columns, mask=inside, other=0.0)
            before = tl.load(x + (row + 1) * size + targets, mask=targets < size, other=0.0)


@triton.jit
def _embed(tokens, table, x, live, IN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    if row < tl.load(live):
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        token = tl.load(tokens + row).to(tl.int64)
        values = tl.load(table + token * IN + columns, mask=columns < IN, other=0.0)
        tl.store(x + row * IN + columns, values.to(tl.float32), mask=columns < IN)


def _ahead(tile: Tile, weight: torch.Tensor) -> tuple[int, int]:
    """Programs that fit the device at once, and lines of a tile, rounded up to a power of two."""
    lines = triton.next_power_of_2(triton.cdiv(tile.rows * weight.shape[1] * weight.element_size(), LINE))
    return max(1, processors(weight.device) * RESIDENT_WARPS // tile.warps), lines


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    out: torch.Tensor,
    normed: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """out [B, N] float32 = T(rmsnorm(x) * norm) @ weight.T for the first rows[0] rows; T is weight's dtype.

    x float32 [B, H]; norm float32 [H], with the 1 of centred norms in it; weight T [N, H]; rows int32 [1].
    `normed` T [B, H], where given, receives the rounded product with the norm. Products add in float32.
    Raises ValueError for H over MAX_IN.
    """
    size, columns = weight.shape
    tile = dense_tile(size, columns, processors(x.device))
    ahead, lines = _ahead(tile, weight)
    launch(
        _norm_linear,
        (triton.cdiv(size, tile.rows),),
        x, norm, weight, out, x if normed is None else normed, rows, eps, size, ahead,
        IN=columns, IN_TILE=tile.columns, ROWS=tile.rows, KEEP=normed is not None, LINES=lines,
        PREFETCH=NORM_PREFETCH, warps=tile.warps,
    )  # fmt: skip


def linear_add(a: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> None:
    """x [B, H] float32 += a [B, K] @ weight [H, K].T for the first rows[0] rows; a and weight of one dtype.

    Raises ValueError for K over MAX_IN.
    """
    size, columns = weight.shape
    tile = dense_tile(size, columns, processors(x.device))
    ahead, lines = _ahead(tile, weight)
    launch(
        _linear_add,
        (triton.cdiv(size, tile.rows),),
        a, weight, x, rows, size, ahead,
        IN=columns, IN_TILE=tile.columns, ROWS=tile.rows, LINES=lines, PREFETCH=ADD_PREFETCH,
        warps=tile.warps,
    )  # fmt: skip


def embed(tokens: torch.Tensor, table: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> None:
    """x [B, H] float32 = table [V, H] at tokens int32 [B], for the first rows[0] rows."""
    batch, columns = x.shape
    grid = (batch, triton.cdiv(columns, EMBED_BLOCK))
    launch(_embed, grid, tokens, table, x, rows, IN=columns, BLOCK=EMBED_BLOCK)
