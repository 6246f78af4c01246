"""Matrix-vector products of a decode step, and the embedding.

Bound by memory: a program holds a tile of whole weight rows in registers and uses it for every live row of
the step, so each weight byte is read once. The norm is computed again in every program: that costs less than
a launch. Where a weight has more tiles than fit the device at once, a program goes on to its next tile and
has that on the way while it adds up the one before. What is computed for a row does not depend on the other
rows, to the bit. The reference is `kernels.linear` behind `models.layers.RmsNorm`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import launch, let_next_start, processors, wait_for_inputs

MAX_IN = 16384  # columns: a row of weights has to fit the registers of a program
LANE_WEIGHTS = 64  # weights that one thread holds as float32
PROGRAMS_A_PROCESSOR = 2  # at least, where a weight has the rows
MOST_WARPS = 8  # of a program: more would have too few registers each
LOOPING = 3  # programs of `_norm_linear` that a multiprocessor holds, by registers; one more of half a tile
EMBED_BLOCK = 1024


class Tile(NamedTuple):
    """Weight rows that a program takes at a time, its columns (a power of two that covers the row), its
    warps, and how many programs there are.
    """

    rows: int
    columns: int
    warps: int
    programs: int


def _largest_tile(columns: int) -> Tile:
    """What one program's threads hold in registers; four warps where they can hold a row, since smaller
    programs mix better. Raises ValueError past MAX_IN columns.
    """
    if not 0 < columns <= MAX_IN:
        raise ValueError(f"a decode product takes 1 to {MAX_IN} columns, not {columns}")
    padded = max(triton.next_power_of_2(columns), 64)
    warps = max(1, min(4, padded // 512))
    while warps * 32 * LANE_WEIGHTS < padded:
        warps *= 2
    return Tile(min(max(warps * 32 * LANE_WEIGHTS // padded, 1), 16), padded, warps, 0)


def norm_tile(out: int, columns: int, processors: int) -> Tile:
    """How `norm_linear` cuts a weight [out, columns]: programs that fit the device at once, each for as many
    tiles as it takes. Large tiles spread the cost of the norm; half as large ones are taken where they leave
    fewer programs idle in the last turn. Raises ValueError past MAX_IN columns.
    """
    whole = _largest_tile(columns)
    if whole.columns == whole.warps * 32 * LANE_WEIGHTS and whole.warps < MOST_WARPS:
        whole = whole._replace(warps=2 * whole.warps)  # the normed row takes as many registers again

    def cut(rows: int, programs: int) -> tuple[int, Tile]:
        tiles = -(-out // rows)
        programs = max(1, min(tiles, programs * processors * 4 // whole.warps))
        return -(-tiles // programs) * programs * rows, whole._replace(rows=rows, programs=programs)

    work, tile = cut(whole.rows, LOOPING)
    if whole.rows > 1:
        half_work, half = cut(whole.rows // 2, LOOPING + 1)
        if half_work * 20 < work * 19:
            return half
    return tile


def add_tile(out: int, columns: int, processors: int) -> Tile:
    """How `linear_add` cuts a weight [out, columns]: a program for each tile, of the most rows that leave
    PROGRAMS_A_PROCESSOR. Raises ValueError past MAX_IN columns.
    """
    tile = _largest_tile(columns)
    rows = tile.rows
    while rows > 1 and -(-out // rows) < PROGRAMS_A_PROCESSOR * processors:
        rows //= 2
    return tile._replace(rows=rows, programs=-(-out // rows))


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
def _normed_row(x, row, scale, columns, eps, IN: tl.constexpr, dtype: tl.constexpr):
    """rmsnorm of row `row` of x [B, IN] times scale, rounded to dtype."""
    vector = tl.load(x + row * IN + columns, mask=columns < IN, other=0.0)
    mean = tl.sum(vector * vector) / IN
    return (vector * tl.rsqrt(mean + eps) * scale).to(dtype)


@triton.jit
def _norm_linear(  # noqa: PLR0913
    x, norm, weight, out, normed, live, eps, size,
    IN: tl.constexpr, IN_TILE: tl.constexpr, ROWS: tl.constexpr, KEEP: tl.constexpr, MANY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, IN_TILE)
    tile = _load_tile(weight, program * ROWS, size, columns, IN, IN_TILE, ROWS)
    scale = tl.load(norm + columns, mask=columns < IN, other=0.0)
    rows = tl.load(live)
    wait_for_inputs(PDL)
    # The first row is normed while its weights are still on their way.
    rounded = _normed_row(x, 0, scale, columns, eps, IN, weight.dtype.element_ty)
    if KEEP:
        if program == 0:
            tl.store(normed + columns, rounded, mask=columns < IN)
            for row in range(1, rows):
                other = _normed_row(x, row, scale, columns, eps, IN, weight.dtype.element_ty)
                tl.store(normed + row * IN + columns, other, mask=columns < IN)
    for first in range(program * ROWS, size, programs * ROWS):
        wide = tile.to(tl.float32)
        if MANY:
            tile = _load_tile(weight, first + programs * ROWS, size, columns, IN, IN_TILE, ROWS)
        targets = first + tl.arange(0, ROWS)
        sums = tl.sum(wide * rounded.to(tl.float32)[None, :], axis=1)
        tl.store(out + targets, sums, mask=targets < size)
        for row in range(1, rows):
            other = _normed_row(x, row, scale, columns, eps, IN, weight.dtype.element_ty)
            sums = tl.sum(wide * other.to(tl.float32)[None, :], axis=1)
            tl.store(out + row * size + targets, sums, mask=targets < size)


@triton.jit
def _linear_add(  # noqa: PLR0913
    a, weight, x, live, size, IN: tl.constexpr, IN_TILE: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    let_next_start(PDL)
    program = tl.program_id(0)
    columns = tl.arange(0, IN_TILE)
    inside = columns < IN
    tile = _load_tile(weight, program * ROWS, size, columns, IN, IN_TILE, ROWS)
    rows = tl.load(live)
    wait_for_inputs(PDL)
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
    tile = norm_tile(size, columns, processors(x.device))
    launch(
        _norm_linear,
        (tile.programs,),
        x, norm, weight, out, x if normed is None else normed, rows, eps, size,
        IN=columns, IN_TILE=tile.columns, ROWS=tile.rows, KEEP=normed is not None,
        MANY=tile.programs * tile.rows < size, warps=tile.warps,
    )  # fmt: skip


def linear_add(a: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> None:
    """x [B, H] float32 += a [B, K] @ weight [H, K].T for the first rows[0] rows; a and weight of one dtype.

    Raises ValueError for K over MAX_IN.
    """
    size, columns = weight.shape
    tile = add_tile(size, columns, processors(x.device))
    launch(
        _linear_add,
        (tile.programs,),
        a, weight, x, rows, size,
        IN=columns, IN_TILE=tile.columns, ROWS=tile.rows, warps=tile.warps,
    )  # fmt: skip


def embed(tokens: torch.Tensor, table: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> None:
    """x [B, H] float32 = table [V, H] at tokens int32 [B], for the first rows[0] rows."""
    batch, columns = x.shape
    grid = (batch, triton.cdiv(columns, EMBED_BLOCK))
    launch(_embed, grid, tokens, table, x, rows, IN=columns, BLOCK=EMBED_BLOCK)
