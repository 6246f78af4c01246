"""RMS norm of prefill rows. Reference: `models.layers.RmsNorm`."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ftagent.engine.kernels.gpu.launch import launch, let_next_start, wait_for_inputs

TILE_ELEMENTS = 4096  # of one program, in whole rows
LANE_ELEMENTS = 16  # in one thread


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(  # noqa: PLR0913
    x, norm, out, rows, stride, eps,
    SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, TILE)
    inside = (row < rows) & (columns < SIZE)[None, :]
    wide = tl.load(x + row * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(norm + columns, mask=columns < SIZE, other=0.0)
    normed = wide / tl.sqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)[:, None] * scale[None, :]
    tl.store(out + row * SIZE + columns[None, :], normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean x^2 + eps) * norm over the last dimension of x T [rows, H], in float32, rounded to T.

    norm float32 [H], with the 1 of centred norms in it.
    """
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    tile = triton.next_power_of_2(size)
    block = max(1, min(16, TILE_ELEMENTS // tile))
    warps = max(1, min(16, block * tile // (32 * LANE_ELEMENTS)))
    launch(
        _rms_norm, (triton.cdiv(rows, block),), x, norm, out, rows, x.stride(0), eps,
        SIZE=size, ROWS=block, TILE=tile, warps=warps,
    )  # fmt: skip
    return out
