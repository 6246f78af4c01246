"""The record executors on experts with biases and clamped sides, against the formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ftagent.engine.experts.native_executor import (
    NativeExecutor,
    RecordExecutor,
    RecordShape,
    TorchExecutor,
)
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.machine import native
from ftagent.engine.machine.record_threads import ISAS, RecordPart, cpu_isas

GPT_OSS = Swiglu(1.702, 7.0, 1.0)
WAYS = [Swiglu(), GPT_OSS, Swiglu(1.702, 0.5, 1.0), Swiglu(limit=1.0)]
Ints = tuple[int, int, int, int]  # expert, first and last record, row
SIZES = [(64, 24), (40, 7), (288, 33)]


class Case(NamedTuple):
    """Experts in rows: records, biases of gate and up, then that of down and a gap, which are NaN."""

    shape: RecordShape
    memory: torch.Tensor  # [experts, elements of a row]

    def part(self, expert: int, first: int, last: int, row: int) -> RecordPart:
        return RecordPart(self.memory[expert].data_ptr(), first, last, row)


def make(hidden: int, inner: int, dtype: torch.dtype, how: Swiglu, *, biased: bool = True) -> Case:
    torch.manual_seed(hidden + inner)
    sides = 2 * inner if biased else 0
    memory = torch.full((3, 3 * hidden * inner + sides + hidden + 40), torch.nan, dtype=dtype)
    memory[:, : 3 * hidden * inner] = torch.randn(3, 3 * hidden * inner).to(dtype) * hidden**-0.5 * 2
    memory[:, 3 * hidden * inner : 3 * hidden * inner + sides] = torch.randn(3, sides).to(dtype)
    shape = RecordShape(hidden, inner, dtype, memory.shape[1] * dtype.itemsize, biased, how)
    return Case(shape, memory)


def exact(case: Case, expert: int, first: int, last: int, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """float64 [hidden] channel by channel, and how much was added up."""
    hidden, inner, how = case.shape.hidden, case.shape.intermediate, case.shape.swiglu
    row = case.memory[expert].double().numpy()
    vector = x.double().numpy()
    out, added = np.zeros((2, hidden))
    for channel in range(first, last):
        gate_row, up_row, down = row[3 * hidden * channel : 3 * hidden * (channel + 1)].reshape(3, hidden)
        gate, up = gate_row @ vector, up_row @ vector
        if case.shape.biased:
            gate += row[3 * hidden * inner + channel]
            up += row[3 * hidden * inner + inner + channel]
        if how.limit is not None:
            gate, up = min(gate, how.limit), min(max(up, -how.limit), how.limit)
        act = (up + how.offset) * gate / (1 + np.exp(-how.alpha * gate))
        out += act * down
        added += np.abs(act * down) + np.abs(down)
    return out, added


def check(
    executor: RecordExecutor, case: Case, parts: list[tuple[int, int, int, int]], x: torch.Tensor
) -> None:
    y = torch.full((len(parts), case.shape.hidden), torch.nan)
    executor.run([case.part(*part) for part in parts], x, y, timeout_s=60.0)
    for found, (expert, first, last, row) in zip(y, parts, strict=True):
        out, added = exact(case, expert, first, last, x[row])
        off = np.abs(found.double().numpy() - out)
        assert bool((off <= 2e-5 * added + 1e-12).all()), float(off.max())


def parts_of(inner: int) -> list[Ints]:
    """Whole, cut in the middle, one record, none; rows beside each other and alone."""
    half = inner // 2
    return [
        *((0, 0, inner, row) for row in range(5)),
        *((1, 0, half, row) for row in (4, 1)),
        *((1, half, inner, row) for row in (4, 1)),
        (2, inner - 1, inner, 2),
        (2, 3, 3, 0),
        (0, 1, half, 3),
    ]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("isa", ISAS)
def test_native_threads(isa: str, dtype: torch.dtype, how: Swiglu) -> None:
    if native.load() is None:
        pytest.skip("no native library")
    if isa not in cpu_isas():
        pytest.skip(f"this processor has no {isa}")
    for hidden, inner in SIZES:
        for biased in (True, False):
            case = make(hidden, inner, dtype, how, biased=biased)
            executor = NativeExecutor(case.shape, 2, isa)
            check(executor, case, parts_of(inner), torch.randn(5, hidden).to(dtype))
            executor.close()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_torch(dtype: torch.dtype, how: Swiglu) -> None:
    for hidden, inner in SIZES:
        for biased in (True, False):
            case = make(hidden, inner, dtype, how, biased=biased)
            check(TorchExecutor(case.shape), case, parts_of(inner), torch.randn(5, hidden).to(dtype))


def test_a_clamp_is_no_cure_for_what_is_no_number() -> None:
    if native.load() is None:
        pytest.skip("no native library")
    for isa in cpu_isas():
        case = make(40, 7, torch.float32, GPT_OSS)
        case.memory[0, 0] = torch.nan
        executor = NativeExecutor(case.shape, 1, isa)
        y = torch.zeros(1, 40)
        executor.run([case.part(0, 0, 7, 0)], torch.randn(1, 40), y, timeout_s=60.0)
        assert bool(y.isnan().all())
        executor.close()
