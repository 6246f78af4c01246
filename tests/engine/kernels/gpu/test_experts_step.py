"""The experts of a decode step, all in slots: both kernels against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.experts import gated
from ftagent.engine.kernels.gpu import experts_reference
from ftagent.engine.kernels.gpu.device import Device, describe
from ftagent.engine.kernels.gpu.expert_plan import ExpertPlan, plan_experts
from tests.engine.kernels.gpu.expert_cases import Layer, Sizes, assert_near

EXAMPLES = 8 if torch.cuda.is_available() else 15  # each has kernels of its own to compile on a device
SIZES = Sizes(hidden=64, intermediate=24, experts=8, per_token=2, batch=1)


def small_plan(sizes: Sizes, run: int = 8, block: int = 4) -> ExpertPlan:
    return ExpertPlan(sizes.hidden, sizes.intermediate, run, block, warps=4, stages=2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sizes, ExpertPlan, int, int]:
    """Sizes, plan, live rows, seed."""
    experts = draw(st.sampled_from([8, 16, 130]))
    sizes = Sizes(
        hidden=draw(st.sampled_from([8, 64, 200])),
        intermediate=draw(st.sampled_from([8, 24, 112])),
        experts=experts,
        per_token=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 2)),
        shared=draw(st.sampled_from([0, 24, 40])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )
    block = draw(st.sampled_from([1, 4, 16]))
    run = block * draw(st.integers(1, 3)) * -(-sizes.intermediate // (4 * block))  # at most four chunks
    plan = ExpertPlan(sizes.hidden, sizes.intermediate, run, block, warps=4, stages=2)
    return sizes, plan, draw(st.integers(0, sizes.batch)), draw(st.integers(0, 2**31))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_equals_float64(device: torch.device, case: tuple[Sizes, ExpertPlan, int, int]) -> None:
    sizes, plan, live, seed = case
    layer = Layer(sizes, plan, device, seed=seed)
    layer.rows.fill_(live)
    assert_near(layer.run(), layer.expected())
    assert torch.equal(layer.after[live:], layer.x[live:]), "rows that are not live were changed"
    assert layer.partial[live * sizes.per_token :].isnan().all(), "a pair that is not live was computed"
    assert int(layer.tables.fail) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_does_not_depend_on_its_company(device: torch.device, dtype: torch.dtype) -> None:
    sizes = replace(SIZES, hidden=200, per_token=3, batch=3, shared=24, dtype=dtype)
    whole = Layer(sizes, small_plan(sizes), device, seed=3)
    whole.run()
    for row in (0, 2):
        alone = Layer(replace(sizes, batch=1), small_plan(sizes), device, seed=3)
        assert torch.equal(alone.bank, whole.bank)
        for name in ("normed", "ids", "weights", "x"):
            setattr(alone, name, getattr(whole, name)[row : row + 1].clone())
        assert whole.shared is not None
        alone.shared = whole.shared._replace(flat=whole.shared.flat[row : row + 1].clone())
        alone.run()
        assert torch.equal(alone.after[0], whole.after[row])


def test_live_rows_do_not_depend_on_how_many(device: torch.device) -> None:
    sizes = replace(SIZES, batch=3)
    outs = []
    for live in (1, 3):
        layer = Layer(sizes, small_plan(sizes), device, seed=4)
        layer.rows.fill_(live)
        layer.run()
        outs.append(layer.after[0])
    assert torch.equal(*outs)


def test_place_in_slots_changes_no_bit(device: torch.device) -> None:
    sizes = replace(SIZES, batch=2)
    first, second = (Layer(sizes, small_plan(sizes), device, spare=spare, seed=5) for spare in (0, 4))
    assert first.slot_order != second.slot_order
    second.normed, second.ids, second.weights, second.x = first.normed, first.ids, first.weights, first.x
    first.run(), second.run()
    assert torch.equal(first.after, second.after)


def test_pair_without_slot_and_host_fails_the_step(device: torch.device) -> None:
    layer = Layer(SIZES, small_plan(SIZES), device, resident=frozenset())
    assert float(layer.run().abs().max()) == 0.0
    assert int(layer.tables.fail) == 1


def test_reference_equals_the_layers_arithmetic() -> None:
    """Records against the gate_up and down matrices that the CPU path uses."""
    torch.manual_seed(0)
    x, records = torch.randn(3, 20).double(), torch.randn(4, 6, 3, 20).double()
    ids, weights = torch.tensor([[0, 2], [3, 1], [2, 3]]), torch.rand(3, 2).double()
    expected = torch.zeros_like(x)
    for row in range(3):
        for one, share in zip(ids[row].tolist(), weights[row], strict=True):
            gate_up = torch.cat((records[one, :, 0], records[one, :, 1]))
            down = records[one, :, 2].T
            expected[row] += share * (down @ gated(gate_up @ x[row]))
    found = experts_reference.layer(x, ids, weights, list(records))
    torch.testing.assert_close(found, expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hidden=st.integers(1, 8192),
    intermediate=st.integers(1, 8192),
    per_token=st.integers(1, 16),
    itemsize=st.sampled_from([2, 4]),
    device=st.builds(Device, st.just(90), st.sampled_from([99 << 10, 227 << 10]), st.integers(1, 200)),
)
def test_plan_covers_every_record_once(
    hidden: int, intermediate: int, per_token: int, itemsize: int, device: Device
) -> None:
    plan = plan_experts(hidden, intermediate, per_token, itemsize, device)
    assert (plan.chunks - 1) * plan.run < intermediate <= plan.chunks * plan.run
    assert per_token * plan.chunks <= max(2 * device.processors, per_token)
    two_programs = 2 * 2 * plan.block * 3 * hidden * itemsize
    assert plan.block == 1 or two_programs < device.shared


def test_plans_of_known_models() -> None:
    hopper = Device(90, 227 << 10, 132)
    assert plan_experts(2048, 768, 8, 2, hopper).chunks * 8 == 256
    assert plan_experts(2048, 512, 8, 2, hopper).chunks * 8 == 256
    assert plan_experts(2048, 768, 8, 2, Device(89, 99 << 10, 24)).chunks * 8 == 48


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("intermediate", "shared"), [(768, 0), (512, 512)])
@pytest.mark.parametrize("batch", [1, 8])
def test_real_sizes_on_a_device(device: torch.device, intermediate: int, shared: int, batch: int) -> None:
    sizes = Sizes(2048, intermediate, 16, 8, batch, shared, torch.bfloat16)
    plan = plan_experts(2048, intermediate, 8, 2, describe(device))
    layer = Layer(sizes, plan, device, seed=batch)
    assert_near(layer.run(), layer.expected(), 1e-4)
    again = Layer(sizes, plan, device, seed=batch)
    again.run()
    assert torch.equal(again.after, layer.after)
