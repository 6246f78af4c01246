"""Experts on records against float64, and the bits of a row in any company, place and thread count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftagent.engine.kernels.experts import (
    VectorScratch,
    expert_group,
    expert_vectors,
    expert_weights,
    write_records,
)
from ftagent.engine.kernels.swiglu import Swiglu
from tests.engine.kernels.blas import assert_same

SIZES = [(64, 24), (48, 17), (200, 130), (72, 9)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(hidden: int, inner: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sides = (torch.randn(inner, hidden), torch.randn(inner, hidden), torch.randn(hidden, inner))
    gate, up, down = ((side * hidden**-0.5).to(dtype) for side in sides)
    return gate, up, down


def exact(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    x, gate, up, down = (tensor.double() for tensor in (x, gate, up, down))
    left = x @ gate.T
    return (left / (1 + (-left).exp()) * (x @ up.T)) @ down.T


def records_of(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    records = torch.full((gate.shape[0], 3, gate.shape[1]), torch.nan, dtype=gate.dtype)
    write_records(records, gate, up, down)
    return records


@pytest.mark.parametrize(("hidden", "inner"), SIZES)
def test_records_hold_rows_of_gate_and_up_and_columns_of_down(hidden: int, inner: int) -> None:
    gate, up, down = draw(hidden, inner, torch.float32)
    expected = torch.stack((gate, up, down.t()), dim=1)
    assert torch.equal(records_of(gate, up, down), expected)
    halves = torch.full_like(expected, torch.nan, dtype=torch.bfloat16)
    write_records(halves, gate, up, down)
    assert torch.equal(halves, expected.bfloat16())


@pytest.mark.parametrize(("hidden", "inner"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_both_ways_equal_float64(hidden: int, inner: int, dtype: torch.dtype, tolerance: float) -> None:
    experts = [draw(hidden, inner, dtype) for _ in range(3)]
    ready = [expert_weights(records_of(*expert)) for expert in experts]
    scratch = VectorScratch(inner, dtype)
    for rows in (1, 5, 40):
        x = torch.randn(rows, hidden).to(dtype)
        out = torch.full((rows, hidden), torch.nan, dtype=dtype)
        chosen = [row % 3 for row in range(rows)]
        expert_vectors(x.unbind(0), [ready[expert] for expert in chosen], out.unbind(0), scratch)
        for row, expert in enumerate(chosen):
            expected = exact(x[row], *experts[expert])
            assert float((out[row] - expected).norm() / expected.norm()) <= tolerance
        expected = exact(x, *experts[0])
        assert float((expert_group(x, ready[0]) - expected).norm() / expected.norm()) <= tolerance


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("hidden", "inner"), SIZES)
def test_bits_depend_neither_on_company_nor_on_threads(hidden: int, inner: int, dtype: torch.dtype) -> None:
    """Odd sizes too: rows of the scratch are padded."""
    weights = [expert_weights(records_of(*draw(hidden, inner, dtype))) for _ in range(2)]
    x = torch.randn(7, hidden).to(dtype)
    alone = []
    torch.set_num_threads(1)
    for row in range(7):
        out = torch.full((1, hidden), torch.nan, dtype=dtype)
        expert_vectors([x[row]], [weights[row % 2]], out.unbind(0), VectorScratch(inner, dtype))
        alone.append(out[0])
    for count in (1, 2):
        torch.set_num_threads(count)
        out = torch.full((7, hidden), torch.nan, dtype=dtype)
        chosen = [weights[row % 2] for row in range(7)]
        expert_vectors(x.unbind(0), chosen, out.unbind(0), VectorScratch(inner, dtype))
        for row in range(7):
            assert_same(out[row], alone[row])


def step_by_step(
    x: torch.Tensor, matrices: tuple[torch.Tensor, ...], biases: tuple[torch.Tensor, ...], how: Swiglu
) -> torch.Tensor:
    """One channel after the other, float64: biases are added first, then both sides are clamped."""
    gate, up, down = (matrix.double() for matrix in matrices)
    out = biases[2].double().expand(x.shape[0], -1).clone()
    for channel in range(gate.shape[0]):
        left = x.double() @ gate[channel] + biases[0][channel]
        right = x.double() @ up[channel] + biases[1][channel]
        if how.limit is not None:
            left = torch.minimum(left, torch.tensor(how.limit))
            right = torch.maximum(torch.minimum(right, torch.tensor(how.limit)), torch.tensor(-how.limit))
        act = (right + how.offset) * left / (1 + torch.exp(-how.alpha * left))
        out += act.unsqueeze(1) * down[:, channel]
    return out


@pytest.mark.parametrize("how", [Swiglu(), Swiglu(1.702, 7.0, 1.0), Swiglu(limit=0.5), Swiglu(0.9)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_biases_and_clamps_both_ways(how: Swiglu, dtype: torch.dtype, tolerance: float) -> None:
    hidden, inner = 72, 17
    matrices = tuple((matrix * 4).to(dtype) for matrix in draw(hidden, inner, dtype))
    biases = (torch.randn(inner).to(dtype), torch.randn(inner).to(dtype), torch.randn(hidden).to(dtype))
    weights = expert_weights(records_of(*matrices), torch.cat(biases))
    x = (torch.randn(9, hidden) * 2).to(dtype)
    expected = step_by_step(x, matrices, biases, how)
    group = expert_group(x, weights, how)
    assert float((group - expected).norm() / expected.norm()) <= tolerance
    out = torch.full((9, hidden), torch.nan, dtype=dtype)
    expert_vectors(x.unbind(0), [weights] * 9, out.unbind(0), VectorScratch(inner, dtype, how))
    assert float((out - expected).norm() / expected.norm()) <= tolerance


def test_a_partial_expert_is_a_run_of_records() -> None:
    """Sums over runs of records add up to the whole expert."""
    gate, up, down = draw(96, 40, torch.float32)
    records, x = records_of(gate, up, down), torch.randn(5, 96)
    parts = [expert_group(x, expert_weights(records[a:b])) for a, b in ((0, 13), (13, 14), (14, 40))]
    torch.testing.assert_close(sum(parts), exact(x, gate, up, down).float(), rtol=1e-4, atol=1e-5)
