"""Experts of a decode step: gate, up and down of a run of records in one program.

An expert is `records` [I, 3, H]: row i of gate, row i of up, column i of down. A program reads a run of one
pair's records once and leaves a partial sum; `combine` adds them up. Experts lie in slots, reached by
address.

With a host (some experts are not in a slot) the first program tells it what is needed, and where something
misses waits for its plan: which slot the expert will be in, from which record on the host computes it itself.
Programs of pairs that hit come next and never wait, then those of pairs that miss, and last those that bring
what the host computed into device memory, so that `combine` reads nothing over the link: what waits cannot
keep what works from a multiprocessor. Waits are bounded; one that runs out sets `fail` and goes on.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: PLR0913 (a kernel takes what it takes)
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.expert_plan import MAX_UPDATES, NO_HOST, ExpertStep
from ftagent.engine.kernels.gpu.grouped import SILU, joined
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs
from ftagent.engine.kernels.gpu.signals import acquire, publish, wait_for_epoch, wait_for_ticket
from ftagent.engine.kernels.swiglu import Swiglu

HOST_COLUMNS = 512  # of H that one program brings from the host, for all experts of a row


def experts_step(
    step: ExpertStep,
    layer: int,
    normed: torch.Tensor,
    ids: torch.Tensor,
    seen: torch.Tensor,
    guess: torch.Tensor | None,
    biases: torch.Tensor | None = None,
    how: Swiglu = SILU,
) -> None:
    """step.partial: for each live pair, act_i * down_i summed over the records of a chunk, act_i =
    silu(gate_i . x) * (up_i . x), as far as the device computes them.

    layer counts MoE layers; normed T [B, H]; ids, seen int32 [B, k], guess int32 [B, G] or None of `route`.
    biases T [E, 2I + H] of the layer's experts, gate | up | down: those of gate and up are added, that of
    down is left to the caller; `how` gate and up become one. Without a host a pair that misses fails the
    step.
    """
    plan, tables, host, epoch, rows, partial, host_part = step
    (batch, hidden), per_token = normed.shape, ids.shape[1]
    pairs, most = batch * per_token, tables.plan_slot.shape[1]
    guesses = 0 if guess is None else guess.shape[1]
    met = NO_HOST if host is None else host
    with_host = int(host is not None)
    strips = with_host * triton.cdiv(hidden, HOST_COLUMNS)
    launch(
        experts_kernel,
        (with_host + pairs * plan.chunks + batch * strips,),
        normed, ids, seen, ids if guess is None else guess, tables.slot_of, tables.slot_ptr, tables.landed,
        tables.plan_slot, tables.plan_cut, tables.plan_ticket, tables.plan_ready, tables.fail, epoch, rows,
        normed if biases is None else biases, partial, host_part,
        met.post, met.planned, met.done, met.ids, met.seen, met.guess, met.slot,
        met.cut, met.ticket, met.updates, met.update_index, met.update_value, met.x, met.y, layer,
        pairs * plan.chunks,
        warps=plan.warps,
        num_stages=plan.stages,
        P=most,
        PP=triton.next_power_of_2(most),
        LAUNCHED=triton.next_power_of_2(pairs),
        K=per_token,
        KP=triton.next_power_of_2(per_token),
        G=guesses,
        GP=triton.next_power_of_2(max(1, most // per_token * guesses)),
        H=hidden,
        HP=triton.next_power_of_2(hidden),
        RECORDS=plan.intermediate,
        RUN=plan.run,
        BLOCK=plan.block,
        CHUNKS=plan.chunks,
        STAGES=plan.stages,
        UPDATES=MAX_UPDATES,
        HOST=with_host,
        STRIPS=max(1, strips),
        STRIP=HOST_COLUMNS,
        BIASED=biases is not None,
        ALPHA=how.alpha,
        LIMIT=how.limit,
        OFFSET=how.offset,
        PATIENCE=met.patience_ns,
    )  # fmt: skip


@triton.jit
def _int32(address):
    return address.to(tl.pointer_type(tl.int32))


@triton.jit
def _post(
    normed, ids, seen, guess, epoch, to_post, to_ids, to_seen, to_guess, to_x, layer, live,
    P: tl.constexpr, PP: tl.constexpr, K: tl.constexpr, G: tl.constexpr, GP: tl.constexpr,
    H: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """Tell the host what layer `layer` needs. Returns how many pairs miss."""
    pair = tl.arange(0, PP)
    chosen = tl.load(ids + pair, mask=pair < live, other=-1)
    slots = tl.load(seen + pair, mask=pair < live, other=-1)
    tl.store(_int32(to_ids) + layer * P + pair, chosen, mask=pair < P)
    tl.store(_int32(to_seen) + layer * P + pair, slots, mask=pair < P)
    if G > 0:
        place = tl.arange(0, GP)
        size: tl.constexpr = P // K * G
        guesses = tl.load(guess + place, mask=place < live // K * G, other=-1)
        tl.store(_int32(to_guess) + layer * size + place, guesses, mask=place < size)
    h = tl.arange(0, HP)
    to_row = tl.multiple_of(to_x.to(tl.pointer_type(normed.dtype.element_ty)), 16)
    for row in range(live // K):
        x = tl.load(normed + row * H + h, mask=h < H)
        tl.store(to_row + row * H + h, x, mask=h < H)
    publish(_int32(to_post) + layer * 16, epoch, True)
    return tl.sum(((pair < live) & (slots < 0)).to(tl.int32), 0)


@triton.jit
def _take_plan(
    slot_of, plan_slot, plan_cut, plan_ticket, plan_ready, fail, epoch,
    to_planned, to_slot, to_cut, to_ticket, to_updates, to_index, to_value, layer, patience,
    P: tl.constexpr, PP: tl.constexpr, RECORDS: tl.constexpr, UPDATES: tl.constexpr,
):  # fmt: skip
    """Wait for the host's plan and hand it to the other programs; if there is none, one that does nothing."""
    answer = wait_for_epoch(_int32(to_planned) + layer * 16, epoch, patience)
    acquire(True)
    pair = tl.arange(0, PP)
    taken = pair < tl.where(answer == epoch, P, 0)
    at = layer * P + pair
    slot = tl.load(_int32(to_slot) + at, mask=taken, other=-1, volatile=True)
    cut = tl.load(_int32(to_cut) + at, mask=taken, other=RECORDS, volatile=True)
    ticket = tl.load(_int32(to_ticket) + at, mask=taken, other=0, volatile=True)
    change = tl.arange(0, UPDATES)
    written = change < tl.where(answer == epoch, UPDATES, 0)
    count = tl.load(_int32(to_updates) + layer, volatile=True)  # read beside the entries, not before them
    index = tl.load(_int32(to_index) + layer * UPDATES + change, mask=written, other=0, volatile=True)
    value = tl.load(_int32(to_value) + layer * UPDATES + change, mask=written, other=0, volatile=True)
    tl.store(plan_slot + at, slot, mask=pair < P)
    tl.store(plan_cut + at, cut, mask=pair < P)
    tl.store(plan_ticket + at, ticket, mask=pair < P)
    tl.store(slot_of + index, value, mask=written & (change < count))
    tl.store(fail, 1, mask=answer != epoch)
    publish(plan_ready + layer, epoch, False)


@triton.jit
def _in_launch_order(seen, live, wanted, PP: tl.constexpr):
    """(pair, slot) of the `wanted`-th live pair when those that hit come first."""
    pair = tl.arange(0, PP)
    slots = tl.load(seen + pair, mask=pair < live, other=-1)
    hit = (slots >= 0).to(tl.int32)
    before = tl.cumsum(hit, 0)  # hits up to and with this pair
    place = tl.where(slots >= 0, before - 1, tl.sum(hit, 0) + pair - before)
    mine = (place == wanted) & (pair < live)
    return tl.sum(tl.where(mine, pair, 0), 0), tl.sum(tl.where(mine, slots, 0), 0)


@triton.jit
def _await_plan(
    landed, plan_slot, plan_cut, plan_ticket, plan_ready, fail, epoch, layer, pair, first, last, patience,
    P: tl.constexpr,
):  # fmt: skip
    """(slot, last) of a pair that missed, once the records [first, last) are there."""
    ready = wait_for_epoch(plan_ready + layer, epoch, patience)
    acquire(False)
    at = layer * P + pair
    slot = tl.load(plan_slot + at, volatile=True)
    last = tl.minimum(last, tl.load(plan_cut + at, volatile=True))
    ticket = tl.load(plan_ticket + at, volatile=True)
    late = tl.abs(ready) != epoch
    if (slot >= 0) & (ticket != 0) & (first < last):
        there = wait_for_ticket(landed + slot, ticket, patience)
        acquire(True)  # the copy engine wrote the records
        late = late | (there - ticket < 0)
    tl.store(fail, 1, mask=late)
    return slot, last


@triton.jit
def _sum_run(
    normed, records, ids, biases, partial, pair, first, last,
    K: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr, STAGES: tl.constexpr, RECORDS: tl.constexpr, BIASED: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Records [first, last) of one expert on one row. Threads own columns of H, so the sum over records
    stays in a thread; only the two dot products cross threads."""
    h = tl.arange(0, HP)
    x = tl.load(normed + (pair // K) * H + h, mask=h < H, other=0.0).to(tl.float32)
    total = tl.zeros((HP,), tl.float32)
    if BIASED:
        biases += tl.load(ids + pair).to(tl.int64) * (2 * RECORDS + H)
    for begin in tl.range(first, last, BLOCK, num_stages=STAGES):
        record = begin + tl.arange(0, BLOCK)
        at = records + record[:, None] * (3 * H) + h[None, :]
        live = (record < last)[:, None] & (h < H)[None, :]
        gates = tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
        ups = tl.load(at + H, mask=live, other=0.0, cache_modifier=".cg")
        downs = tl.load(at + 2 * H, mask=live, other=0.0, cache_modifier=".cg")
        gate = tl.sum(gates.to(tl.float32) * x[None, :], 1)
        up = tl.sum(ups.to(tl.float32) * x[None, :], 1)
        if BIASED:
            gate += tl.load(biases + record, mask=record < last, other=0.0).to(tl.float32)
            up += tl.load(biases + RECORDS + record, mask=record < last, other=0.0).to(tl.float32)
        act = joined(gate, up, ALPHA, LIMIT, OFFSET)
        total += tl.sum(downs.to(tl.float32) * act[:, None], 0)
    tl.store(partial + (pair * CHUNKS + first // RUN) * H + h, total, mask=h < H)


@triton.jit
def _bring_host_part(
    seen, plan_cut, plan_ready, fail, epoch, from_done, from_y, host_part, layer, row, first, patience,
    P: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, H: tl.constexpr, RECORDS: tl.constexpr,
    STRIP: tl.constexpr,
):  # fmt: skip
    """Columns [first, first + STRIP) of what the host computes for a row; zeros for what never comes."""
    rank = tl.arange(0, KP)
    pair = row * K + rank
    slots = tl.load(seen + pair, mask=rank < K, other=0)
    missed = (rank < K) & (slots < 0)
    if tl.sum(missed.to(tl.int32), 0) > 0:
        # Twice the patience of the program that meets the host, as those that compute have.
        ready = wait_for_epoch(plan_ready + layer, epoch, 2 * patience)
        acquire(False)
        cut = tl.load(plan_cut + layer * P + pair, mask=missed, other=RECORDS, volatile=True)
        host = missed & (cut < tl.where(ready == epoch, RECORDS, 0))
        tl.store(fail, 1, mask=ready != epoch)
        if tl.sum(host.to(tl.int32), 0) > 0:
            answer = wait_for_epoch(_int32(from_done) + layer * 16, epoch, patience)
            acquire(True)
            tl.store(fail, 1, mask=answer != epoch)
            columns = first + tl.arange(0, STRIP)
            at = pair[:, None] * H + columns[None, :]
            mine = host[:, None] & (columns < H)[None, :]
            there = mine & (columns < tl.where(answer == epoch, H, 0))[None, :]
            # Not volatile: those are four bytes wide, and each costs the link as much as a line does.
            y = tl.load(
                tl.multiple_of(from_y.to(tl.pointer_type(tl.float32)), 16) + at,
                mask=there, other=0.0, cache_modifier=".cv",
            )  # fmt: skip
            tl.store(host_part + at, y, mask=mine)


@triton.jit(do_not_specialize=["layer", "computing"])
def experts_kernel(
    normed, ids, seen, guess, slot_of, slot_ptr, landed, plan_slot, plan_cut, plan_ticket, plan_ready, fail,
    epoch, rows, biases, partial, host_part, to_post, to_planned, from_done, to_ids, to_seen, to_guess,
    to_slot, to_cut, to_ticket, to_updates, to_index, to_value, to_x, from_y, layer, computing,
    P: tl.constexpr, PP: tl.constexpr, LAUNCHED: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    G: tl.constexpr, GP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, RECORDS: tl.constexpr,
    RUN: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, UPDATES: tl.constexpr,
    HOST: tl.constexpr, STRIPS: tl.constexpr, STRIP: tl.constexpr, BIASED: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, OFFSET: tl.constexpr, PATIENCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    live = tl.load(rows) * K
    work = tl.program_id(0) - HOST
    wait_for_inputs(PDL)
    now = tl.load(epoch)
    # A step that has failed is void: nothing in it waits any longer.
    patience = tl.where(tl.load(fail) == 0, tl.full((), PATIENCE, tl.int64), 0)
    if work < 0:
        if HOST:
            missing = _post(
                normed, ids, seen, guess, now, to_post, to_ids, to_seen, to_guess, to_x, layer, live,
                P, PP, K, G, GP, H, HP,
            )  # fmt: skip
            if missing > 0:
                _take_plan(
                    slot_of, plan_slot, plan_cut, plan_ticket, plan_ready, fail, now, to_planned, to_slot,
                    to_cut, to_ticket, to_updates, to_index, to_value, layer, patience,
                    P, PP, RECORDS, UPDATES,
                )  # fmt: skip
    elif work >= computing:
        if HOST:
            strip = work - computing
            if strip // STRIPS * K < live:
                _bring_host_part(
                    seen, plan_cut, plan_ready, fail, now, from_done, from_y, host_part, layer,
                    strip // STRIPS, strip % STRIPS * STRIP, patience, P, K, KP, H, RECORDS, STRIP,
                )  # fmt: skip
    elif work // CHUNKS < live:
        if HOST:
            pair, slot = _in_launch_order(seen, live, work // CHUNKS, LAUNCHED)
        else:
            pair = work // CHUNKS
            slot = tl.load(seen + pair)
        first = (work % CHUNKS) * RUN
        last = tl.minimum(first + RUN, RECORDS)
        if slot < 0:
            if HOST:
                # Twice the patience of the program that meets the host: that one tells how it ended.
                slot, last = _await_plan(
                    landed, plan_slot, plan_cut, plan_ticket, plan_ready, fail, now, layer, pair, first, last,
                    2 * patience, P,
                )  # fmt: skip
            else:
                tl.store(fail, 1)
        if (slot >= 0) & (first < last):
            records = tl.load(slot_ptr + slot).to(tl.pointer_type(normed.dtype.element_ty))
            _sum_run(
                normed, tl.multiple_of(records, 16), ids, biases, partial, pair, first, last,
                K, H, HP, RUN, BLOCK, CHUNKS, STAGES, RECORDS, BIASED, ALPHA, LIMIT, OFFSET,
            )  # fmt: skip
