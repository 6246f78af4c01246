"""MXFP4 (OCP Microscaling Formats v1.0): four-bit floats E2M1, of which 32 along the input dimension share a
scale E8M0.

Stored are bytes of two codes, the earlier element in the low four bits, and a byte for each scale:
value = E2M1[code] * 2^(scale - 127); scale 255 is NaN. Checkpoints of gpt-oss, of compressed-tensors and, for
experts, of DeepSeek-V4 pack alike. Knows no names and no models.
"""

from __future__ import annotations

from functools import cache

import torch

BLOCK = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
_PAIR = {2: torch.int32, 4: torch.int64}  # two values of so many bytes as one integer
_AT_ONCE = 1 << 20  # bytes of codes that are widened at a time: their indices take four times as much


def packed_shape(rows: int, columns: int) -> tuple[int, int]:
    """Bytes of codes of a matrix [rows, columns]."""
    return rows, columns // 2


def scales_shape(rows: int, columns: int) -> tuple[int, int]:
    """Scales of a matrix [rows, columns]."""
    return rows, columns // BLOCK


def widen(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`packed` uint8 [..., in / 2] and `scales` uint8 [..., in / 32] as `dtype` [..., in].

    Exact in float32 and bfloat16 wherever these can hold the value; float16 is rounded from float32.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        return widen(packed, scales, torch.float32).to(dtype)
    out = torch.empty(*packed.shape[:-1], 2 * packed.shape[-1], dtype=dtype)
    codes, pairs = packed.reshape(-1), out.view(_PAIR[dtype.itemsize]).view(-1)
    table = _pairs(dtype)
    for begin in range(0, len(codes), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        torch.index_select(table, 0, codes[some].int(), out=pairs[some])
    factors = _factors().index_select(0, scales.reshape(-1).int()).to(dtype)
    out.view(-1, BLOCK).mul_(factors.unsqueeze(1))
    return out


@cache
def _pairs(dtype: torch.dtype) -> torch.Tensor:
    """Two values for each byte, as one integer [256]."""
    values = [(E2M1[byte & 15], E2M1[byte >> 4]) for byte in range(256)]
    return torch.tensor(values, dtype=dtype).view(_PAIR[dtype.itemsize]).view(-1)


@cache
def _factors() -> torch.Tensor:
    """float32 [256]: 2^(scale - 127), which bfloat16 holds as well."""
    return torch.tensor([*(2.0 ** (scale - BIAS) for scale in range(255)), float("nan")])
