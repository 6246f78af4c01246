"""One token of the gated delta net for each live row: the part of the layer between its two projections.

Two launches. `_convolve` takes the causal convolution and silu of all channels and shifts its state, a
program for a block of channels of one row. `_step` does the rest for one row and value head: unit length,
decay, the rule on the state, the gated norm. It holds the whole state of the head, [dk, dv] float32, which is
read once and written once, so the norm over dv needs no further launch. Reference: `models.gated_delta_net`.

Both kernels load their states before they wait. They let the next one start only behind their own wait, so
that the kernel that wrote a state has finished when the other of the two lets anything start.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

CHANNELS = 256  # of one program of `_convolve`
STEP_WARPS = 4  # of a program of `_step`
LENGTH_FLOOR = tl.constexpr(1e-6)  # as in kernels.delta_rule.unit_length


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), and x itself past 20, as torch has it."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _convolve(  # noqa: PLR0913
    flat, taps, conv, slots, mixed, live, stride,
    KERNEL: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < SIZE
    if row >= tl.load(live):
        return
    # The state is the last KERNEL - 1 inputs, oldest first.
    state = conv + tl.load(slots + row).to(tl.int64) * ((KERNEL - 1) * SIZE) + channels
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in tl.static_range(KERNEL - 1):
        old = tl.load(state + tap * SIZE, mask=inside, other=0.0)
        total += old * tl.load(taps + tap * SIZE + channels, mask=inside, other=0.0)
    newest = tl.load(taps + (KERNEL - 1) * SIZE + channels, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    new = tl.load(flat + row * stride + channels, mask=inside, other=0.0)
    total += new * newest
    for tap in tl.static_range(KERNEL - 2):
        tl.store(state + tap * SIZE, tl.load(state + (tap + 1) * SIZE, mask=inside, other=0.0), mask=inside)
    if KERNEL > 1:
        tl.store(state + (KERNEL - 2) * SIZE, new, mask=inside)
    tl.store(mixed + row * SIZE + channels, silu(total), mask=inside)


@triton.jit
def _step(  # noqa: PLR0913
    flat, mixed, rate, bias, norm, recurrent, slots, out, live, stride, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DK_TILE: tl.constexpr, DV_TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    if row >= tl.load(live):
        return
    inner, columns = tl.arange(0, DK_TILE), tl.arange(0, DV_TILE)
    deep, wide = inner < DK, columns < DV
    slot = tl.load(slots + row).to(tl.int64)
    square = (slot * HEADS + head) * (DK * DV) + inner[:, None] * DV + columns[None, :]
    state = tl.load(recurrent + square, mask=deep[:, None] & wide[None, :], other=0.0)
    scale = tl.load(norm + columns, mask=wide, other=0.0)
    head_rate, head_bias = tl.load(rate + head), tl.load(bias + head)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    KEYS: tl.constexpr = KEY_HEADS * DK
    CHANNELS: tl.constexpr = 2 * KEYS + HEADS * DV
    vectors = mixed + row * CHANNELS
    keys = vectors + (head // (HEADS // KEY_HEADS)) * DK + inner
    q = tl.load(keys, mask=deep, other=0.0)
    k = tl.load(keys + KEYS, mask=deep, other=0.0)
    v = tl.load(vectors + 2 * KEYS + head * DV + columns, mask=wide, other=0.0)
    gates = flat + row * stride + CHANNELS
    z = tl.load(gates + head * DV + columns, mask=wide, other=0.0)
    beta = sigmoid(tl.load(gates + HEADS * DV + head))
    decay = head_rate * softplus(tl.load(gates + HEADS * DV + HEADS + head) + head_bias)
    q *= 1.0 / tl.sqrt((tl.sum(q * q) + LENGTH_FLOOR) * DK)
    k *= 1.0 / tl.sqrt(tl.sum(k * k) + LENGTH_FLOOR)
    state *= tl.exp(decay)
    correction = (v - tl.sum(state * k[:, None], axis=0)) * beta
    state += k[:, None] * correction[None, :]
    tl.store(recurrent + square, state, mask=deep[:, None] & wide[None, :])
    found = tl.sum(state * q[:, None], axis=0)
    normed = found / tl.sqrt(tl.sum(found * found) / DV + eps) * scale * silu(z)
    tl.store(out + (row * HEADS + head) * DV + columns, normed.to(out.dtype.element_ty), mask=wide)


def delta_decode(  # noqa: PLR0913
    flat: torch.Tensor,
    spec: DeltaShape,
    taps: torch.Tensor,
    rate: torch.Tensor,
    bias: torch.Tensor,
    norm: torch.Tensor,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    slots: torch.Tensor,
    mixed: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Advance the states of the first rows[0] rows by one token and write out T [B, values].

    flat float32 [B, spec.width] is q | k | v | z | b | a; taps float32 [kernel, channels], oldest first; rate
    (-exp A_log) and bias float32 [value heads]; norm float32 [dv]; conv float32 [slots, kernel - 1, channels]
    and recurrent float32 [slots, value heads, dk, dv], both contiguous, advanced in place; slots int32 [B],
    the live ones distinct; mixed float32 [B, channels] scratch; rows int32 [1].
    """
    batch = len(slots)
    key_dim, value_dim = spec.key_dim, spec.value_dim
    launch(
        _convolve, (batch, triton.cdiv(spec.channels, CHANNELS)),
        flat, taps, conv, slots, mixed, rows, flat.stride(0),
        KERNEL=spec.kernel, SIZE=spec.channels, BLOCK=CHANNELS, warps=2,
    )  # fmt: skip
    launch(
        _step, (batch, spec.value_heads),
        flat, mixed, rate, bias, norm, recurrent, slots, out, rows, flat.stride(0), spec.eps,
        KEY_HEADS=spec.key_heads, HEADS=spec.value_heads, DK=key_dim, DV=value_dim,
        DK_TILE=triton.next_power_of_2(key_dim), DV_TILE=triton.next_power_of_2(value_dim),
        warps=STEP_WARPS,
    )  # fmt: skip
