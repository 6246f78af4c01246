"""Prefill rows of a gated delta net layer, before the delta rule and behind it.

Causal convolution, silu and unit length of a head's vectors are one pass over the projection; decay and step
size another, over few columns; the gated norm a third. Knows the layout of the projection (q | k | v | z | b
| a) and nothing of the rule itself. Reference: `models.gated_delta_net`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.delta_rule import DeltaInputs
from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.delta import LENGTH_FLOOR, sigmoid, silu, softplus
from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

ROWS = 16  # tokens of one program; the convolution reads kernel - 1 more


@triton.jit(do_not_specialize=["tokens"])
def _convolve_heads(  # noqa: PLR0913
    flat, taps, conv, mixed, tokens, stride,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KERNEL: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one head of q, k or v."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    head = tl.program_id(1)
    is_key = head < 2 * KEY_HEADS
    first = tl.where(is_key, head * DK, 2 * KEY_HEADS * DK + (head - 2 * KEY_HEADS) * DV)
    size = tl.where(is_key, DK, DV)
    SIZE: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    inner = tl.arange(0, TILE)
    inside = (inner < size)[None, :]
    channels = first + inner
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (token < tokens)[:, None] & inside
    total = tl.zeros([ROWS, TILE], dtype=tl.float32)
    for tap in tl.static_range(KERNEL):
        source = token + (tap - KERNEL + 1)
        new = flat + source.to(tl.int64)[:, None] * stride + channels[None, :]
        old = conv + (source + KERNEL - 1)[:, None] * SIZE + channels[None, :]
        value = tl.load(new, mask=live & (source >= 0)[:, None], other=0.0).to(tl.float32)
        value += tl.load(old, mask=live & (source < 0)[:, None], other=0.0)
        total += value * tl.load(taps + tap * SIZE + channels, mask=inner < size, other=0.0)[None, :]
    total = tl.where(live, silu(total), 0.0)
    # q is also scaled by 1 / sqrt(dk).
    length = (tl.sum(total * total, axis=1) + LENGTH_FLOOR) * tl.where(head < KEY_HEADS, DK, 1)
    scale = tl.where(is_key, 1.0 / tl.sqrt(length), 1.0)
    tl.store(
        mixed + token.to(tl.int64)[:, None] * SIZE + channels[None, :], total * scale[:, None], mask=live
    )


@triton.jit(do_not_specialize=["tokens"])
def _gates(  # noqa: PLR0913
    b, a, rate, bias, decay, beta, tokens, stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.arange(0, TILE)
    inside = head < HEADS
    mask = (token < tokens)[:, None] & inside[None, :]
    place = token[:, None] * stride + head[None, :]
    step = sigmoid(tl.load(b + place, mask=mask, other=0.0).to(tl.float32))
    shifted = tl.load(a + place, mask=mask, other=0.0).to(tl.float32)
    shifted += tl.load(bias + head, mask=inside, other=0.0)[None, :]
    log_decay = tl.load(rate + head, mask=inside, other=0.0)[None, :] * softplus(shifted)
    target = token[:, None] * HEADS + head[None, :]
    tl.store(beta + target, step, mask=mask)
    tl.store(decay + target, log_decay, mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _gated_norm(  # noqa: PLR0913
    found, z, norm, out, tokens, stride, eps,
    HEADS: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1)
    inner = tl.arange(0, TILE)
    mask = (token < tokens)[:, None] & (inner < DV)[None, :]
    place = (token[:, None] * HEADS + head) * DV + inner[None, :]
    x = tl.load(found + place, mask=mask, other=0.0)
    gate = tl.load(z + token[:, None] * stride + head * DV + inner[None, :], mask=mask, other=0.0)
    scale = tl.load(norm + inner, mask=inner < DV, other=0.0)
    normed = x / tl.sqrt(tl.sum(x * x, axis=1) / DV + eps)[:, None]
    normed = normed * scale[None, :] * silu(gate.to(tl.float32))
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=mask)


def delta_rows(
    flat: torch.Tensor,
    spec: DeltaShape,
    taps: torch.Tensor,
    rate: torch.Tensor,
    bias: torch.Tensor,
    conv: torch.Tensor,
) -> DeltaInputs:
    """The rows of the rule for the tokens of one request, all float32.

    flat T [n, spec.width], dense rows, is q | k | v | z | b | a; taps float32 [kernel, channels], oldest
    first; rate (-exp A_log) and bias float32 [value heads]; conv float32 [kernel - 1, channels] contiguous,
    the last inputs before these tokens, replaced by the last ones of these. query and key have one vector
    for each key head; query, key and value are views of one tensor [n, channels].
    """
    tokens, columns = len(flat), spec.kernel - 1
    mixed = torch.empty(tokens, spec.channels, dtype=torch.float32, device=flat.device)
    tile = triton.next_power_of_2(max(spec.key_dim, spec.value_dim))
    blocks = triton.cdiv(tokens, ROWS)
    launch(
        _convolve_heads, (blocks, 2 * spec.key_heads + spec.value_heads),
        flat, taps, conv, mixed, tokens, flat.stride(0),
        KEY_HEADS=spec.key_heads, HEADS=spec.value_heads, DK=spec.key_dim, DV=spec.value_dim,
        KERNEL=spec.kernel, ROWS=ROWS, TILE=tile,
    )  # fmt: skip
    if tokens >= columns:
        conv.copy_(flat[tokens - columns :, : spec.channels])
    else:
        conv.copy_(torch.cat((conv[tokens:], flat[:, : spec.channels].float())))
    decay, beta = (
        torch.empty(tokens, spec.value_heads, dtype=torch.float32, device=flat.device) for _ in range(2)
    )
    first = spec.channels + spec.values
    b, a = flat[:, first : first + spec.value_heads], flat[:, first + spec.value_heads :]
    launch(
        _gates, (blocks,), b, a, rate, bias, decay, beta, tokens, flat.stride(0),
        HEADS=spec.value_heads, ROWS=ROWS, TILE=triton.next_power_of_2(spec.value_heads),
    )  # fmt: skip
    query, key, value = mixed.split_with_sizes((spec.keys, spec.keys, spec.values), dim=1)
    return DeltaInputs(
        query.view(tokens, spec.key_heads, spec.key_dim),
        key.view(tokens, spec.key_heads, spec.key_dim),
        value.view(tokens, spec.value_heads, spec.value_dim),
        decay,
        beta,
    )


def gated_norm(found: torch.Tensor, flat: torch.Tensor, spec: DeltaShape, norm: torch.Tensor) -> torch.Tensor:
    """rmsnorm(found) * norm * silu(z) of the rule's result `found` float32 [n, value heads, dv].

    z is taken from `flat`, as for `delta_rows`; norm float32 [dv]. Returns T [n, value heads * dv], the dtype
    of flat.
    """
    tokens = len(flat)
    out = torch.empty(tokens, spec.values, dtype=flat.dtype, device=flat.device)
    launch(
        _gated_norm, (triton.cdiv(tokens, ROWS), spec.value_heads),
        found, flat[:, spec.channels :], norm, out, tokens, flat.stride(0), spec.eps,
        HEADS=spec.value_heads, DV=spec.value_dim, ROWS=ROWS, TILE=triton.next_power_of_2(spec.value_dim),
    )  # fmt: skip
    return out
