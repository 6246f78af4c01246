"""Bank rows: page-aligned, whole, one range of bytes, and decoded to the values that went in."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape, row_bytes
from ftagent.engine.experts.host_memory import HUGE_BYTES
from ftagent.engine.kernels.experts import expert_weights
from ftagent.engine.weights.formats import FP8, MXFP4
from tests.engine.weights.test_mxfp4 import exact

SHAPE = ExpertShape(hidden=160, intermediate=72)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plain_rows_keep_their_values(dtype: torch.dtype) -> None:
    bank = ExpertBank(3, SHAPE, ExpertFormat(dtype))
    values = [torch.randn(72, 3, 160).to(dtype) for _ in range(3)]
    for expert, records in enumerate(values):
        bank.records(expert).copy_(records)
    out = expert_weights(torch.full((72, 3, 160), torch.nan))
    for expert, records in enumerate(values):
        bank.decode(expert, out)
        assert torch.equal(out.records, records.float())


def test_a_row_is_one_range_of_bytes_at_its_address() -> None:
    """Read through the bare address, as the copy engine and the native executor do."""
    bank = ExpertBank(3, SHAPE, ExpertFormat(torch.bfloat16))
    values = torch.randn(3, 72, 3, 160).bfloat16()
    for expert in range(3):
        bank.records(expert).copy_(values[expert])
    size = 72 * 3 * 160 * 2
    for expert in range(3):
        raw = bytearray(ctypes.string_at(bank.address(expert), size))
        assert torch.equal(torch.frombuffer(raw, dtype=torch.bfloat16).view(72, 3, 160), values[expert])


def test_views_of_an_expert_are_its_records() -> None:
    bank = ExpertBank(2, SHAPE, ExpertFormat(torch.float32))
    bank.records(1).normal_()
    records, gate, up, down, biases = bank.weights(1)
    assert biases is None
    assert records.data_ptr() == bank.address(1)
    assert torch.equal(gate, records[:, 0])
    assert torch.equal(up, records[:, 1])
    assert torch.equal(down.t(), records[:, 2])
    assert bank.weights(1).gate is gate


@pytest.mark.parametrize("parts", [1, 2])
def test_fp8_rows_multiply_each_block_by_its_scale(parts: int) -> None:
    """Gate and up of 72 rows: one shared grid has blocks of 128 and 16 rows, two grids one of 72 each."""
    bank = ExpertBank(1, SHAPE, ExpertFormat(FP8, parts))
    row = bank.quantised_row(0)
    for weight in (row.gate_up, row.down):
        weight.copy_(torch.randn(weight.shape).to(FP8))
    row.gate_up_scales.copy_(torch.rand(row.gate_up_scales.shape) + 0.5)
    row.down_scales.copy_(torch.rand(row.down_scales.shape) + 0.5)
    records = torch.full((72, 3, 160), torch.nan)
    bank.decode(0, expert_weights(records))
    for i in range(144):
        part, inside = (0, i) if parts == 1 else divmod(i, 72)
        for j in range(160):
            scale = row.gate_up_scales[part, inside // 128, j // 128]
            side, channel = divmod(i, 72)
            assert records[channel, side, j] == row.gate_up[i, j].float() * scale
    scales = row.down_scales.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)[:, :72]
    assert torch.equal(records[:, 2].t(), row.down.float() * scales)


def test_mxfp4_rows_are_their_codes_times_their_scales() -> None:
    shape = ExpertShape(hidden=96, intermediate=64, biased=True)
    bank = ExpertBank(2, shape, ExpertFormat(MXFP4))
    row = bank.quantised_row(1)
    assert [tuple(piece.shape) for piece in row] == [(128, 48), (96, 32), (128, 3), (96, 2), (224,)]
    for piece in row[:2]:
        piece.random_(0, 256)
    for piece in row[2:4]:
        piece.random_(120, 130)
    row.biases.normal_()
    target = shape.ready(torch.full((shape.values(),), torch.nan))
    bank.decode(1, target)
    gate_up, down = exact(row.gate_up, row.gate_up_scales), exact(row.down, row.down_scales)
    assert torch.equal(target.gate.double(), gate_up[:64])
    assert torch.equal(target.up.double(), gate_up[64:])
    assert torch.equal(target.down.double(), down)
    assert target.biases is not None
    assert torch.equal(target.biases.all, row.biases)
    assert bank.row_bytes == 4096 * -(-(shape.weights() * 17 // 32 + 4 * 224) // 4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_biases_lie_behind_the_records_of_a_plain_row(dtype: torch.dtype) -> None:
    shape = ExpertShape(hidden=24, intermediate=10, biased=True)
    bank = ExpertBank(3, shape, ExpertFormat(dtype))
    ready = bank.weights(2)
    assert ready.biases is not None
    parts = [torch.randn(10), torch.randn(10), torch.randn(24)]
    for view, values in zip(ready.biases, parts, strict=False):
        view.copy_(values)
    ready.records.normal_()
    size = shape.values() * dtype.itemsize
    raw = torch.frombuffer(bytearray(ctypes.string_at(bank.address(2), size)), dtype=dtype)
    assert torch.equal(raw, torch.cat((ready.records.flatten(), torch.cat(parts).to(dtype))))
    target = shape.ready(torch.full((shape.values(),), torch.nan))
    bank.decode(2, target)
    assert target.biases is not None
    assert torch.equal(target.biases.down, parts[2].to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8, MXFP4])
def test_rows_start_on_pages_and_banks_on_huge_pages(dtype: torch.dtype) -> None:
    bank = ExpertBank(4, SHAPE, ExpertFormat(dtype))
    assert bank.row_bytes == row_bytes(SHAPE, ExpertFormat(dtype))
    assert bank.row_bytes % 4096 == 0
    assert bank.row_bytes % mmap.PAGESIZE == 0
    assert bank.address(0) % HUGE_BYTES == 0
    assert [bank.address(expert) - bank.address(0) for expert in range(4)] == [
        expert * bank.row_bytes for expert in range(4)
    ]
    assert bank.nbytes == 4 * bank.row_bytes


def test_a_plain_row_takes_no_more_than_its_records_and_one_page() -> None:
    shape = ExpertShape(hidden=2048, intermediate=768)
    assert row_bytes(shape, ExpertFormat(torch.bfloat16)) == 2 * 3 * 2048 * 768
    assert 0 <= row_bytes(SHAPE, ExpertFormat(torch.bfloat16)) - 2 * SHAPE.weights() < 4096
