"""Bank rows: page-aligned, whole, and decoded to the values that went in."""

from __future__ import annotations

import mmap

import pytest
import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape

SHAPE = ExpertShape(hidden=160, intermediate=72)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plain_rows_keep_their_values(dtype: torch.dtype) -> None:
    bank = ExpertBank(3, SHAPE, ExpertFormat(dtype))
    values = [(torch.randn(144, 160).to(dtype), torch.randn(160, 72).to(dtype)) for _ in range(3)]
    for expert, (gate_up, down) in enumerate(values):
        bank.row(expert).gate_up.copy_(gate_up)
        bank.row(expert).down.copy_(down)
    out = torch.empty(144, 160), torch.empty(160, 72)
    for expert, (gate_up, down) in enumerate(values):
        bank.decode(expert, *out)
        assert torch.equal(out[0], gate_up.float())
        assert torch.equal(out[1], down.float())


@pytest.mark.parametrize("parts", [1, 2])
def test_fp8_rows_multiply_each_block_by_its_scale(parts: int) -> None:
    """Gate and up of 72 rows: one shared grid has blocks of 128 and 16 rows, two grids one of 72 each."""
    bank = ExpertBank(1, SHAPE, ExpertFormat(torch.float8_e4m3fn, parts))
    row = bank.row(0)
    assert row.gate_up_scales is not None
    assert row.down_scales is not None
    for weight in (row.gate_up, row.down):
        weight.copy_(torch.randn(weight.shape).to(torch.float8_e4m3fn))
    row.gate_up_scales.copy_(torch.rand(row.gate_up_scales.shape) + 0.5)
    row.down_scales.copy_(torch.rand(row.down_scales.shape) + 0.5)
    gate_up, down = torch.empty(144, 160), torch.empty(160, 72)
    bank.decode(0, gate_up, down)
    for i in range(144):
        part, inside = (0, i) if parts == 1 else divmod(i, 72)
        for j in range(160):
            scale = row.gate_up_scales[part, inside // 128, j // 128]
            assert gate_up[i, j] == row.gate_up[i, j].float() * scale
    expected = (
        row.down.float() * row.down_scales.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)[:, :72]
    )
    assert torch.equal(down, expected)


def test_rows_start_on_pages() -> None:
    bank = ExpertBank(4, SHAPE, ExpertFormat(torch.float8_e4m3fn))
    assert bank.row_bytes % mmap.PAGESIZE == 0
    assert all(bank.row(expert).gate_up.data_ptr() % mmap.PAGESIZE == 0 for expert in range(4))
    assert bank.nbytes == 4 * bank.row_bytes
