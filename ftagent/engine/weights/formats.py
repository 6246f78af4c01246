"""Stored weight formats and their plain values. Knows dtypes and scale blocks, not names or models.

FP8 block: weight E4M3 [..., out, in] with one scale for each 128 x 128 block, [..., ceil(out/128),
ceil(in/128)]; value = weight * scale (DeepSeek-V3 and the FP8 releases of Qwen). Blocks at the edges are
partial.
"""

from __future__ import annotations

import torch

PLAIN_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8 = torch.float8_e4m3fn
MXFP4 = torch.float4_e2m1fn_x2  # names the format (`mxfp4`); its bytes are handled as uint8
BLOCK = 128


def scale_shape(rows: int, columns: int, block: int = BLOCK) -> tuple[int, int]:
    """Shape of the scales of an FP8 matrix [rows, columns]."""
    return -(-rows // block), -(-columns // block)


def expand_scales(scales: torch.Tensor, rows: int, columns: int, block: int = BLOCK) -> torch.Tensor:
    """One float32 scale for each column of each row block: [..., rows, ceil(columns/block)] repeated to [...,
    rows, columns].
    """
    by_row = scales.float().repeat_interleave(block, dim=-2)[..., :rows, :]
    return by_row.repeat_interleave(block, dim=-1)[..., :columns]


def dequantise(weight: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """`weight` [..., out, in] as `dtype`; products with scales are taken in float32."""
    if scales is None:
        return weight.to(dtype)
    rows, columns = weight.shape[-2:]
    return (weight.float() * expand_scales(scales, rows, columns)).to(dtype)
