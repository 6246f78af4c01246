"""From router logits to experts, weights and slots: one program for a row, one more for its look-ahead.

Softmax over all experts in float32, the k largest with ties to the lower id, optionally divided by their sum
(the router of Qwen3-MoE and its successors; the same numbers as `models.layers.Moe`). Knows no expert
weights: a slot is only looked up.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: PLR0913 (a kernel takes what it takes)
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

MAX_EXPERTS = 512
LOWEST = tl.constexpr(-(2**31))  # below the key of every number


@dataclass(frozen=True)
class RouteSpec:
    """How logits become a choice. `guess_at` is the column of the next layer's logits, -1 for none.

    Raises ValueError for sizes that the kernel does not take.
    """

    experts: int
    per_token: int
    renormalise: bool
    guess_at: int = -1

    def __post_init__(self) -> None:
        if not 0 < self.experts <= MAX_EXPERTS:
            raise ValueError(f"route: {self.experts} experts, the kernel takes 1 to {MAX_EXPERTS}")
        if not 0 < self.per_token <= self.experts:
            raise ValueError(f"route: {self.per_token} of {self.experts} experts a token")


def route(
    flat: torch.Tensor,
    spec: RouteSpec,
    slot_of: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    seen: torch.Tensor,
    guess: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """For each live row of `flat` float32 [B, >= experts]: ids int32 [B, k], best first, weights float32
    [B, k], seen int32 [B, k] = slot_of[ids] (slot_of int32 [experts]; -1 is a miss).

    guess int32 [B, G]: the G largest logits of the next layer, from column spec.guess_at; None without it.
    rows int32 [1]: rows from rows[0] on are left as they are.
    """
    guesses = 0 if guess is None or spec.guess_at < 0 else guess.shape[1]
    launch(
        route_kernel,
        (flat.shape[0], 2 if guesses else 1),
        flat,
        slot_of,
        ids,
        weights,
        seen,
        ids if guess is None else guess,
        rows,
        warps=1,
        WIDTH=flat.stride(0),
        E=spec.experts,
        EP=max(32, triton.next_power_of_2(spec.experts)),
        K=spec.per_token,
        KP=triton.next_power_of_2(max(spec.per_token, guesses)),
        RENORMALISE=spec.renormalise,
        GUESS_AT=spec.guess_at,
        G=guesses,
    )


@triton.jit
def _largest(keys, columns, COUNT: tl.constexpr, KP: tl.constexpr):
    """The COUNT largest of the int32 `keys`, best first, ties to the lower column: columns, keys [KP]."""
    rank = tl.arange(0, KP)
    chosen = tl.zeros((KP,), tl.int32)
    best = tl.zeros((KP,), tl.int32)
    for i in tl.static_range(COUNT):
        top = tl.max(keys, 0)
        place = tl.min(tl.where(keys == top, columns, 2147483647), 0)
        keys = tl.where(columns == place, LOWEST, keys)
        chosen = tl.where(rank == i, place, chosen)
        best = tl.where(rank == i, top, best)
    return chosen, best


@triton.jit
def _choose(
    logits, slot_of, ids, weights, seen, row, columns, live,
    K: tl.constexpr, KP: tl.constexpr, RENORMALISE: tl.constexpr,
):  # fmt: skip
    shifted = tl.exp(logits - tl.max(logits, 0))
    scores = shifted / tl.sum(tl.where(live, shifted, 0.0), 0)
    # The bits of numbers that are not negative are ordered as the numbers are, and integers reduce faster.
    keys = tl.where(live, scores.to(tl.int32, bitcast=True), LOWEST)
    chosen, best = _largest(keys, columns, K, KP)
    rank = tl.arange(0, KP)
    taken = rank < K
    share = tl.where(taken, best.to(tl.float32, bitcast=True), 0.0)
    if RENORMALISE:
        share = share / tl.sum(share, 0)
    at = row * K + rank
    tl.store(ids + at, chosen, mask=taken)
    tl.store(weights + at, share, mask=taken)
    tl.store(seen + at, tl.load(slot_of + chosen, mask=taken, other=-1), mask=taken)


@triton.jit
def route_kernel(
    flat, slot_of, ids, weights, seen, guess, rows,
    WIDTH: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    RENORMALISE: tl.constexpr, GUESS_AT: tl.constexpr, G: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0)
    if row < tl.load(rows):
        columns = tl.arange(0, EP)
        live = columns < E
        wait_for_inputs(PDL)
        if tl.program_id(1) == 0:
            logits = tl.load(flat + row * WIDTH + columns, mask=live, other=float("-inf"))
            _choose(logits, slot_of, ids, weights, seen, row, columns, live, K, KP, RENORMALISE)
        elif G > 0:
            logits = tl.load(flat + row * WIDTH + GUESS_AT + columns, mask=live, other=float("-inf"))
            bits = logits.to(tl.int32, bitcast=True)
            keys = tl.where(live, bits ^ ((bits >> 31) & 0x7FFFFFFF), LOWEST)
            chosen, _ = _largest(keys, columns, G, KP)
            rank = tl.arange(0, KP)
            tl.store(guess + row * G + rank, chosen, mask=rank < G)
