"""Flags between programs, and between the device and the host: how they are raised and waited for.

Writes before `publish` are visible to whoever saw the flag and called `acquire`. Every wait is bounded.
Memory order as in the PTX manual, "Memory consistency model": a relaxed poll by each thread, then a fence; a
CTA barrier, then a release store by one thread. Under the interpreter programs run one after another and the
host is another Python thread, so plain loads and stores do.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import INTERPRETED

NATIVE = tl.constexpr(not INTERPRETED)
INTERPRETED_POLL_NS = tl.constexpr(20_000)  # roughly what a poll takes there, which has no clock


@triton.jit
def _spent(begin, spent):
    """Nanoseconds since `begin`, a reading of the device's clock."""
    if NATIVE:
        return tl.extra.cuda.globaltimer() - begin
    else:
        return spent + INTERPRETED_POLL_NS


@triton.jit
def _clock():
    if NATIVE:
        return tl.extra.cuda.globaltimer()
    else:
        return tl.full((), 0, tl.int64)


@triton.jit
def acquire(SYSTEM: tl.constexpr):
    """What was written before the flag that this program has seen may be read from here on."""
    if NATIVE:
        if SYSTEM:
            tl.inline_asm_elementwise(
                "fence.acq_rel.sys; mov.u32 $0, 0;", "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1
            )
        else:
            tl.inline_asm_elementwise(
                "fence.acq_rel.gpu; mov.u32 $0, 0;", "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1
            )


@triton.jit
def publish(flag, value, SYSTEM: tl.constexpr):
    """Set the int32 `flag` after all that this program wrote before, for the device or the whole system."""
    if NATIVE:
        tl.debug_barrier()
        address = flag.to(tl.int64)
        if SYSTEM:
            tl.inline_asm_elementwise(
                """{
                .reg .pred first;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first st.release.sys.global.s32 [$1], $2;
                mov.u32 $0, 0;
                }""",
                "=r,l,r,~{memory}", [address, value], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.inline_asm_elementwise(
                """{
                .reg .pred first;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first st.release.gpu.global.s32 [$1], $2;
                mov.u32 $0, 0;
                }""",
                "=r,l,r,~{memory}", [address, value], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    else:
        tl.store(flag, value)


@triton.jit
def wait_for_epoch(flag, epoch, patience):
    """The int32 `flag` once it is epoch or -epoch, or what it was after `patience` nanoseconds."""
    value = tl.load(flag, volatile=True)
    begin = _clock()
    spent = begin - begin
    while (tl.abs(value) != epoch) & (spent < patience):
        value = tl.load(flag, volatile=True)
        spent = _spent(begin, spent)
    return value


@triton.jit
def wait_for_ticket(flag, ticket, patience):
    """The int32 `flag` once it has come to `ticket` (numbers wrap around), or after `patience`."""
    value = tl.load(flag, volatile=True)
    begin = _clock()
    spent = begin - begin
    while (value - ticket < 0) & (spent < patience):
        value = tl.load(flag, volatile=True)
        spent = _spent(begin, spent)
    return value
