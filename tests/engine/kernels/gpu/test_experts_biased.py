"""The expert kernels of a decode step on experts with biases and clamped sides, against float64."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.kernels.gpu.combine import DownBiases, combine_step
from ftagent.engine.kernels.gpu.device import describe
from ftagent.engine.kernels.gpu.expert_plan import ExpertStep, StepTables, plan_experts
from ftagent.engine.kernels.gpu.experts import experts_step
from ftagent.engine.kernels.swiglu import Swiglu

HIDDEN, INNER, EXPERTS, PER_TOKEN, ROWS = 40, 20, 5, 2, 3


@pytest.mark.parametrize("how", [Swiglu(), Swiglu(1.7, 7.0, 1.0), Swiglu(1.7, 0.5, 1.0), Swiglu(limit=1.0)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_sums_are_those_of_the_formula(
    device: torch.device, dtype: torch.dtype, biased: bool, how: Swiglu
) -> None:
    """Slots in another order than experts: biases go by the expert, records by the slot."""
    torch.manual_seed(0)
    records = (torch.randn(EXPERTS, INNER, 3, HIDDEN) * 0.4).to(dtype).to(device)
    biases = torch.randn(EXPERTS, 2 * INNER + HIDDEN).to(dtype).to(device)
    normed = torch.randn(ROWS, HIDDEN).to(dtype).to(device)
    slot_of = torch.tensor([[3, 0, 4, 1, 2]], dtype=torch.int32, device=device)
    by_slot = torch.empty_like(records)
    by_slot[slot_of[0].long()] = records
    pointers = torch.tensor([by_slot[slot].data_ptr() for slot in range(EXPERTS)], device=device)
    ids = torch.tensor([[4, 1], [0, 2], [3, 4]], dtype=torch.int32, device=device)
    seen = slot_of[0][ids.long()]
    plan = plan_experts(HIDDEN, INNER, PER_TOKEN, dtype.itemsize, describe(device))
    tables = StepTables.empty(slot_of, pointers, ROWS * PER_TOKEN)
    one = torch.ones(1, dtype=torch.int32, device=device)
    partial = torch.full((ROWS * PER_TOKEN, plan.chunks, HIDDEN), torch.nan, device=device)
    step = ExpertStep(plan, tables, None, one, one * ROWS, partial, partial)
    experts_step(step, 0, normed, ids, seen, None, biases if biased else None, how)
    assert not bool(tables.fail)
    limit = float("inf") if how.limit is None else how.limit
    weights = torch.rand(ROWS, PER_TOKEN, device=device)
    before = torch.randn(ROWS, HIDDEN, device=device)
    x = before.clone()
    combine_step(step, 0, weights, seen, None, x, DownBiases(biases, ids) if biased else None)
    wanted = before.double().cpu()
    for pair, expert in enumerate(ids.flatten().tolist()):
        gate, up, down = records[expert].double().cpu().unbind(1)
        token, added = normed[pair // PER_TOKEN].double().cpu(), biases[expert].double().cpu() * biased
        left, right = gate @ token + added[:INNER], up @ token + added[INNER : 2 * INNER]
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
        expected = ((right + how.offset) * left / (1 + (-how.alpha * left).exp())) @ down
        torch.testing.assert_close(partial[pair].sum(0).cpu().double(), expected, rtol=1e-4, atol=1e-4)
        share = float(weights.flatten()[pair])
        wanted[pair // PER_TOKEN] += share * (expected + added[2 * INNER :])
    torch.testing.assert_close(x.cpu().double(), wanted, rtol=1e-4, atol=1e-4)
