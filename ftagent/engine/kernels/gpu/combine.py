"""The end of a mixture-of-experts layer in a decode step: all its parts are added to the residual.

x[row] += the shared expert, the sum over ranks of weight * (partial sums of `experts`), and what the host
computed, which `experts` has brought to the device. The order of every sum is fixed.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: PLR0913 (a kernel takes what it takes)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.expert_plan import ExpertStep
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

COLUMNS = 16  # of H in one program: at H = 2048 one program a multiprocessor of a large device
INNER = 512  # of the shared expert's intermediate in one piece


class SharedExpert(NamedTuple):
    """The expert that every token uses. Its gate and up rows are among those of the router, so their products
    are in `flat` float32 [B, >= at + 2 * inner + 1]: from column `at` gate | up | logit of its weight.
    down T [H, inner].
    """

    flat: torch.Tensor
    at: int
    down: torch.Tensor


class DownBiases(NamedTuple):
    """What each expert of a row adds by its weight: `table` T [E, 2I + H] of a layer, gate | up | down, and
    `ids` int32 [B, k] of `route`.
    """

    table: torch.Tensor
    ids: torch.Tensor


def combine_step(
    step: ExpertStep,
    layer: int,
    weights: torch.Tensor,
    seen: torch.Tensor,
    shared: SharedExpert | None,
    x: torch.Tensor,
    biases: DownBiases | None = None,
) -> None:
    """x float32 [B, H] += the layer's output for live rows, after `experts_step` of the same step and layer.

    weights float32 [B, k], seen int32 [B, k] of `route`.
    """
    plan, tables, host, _, rows, partial, host_part = step
    (batch, hidden), per_token = x.shape, weights.shape[1]
    inner = 0 if shared is None else shared.down.shape[1]
    blocks = triton.cdiv(hidden, COLUMNS)
    launch(
        combine_kernel,
        (batch * blocks,),
        partial, host_part, weights, seen, tables.plan_slot, tables.plan_cut, rows,
        x if shared is None else shared.flat, x if shared is None else shared.down,
        x if biases is None else biases.table, seen if biases is None else biases.ids, x, layer,
        warps=4,
        P=tables.plan_slot.shape[1],
        K=per_token,
        KP=triton.next_power_of_2(per_token),
        H=hidden,
        BN=COLUMNS,
        BLOCKS=blocks,
        RECORDS=plan.intermediate,
        RUN=plan.run,
        CHUNKS=plan.chunks,
        CP=triton.next_power_of_2(plan.chunks),
        WIDTH=0 if shared is None else shared.flat.stride(0),
        AT=0 if shared is None else shared.at,
        INNER=inner,
        BI=min(INNER, triton.next_power_of_2(max(1, inner))),
        HOST=host is not None,
        BIASED=biases is not None,
    )  # fmt: skip


@triton.jit
def _cut(
    seen, plan_slot, plan_cut, layer, pair, mask, P: tl.constexpr, RECORDS: tl.constexpr, HOST: tl.constexpr
):
    """(device, host): records [0, device) of each pair are in `partial`, and whether the host has others.

    A pair that neither hit nor has a plan that gives it something counts nowhere.
    """
    hit = tl.load(seen + pair, mask=mask, other=-1) >= 0
    device = tl.where(hit, RECORDS, 0)
    host = hit & False
    if HOST:
        missed = mask & (hit == 0)
        slot = tl.load(plan_slot + layer * P + pair, mask=missed, other=-1)
        cut = tl.load(plan_cut + layer * P + pair, mask=missed, other=RECORDS)
        device = tl.where(missed & (slot >= 0), cut, device)
        host = missed & (cut < RECORDS)
    return device, host


@triton.jit
def _bias_sum(
    weights, ids, biases, row, columns, inside,
    K: tl.constexpr, KP: tl.constexpr, H: tl.constexpr, RECORDS: tl.constexpr,
):  # fmt: skip
    """[BN]: sum over ranks of weight * the bias of down: once, wherever the records were computed."""
    rank = tl.arange(0, KP)
    share = tl.load(weights + row * K + rank, mask=rank < K, other=0.0)
    expert = tl.load(ids + row * K + rank, mask=rank < K, other=0).to(tl.int64)
    at = biases + (expert * (2 * RECORDS + H) + 2 * RECORDS)[:, None] + columns[None, :]
    found = tl.load(at, mask=(rank < K)[:, None] & inside[None, :], other=0.0)
    return tl.sum(found.to(tl.float32) * share[:, None], 0)


@triton.jit
def _host_sum(
    weights, host, host_part, row, columns, inside, K: tl.constexpr, KP: tl.constexpr, H: tl.constexpr
):
    """[BN]: sum over ranks of weight * y, where `host` [KP] says that there is a y."""
    rank = tl.arange(0, KP)
    y = host_part + (row * K + rank)[:, None] * H + columns[None, :]
    parts = tl.load(y, mask=host[:, None] & inside[None, :], other=0.0)
    share = tl.load(weights + row * K + rank, mask=rank < K, other=0.0)
    return tl.sum(parts * share[:, None], 0)


@triton.jit
def _shared_part(
    flat, down, first, columns, inside, row,
    H: tl.constexpr, WIDTH: tl.constexpr, AT: tl.constexpr, INNER: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """[BN]: sigmoid(weight's logit) * down @ (silu(gate) * up); `first` is the first piece of down."""
    base = flat + row * WIDTH + AT
    total = tl.zeros_like(columns).to(tl.float32)
    for begin in tl.static_range(0, INNER, BI):
        i = begin + tl.arange(0, BI)
        gate = tl.load(base + i, mask=i < INNER, other=0.0)
        up = tl.load(base + INNER + i, mask=i < INNER, other=0.0)
        act = gate / (1.0 + tl.exp(-gate)) * up
        if begin == 0:
            piece = first
        else:
            piece = _piece(down, columns, inside, i, INNER)
        total += tl.sum(piece.to(tl.float32) * act[None, :], 1)
    return total / (1.0 + tl.exp(-tl.load(base + 2 * INNER)))


@triton.jit
def _piece(down, columns, inside, i, INNER: tl.constexpr):
    """[BN, BI] of down."""
    at = down + columns[:, None] * INNER + i[None, :]
    return tl.load(at, mask=inside[:, None] & (i < INNER)[None, :], other=0.0)


@triton.jit
def _load_parts(
    partial, row, columns, inside,
    K: tl.constexpr, KP: tl.constexpr, H: tl.constexpr, CHUNKS: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """[KP * CP, BN] partial sums of one row's ranks and chunks, written in this step or not.

    One tile, so that all loads are in flight at once, before it is known what there is to be summed.
    """
    place = tl.arange(0, KP * CP)
    rank, chunk = place // CP, place % CP
    known = (rank < K) & (chunk < CHUNKS)
    at = partial + ((row * K + rank) * CHUNKS + chunk)[:, None] * H + columns[None, :]
    return tl.load(at, mask=known[:, None] & inside[None, :], other=0.0)


@triton.jit
def _device_part(
    parts, weights, seen, plan_slot, plan_cut, layer, row,
    P: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, RECORDS: tl.constexpr, RUN: tl.constexpr,
    CHUNKS: tl.constexpr, CP: tl.constexpr, HOST: tl.constexpr,
):  # fmt: skip
    """[BN]: sum over ranks and chunks of weight * partial sum, without those not written in this step."""
    place = tl.arange(0, KP * CP)
    rank, chunk = place // CP, place % CP
    pair = row * K + rank
    share = tl.load(weights + pair, mask=rank < K, other=0.0)
    device, _ = _cut(seen, plan_slot, plan_cut, layer, pair, rank < K, P, RECORDS, HOST)
    there = (rank < K) & (chunk < CHUNKS) & (chunk * RUN < device)
    return tl.sum(tl.where(there[:, None], parts * share[:, None], 0.0), 0)


@triton.jit(do_not_specialize=["layer"])
def combine_kernel(
    partial, host_part, weights, seen, plan_slot, plan_cut, rows, flat, down, biases, ids, x, layer,
    P: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, H: tl.constexpr, BN: tl.constexpr,
    BLOCKS: tl.constexpr, RECORDS: tl.constexpr, RUN: tl.constexpr, CHUNKS: tl.constexpr, CP: tl.constexpr,
    WIDTH: tl.constexpr, AT: tl.constexpr, INNER: tl.constexpr, BI: tl.constexpr, HOST: tl.constexpr,
    BIASED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0) // BLOCKS
    if row < tl.load(rows):
        columns = (tl.program_id(0) % BLOCKS) * BN + tl.arange(0, BN)
        inside = columns < H
        if INNER > 0:  # the shared expert's weights depend on nothing: they come while the experts still run
            first = _piece(down, columns, inside, tl.arange(0, BI), INNER)
        at = x + row * H + columns
        total = tl.zeros((BN,), tl.float32)
        wait_for_inputs(PDL)
        parts = _load_parts(partial, row, columns, inside, K, KP, H, CHUNKS, CP)
        residual = tl.load(at, mask=inside)
        if INNER > 0:
            total = _shared_part(flat, down, first, columns, inside, row, H, WIDTH, AT, INNER, BI)
        total += _device_part(
            parts, weights, seen, plan_slot, plan_cut, layer, row, P, K, KP, RECORDS, RUN, CHUNKS, CP, HOST
        )
        if HOST:
            rank = tl.arange(0, KP)
            _, host = _cut(seen, plan_slot, plan_cut, layer, row * K + rank, rank < K, P, RECORDS, True)
            if tl.sum(host.to(tl.int32), 0) > 0:
                total += _host_sum(weights, host, host_part, row, columns, inside, K, KP, H)
        if BIASED:
            total += _bias_sum(weights, ids, biases, row, columns, inside, K, KP, H, RECORDS)
        tl.store(at, residual + total, mask=inside)
