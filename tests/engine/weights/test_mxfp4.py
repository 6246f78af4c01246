"""MXFP4 against the bits of its definition, for every byte under every scale, and against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftagent.engine.weights import mxfp4


def element(code: int) -> float:
    """OCP MX v1.0, section 5.3.3: a sign, two bits of exponent with bias 1, a bit of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -magnitude if sign else magnitude


def exact(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float64 [rows, in] of `packed` [rows, in / 2] and `scales` [rows, in / 32], element by element."""
    rows = []
    for codes, powers in zip(packed.tolist(), scales.tolist(), strict=True):
        elements = [element(byte >> shift & 15) for byte in codes for shift in (0, 4)]
        factors = [float("nan") if power == 255 else 2.0 ** (power - 127) for power in powers]
        rows.append([value * factors[place // 32] for place, value in enumerate(elements)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_under_every_scale(dtype: torch.dtype) -> None:
    packed = torch.arange(256, dtype=torch.uint8).expand(256, -1).contiguous()  # [256, 256]: 512 elements
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1).expand(-1, 16).contiguous()
    found = mxfp4.widen(packed, scales, dtype)
    expected = exact(packed, scales).to(dtype)
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(found[kept], expected[kept])
    assert torch.equal(found[kept].signbit(), expected[kept].signbit())


def test_every_scale_counts_for_its_own_block() -> None:
    torch.manual_seed(0)
    packed = torch.randint(0, 256, (7, 48), dtype=torch.uint8)
    scales = torch.randint(100, 140, (7, 3), dtype=torch.uint8)
    assert torch.equal(mxfp4.widen(packed, scales, torch.float32).double(), exact(packed, scales))
    assert torch.equal(
        mxfp4.widen(packed, scales, torch.float16), exact(packed, scales).float().to(torch.float16)
    )
    stacked = mxfp4.widen(
        packed.view(7, 3, 16).repeat(2, 1, 1), scales.view(7, 3, 1).repeat(2, 1, 1), torch.float32
    )
    assert torch.equal(stacked[7:].double().flatten(1), exact(packed, scales))


def test_more_than_is_widened_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mxfp4, "_AT_ONCE", 100)
    packed = torch.randint(0, 256, (9, 32), dtype=torch.uint8)
    scales = torch.randint(100, 140, (9, 2), dtype=torch.uint8)
    assert torch.equal(mxfp4.widen(packed, scales, torch.float32).double(), exact(packed, scales))


def test_transformers_reads_the_same_values() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    read: Any = convert_moe_packed_tensors
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (3, 10, 2), dtype=torch.uint8)
    theirs = read(blocks, scales, dtype=torch.bfloat16)  # [experts, in, out]
    ours = mxfp4.widen(blocks.flatten(2), scales, torch.bfloat16)
    assert torch.equal(ours, theirs.transpose(1, 2))
