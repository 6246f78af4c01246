"""The best logits of each row, exactly, so that the host samples from 64 numbers instead of a vocabulary.

Every logit becomes one 64-bit key that orders by value and then by lower id. Blocks of keys are cut to their
best 64 side by side, and those again, until one block is left (bitonic top-k: Shanbhag et al., "Efficient
Top-K Query Processing on Massively Parallel Hardware"). Three launches do a vocabulary of 262,144. Knows no
temperatures and no grammars.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

CANDIDATES = 64
BLOCK = 1024  # keys of a program
WARPS = 8
NOTHING = -(2**63)  # below every key; the interpreter wants such constants as arguments
LOW_HALF = 2**31 - 1


@triton.jit
def _to_keys(logits, ids, LOW: tl.constexpr):
    """int64 keys: float order in the high half (NaN above all, both zeros equal), lower ids first."""
    logits = tl.where(logits == 0.0, 0.0, logits)
    bits = logits.to(tl.int32, bitcast=True)
    ordered = tl.where(logits != logits, LOW, bits ^ ((bits >> 31) & LOW))
    return (ordered.to(tl.int64) << 32) | (LOW - ids).to(tl.int64)


@triton.jit
def _to_logits(keys, NOTHING: tl.constexpr, LOW: tl.constexpr):
    """float32 value and id of each key."""
    ordered = (keys >> 32).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & LOW)
    empty = keys == NOTHING
    values = tl.where(empty, float("-inf"), bits.to(tl.float32, bitcast=True))
    ids = tl.where(empty, -1, LOW - (keys & 0xFFFFFFFF).to(tl.int32))
    return values, ids


@triton.jit
def _best(  # noqa: PLR0913
    source, target, values, ids, live, count, target_count,
    FIRST: tl.constexpr, LAST: tl.constexpr, BEST: tl.constexpr, SIZE: tl.constexpr,
    NOTHING: tl.constexpr, LOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if row >= tl.load(live):
        return
    places = block * SIZE + tl.arange(0, SIZE)
    inside = places < count
    if FIRST:
        logits = tl.load(source + row * count + places, mask=inside, other=0.0)
        keys = tl.where(inside, _to_keys(logits, places, LOW), NOTHING)
    else:
        keys = tl.load(source + row * count + places, mask=inside, other=NOTHING)
    best = tl.topk(keys, BEST)
    ranks = tl.arange(0, BEST)
    if LAST:
        found, names = _to_logits(best, NOTHING, LOW)
        first = tl.max(best)
        spoilt = (first >> 32) == LOW
        tl.store(values + row * BEST + ranks, tl.where(spoilt, float("nan"), found))
        tl.store(ids + row * BEST + ranks, names)
    else:
        tl.store(target + row * target_count + block * BEST + ranks, best)


def candidates(logits: torch.Tensor, values: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
    """The 64 best of each of the first rows[0] rows, best first; of equal ones the lower id first.

    logits float32 [B, V], contiguous; values float32 [B, 64]; ids int32 [B, 64]; rows int32 [1]. A row with a
    NaN gets NaN for all values. With V under 64 the rest is -inf with id -1.
    """
    batch, count = logits.shape
    source = logits
    while True:
        blocks = triton.cdiv(count, BLOCK)
        target_count = blocks * CANDIDATES
        target = values if blocks == 1 else logits.new_empty(batch, target_count, dtype=torch.int64)
        launch(
            _best,
            (blocks, batch),
            source, target, values, ids, rows, count, target_count,
            FIRST=source is logits, LAST=blocks == 1, BEST=CANDIDATES, SIZE=BLOCK,
            NOTHING=NOTHING, LOW=LOW_HALF, warps=WARPS,
        )  # fmt: skip
        if blocks == 1:
            return
        source, count = target, target_count
