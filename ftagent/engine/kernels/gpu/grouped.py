"""Routed experts on many tokens: grouped matrix products over pairs sorted by expert, for prefill.

A pair is one (token, rank): token * k + rank. Group g holds the pairs [offsets[g], offsets[g + 1]) and uses
the expert whose records [I, 3, H] lie at address pointers[g]. Biases are no part of the records: they lie in
a table of all experts, and that of down is left to the caller, since it counts once. The device itself finds
out which program works on which rows, so nothing here waits for it. Knows no slots and no banks: any readable
address is an expert.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: PLR0913
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.device import Device, describe
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs
from ftagent.engine.kernels.gpu.signals import NATIVE
from ftagent.engine.kernels.swiglu import Swiglu

SCATTER_COLUMNS = 1024
RESERVED = 2048  # bytes of shared memory that tiles leave to the compiler
SILU = Swiglu()
PROBE = 32  # entries of the tile map that a program writes at once


class Tile(NamedTuple):
    """Of a matrix product: output rows and columns, depth of one step, warps, steps in flight."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Biases(NamedTuple):
    """What is added to the products of a layer's experts: `table` T [E, 2I + H], gate | up | down; `experts`
    int32 [G] says whose row a group takes.
    """

    table: torch.Tensor
    experts: torch.Tensor


def choose_rows(rows_per_group: int) -> int:
    """Rows of a tile for groups of that mean size: the last tile of a group should not be mostly empty."""
    return 16 if rows_per_group <= 16 else 64 if rows_per_group <= 96 else 128


def choose_tile(rows: int, itemsize: int, device: Device) -> Tile:
    """The tile for products of `rows` rows: 256 columns feed Hopper's warpgroup instructions best, older and
    smaller devices have registers and shared memory for half as much."""
    if itemsize == 4:
        return Tile(rows, 32, 32, 4, 2)
    if rows == 16:
        tile = Tile(rows, 64, 128, 4, 4)
    elif device.capability == 90:
        tile = Tile(rows, 256, 64, 8 if rows == 128 else 4, 4)
    else:
        tile = Tile(rows, 128, 64 if rows == 64 else 32, 8 if rows == 128 else 4, 4)
    stages = (device.shared - RESERVED) // ((tile.rows + tile.columns) * tile.depth * itemsize)
    return tile._replace(stages=max(2, min(tile.stages, stages)))


class Groups(NamedTuple):
    """Pairs by expert, and the map from programs to their rows. Made by `group_pairs`."""

    pairs: torch.Tensor  # int32 [P']
    offsets: torch.Tensor  # int32 [G + 1]
    pointers: torch.Tensor  # int64 [G]
    per_token: int
    rows: int  # of a tile
    tiles: torch.Tensor  # int32 [1 + 2 * most]: how many; group of each; first row of each

    @property
    def most(self) -> int:
        """Tiles that there can be."""
        return len(self.tiles) // 2


def order_pairs(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """pairs int32 [n * k] sorted by expert, each expert's in their order, and offsets int32 [experts + 1], of
    ids int [n, k]. Does not wait for the device."""
    ordered, pairs = torch.sort(ids.flatten(), stable=True)
    borders = torch.arange(experts + 1, dtype=ordered.dtype, device=ids.device)
    return pairs.to(torch.int32), torch.searchsorted(ordered, borders, out_int32=True)


def positions(pairs: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [count]: where each of `count` pairs stands in `pairs`, -1 for one that is not there."""
    place = torch.full((count,), -1, dtype=torch.int32, device=pairs.device)
    place[pairs.long()] = torch.arange(len(pairs), dtype=torch.int32, device=pairs.device)
    return place


def group_pairs(
    pairs: torch.Tensor,
    offsets: torch.Tensor,
    pointers: torch.Tensor,
    per_token: int,
    rows: int | None = None,
) -> Groups:
    """Prepare the products of `pairs` int32 [P'] with offsets int32 [G + 1], pointers int64 [G].

    `rows` of a tile are chosen by the mean size of a group unless given.
    """
    groups = len(pointers)
    rows = rows or choose_rows(len(pairs) // max(1, groups))
    most = len(pairs) // rows + groups
    tiles = torch.empty(1 + 2 * most, dtype=torch.int32, device=pairs.device)
    made = Groups(pairs, offsets, pointers, per_token, rows, tiles)
    if groups:
        launch(
            tiles_kernel, (groups,), offsets, tiles, groups, most,
            warps=1, GP=triton.next_power_of_2(groups), ROWS=rows, PROBE=PROBE,
        )  # fmt: skip
    return made


def gate_up(
    x: torch.Tensor,
    groups: Groups,
    act: torch.Tensor,
    tile: Tile | None = None,
    biases: Biases | None = None,
    how: Swiglu = SILU,
) -> None:
    """act T [P', I] = silu(gate . x) * (up . x) of each pair's expert on its token of x T [n, H], or what
    `how` makes of the two, each with its bias.

    `tile`, of groups.rows rows, is chosen by the device unless given.
    """
    hidden, intermediate = x.shape[1], act.shape[1]
    tile = tile or choose_tile(groups.rows, x.element_size(), describe(x.device))
    blocks = triton.cdiv(2 * intermediate, tile.columns)
    if not len(groups.pairs):
        return
    launch(
        gate_up_kernel, (groups.most * blocks,),
        x, groups.pairs, groups.offsets, groups.pointers, groups.tiles,
        x if biases is None else biases.table, groups.offsets if biases is None else biases.experts, act,
        groups.most,
        warps=tile.warps, num_stages=tile.stages, K=groups.per_token, H=hidden,
        RECORDS=intermediate, BLOCKS=blocks, BM=tile.rows, BN=tile.columns, BK=tile.depth,
        BIASED=biases is not None, ALPHA=how.alpha, LIMIT=how.limit, OFFSET=how.offset,
        PRECISION=_precision(x),
    )  # fmt: skip


def down(act: torch.Tensor, groups: Groups, out: torch.Tensor, tile: Tile | None = None) -> None:
    """out T [P', H] = act [P', I] @ down of each pair's expert. `tile` as in `gate_up`."""
    intermediate, hidden = act.shape[1], out.shape[1]
    tile = tile or choose_tile(groups.rows, act.element_size(), describe(act.device))
    blocks = triton.cdiv(hidden, tile.columns)
    if not len(groups.pairs):
        return
    launch(
        down_kernel, (groups.most * blocks,),
        act, groups.offsets, groups.pointers, groups.tiles, out, groups.most,
        warps=tile.warps, num_stages=tile.stages, H=hidden, RECORDS=intermediate,
        BLOCKS=blocks, BM=tile.rows, BN=tile.columns, BK=tile.depth, PRECISION=_precision(act),
    )  # fmt: skip


def scatter_add(out: torch.Tensor, position: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
    """y float32 [n, H] += weights [n, k] times the rows of `out` T [P', H] that `position` int32 [n * k]
    names (-1: none), rank by rank: the same sum whatever the order of the experts."""
    tokens, hidden = y.shape
    if not tokens:
        return
    launch(
        scatter_kernel, (tokens, triton.cdiv(hidden, SCATTER_COLUMNS)), out, position, weights, y,
        warps=4, K=weights.shape[1], H=hidden, BN=min(SCATTER_COLUMNS, triton.next_power_of_2(hidden)),
    )  # fmt: skip


def _precision(x: torch.Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


# Counts that follow the prompt are no constants and not specialised on: every prompt would compile anew.
@triton.jit(do_not_specialize=["groups", "most"])
def tiles_kernel(
    offsets, tiles, groups, most,
    GP: tl.constexpr, ROWS: tl.constexpr, PROBE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program g writes the tiles of group g behind those of the groups before it."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    mine = tl.program_id(0)
    group = tl.arange(0, GP)
    begin = tl.load(offsets + group, mask=group < groups, other=0)
    end = tl.load(offsets + group + 1, mask=group < groups, other=0)
    count = (end - begin + ROWS - 1) // ROWS
    first = tl.sum(tl.where(group < mine, count, 0), 0)
    own = tl.sum(tl.where(group == mine, count, 0), 0)
    row = tl.sum(tl.where(group == mine, begin, 0), 0)
    for tile in range(0, own, PROBE):
        place = tile + tl.arange(0, PROBE)
        tl.store(tiles + 1 + first + place, mine + place * 0, mask=place < own)
        tl.store(tiles + 1 + most + first + place, row + place * ROWS, mask=place < own)
    tl.store(tiles, tl.sum(count, 0), mask=mine == 0)


@triton.jit
def _product(a, b, acc, PRECISION: tl.constexpr):
    if NATIVE:
        return tl.dot(a, b, acc, input_precision=PRECISION)
    else:  # the interpreter multiplies the bits of bfloat16, not the numbers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def joined(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr):
    """See `kernels.swiglu`. A comparison with what is no number is false, so that it stays what it is."""
    if LIMIT is not None:
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    if OFFSET != 0:
        up += OFFSET
    return gate / (1.0 + tl.exp(-ALPHA * gate)) * up


@triton.jit(do_not_specialize=["most"])
def gate_up_kernel(
    x, pairs, offsets, pointers, tiles, biases, experts, act, most,
    K: tl.constexpr, H: tl.constexpr, RECORDS: tl.constexpr, BLOCKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, OFFSET: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Columns are gate and up of one record side by side, so that one product gives both to one thread."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    tile = tl.program_id(0) // BLOCKS
    if tile < tl.load(tiles):
        group = tl.load(tiles + 1 + tile)
        row = tl.load(tiles + 1 + most + tile) + tl.arange(0, BM)
        inside = row < tl.load(offsets + group + 1)
        token = tl.load(pairs + row, mask=inside, other=0) // K
        records = tl.load(pointers + group).to(tl.pointer_type(x.dtype.element_ty))
        records = tl.multiple_of(records, 16)
        column = (tl.program_id(0) % BLOCKS) * BN + tl.arange(0, BN)
        record = column // 2
        k = tl.arange(0, BK)
        a = x + token.to(tl.int64)[:, None] * H + k[None, :]
        b = records + ((record * 3 + column % 2) * H)[None, :] + k[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
        for begin in range(0, H, BK):
            if H % BK == 0:
                left = tl.load(a + begin, mask=inside[:, None], other=0.0)
                right = tl.load(b + begin, mask=(record < RECORDS)[None, :], other=0.0)
            else:
                deep = k < H - begin
                left = tl.load(a + begin, mask=inside[:, None] & deep[None, :], other=0.0)
                right = tl.load(b + begin, mask=(record < RECORDS)[None, :] & deep[:, None], other=0.0)
            acc = _product(left, right, acc, PRECISION)
        gate, up = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
        record = (tl.program_id(0) % BLOCKS) * (BN // 2) + tl.arange(0, BN // 2)
        if BIASED:
            own = biases + tl.load(experts + group).to(tl.int64) * (2 * RECORDS + H) + record
            gate += tl.load(own, mask=record < RECORDS, other=0.0).to(tl.float32)[None, :]
            up += tl.load(own + RECORDS, mask=record < RECORDS, other=0.0).to(tl.float32)[None, :]
        value = joined(gate, up, ALPHA, LIMIT, OFFSET)
        at = act + row.to(tl.int64)[:, None] * RECORDS + record[None, :]
        tl.store(at, value.to(act.dtype.element_ty), mask=inside[:, None] & (record < RECORDS)[None, :])


@triton.jit(do_not_specialize=["most"])
def down_kernel(
    act, offsets, pointers, tiles, out, most,
    H: tl.constexpr, RECORDS: tl.constexpr, BLOCKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    tile = tl.program_id(0) // BLOCKS
    if tile < tl.load(tiles):
        group = tl.load(tiles + 1 + tile)
        row = tl.load(tiles + 1 + most + tile) + tl.arange(0, BM)
        inside = row < tl.load(offsets + group + 1)
        records = tl.load(pointers + group).to(tl.pointer_type(act.dtype.element_ty))
        records = tl.multiple_of(records, 16)
        column = (tl.program_id(0) % BLOCKS) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        a = act + row.to(tl.int64)[:, None] * RECORDS + k[None, :]
        b = records + (k * 3 + 2)[:, None] * H + column[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for begin in range(0, RECORDS, BK):
            if RECORDS % BK == 0:
                left = tl.load(a + begin, mask=inside[:, None], other=0.0)
                right = tl.load(b + begin * (3 * H), mask=(column < H)[None, :], other=0.0)
            else:
                deep = k < RECORDS - begin
                left = tl.load(a + begin, mask=inside[:, None] & deep[None, :], other=0.0)
                right = tl.load(b + begin * (3 * H), mask=(column < H)[None, :] & deep[:, None], other=0.0)
            acc = _product(left, right, acc, PRECISION)
        at = out + row.to(tl.int64)[:, None] * H + column[None, :]
        tl.store(at, acc.to(out.dtype.element_ty), mask=inside[:, None] & (column < H)[None, :])


@triton.jit
def scatter_kernel(
    out, position, weights, y,
    K: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = y + token * H + column
    total = tl.load(at, mask=column < H, other=0.0)
    for rank in tl.static_range(K):
        place = tl.load(position + token * K + rank)
        there = column < tl.where(place >= 0, H, 0)
        row = tl.load(out + place.to(tl.int64) * H + column, mask=there, other=0.0).to(tl.float32)
        total += tl.load(weights + token * K + rank) * row
    tl.store(at, total, mask=column < H)
