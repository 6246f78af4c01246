"""One decode token of the gated delta net on a device, against the layer written out in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.delta import CHANNELS, delta_decode
from tests.engine.kernels.compiling import CAPABILITIES, Case, assert_no_spills, cuobjdump
from tests.engine.kernels.gpu.delta_reference import Layer, normed, random_layer, rows_of, token_by_token

MODULE = "ftagent.engine.kernels.gpu.delta"
DTYPES = [torch.float32, torch.bfloat16]
NAN = float("nan")
EPS = 1e-6

specs = st.sampled_from(
    [
        DeltaShape(2, 4, 16, 8, 4, EPS),
        DeltaShape(1, 3, 12, 24, 4, EPS),
        DeltaShape(2, 2, 64, 16, 3, EPS),
        DeltaShape(1, 2, 128, 128, 4, EPS),
        DeltaShape(3, 6, 8, 40, 2, EPS),
    ]
)


class Step:
    """The tensors of a decode step; states of other slots are random, outputs and scratch are NaN."""

    def __init__(
        self, spec: DeltaShape, batch: int, live: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.spec, self.batch, self.live = spec, batch, live
        self.layer = random_layer(spec, device)
        slots = batch + 2
        self.conv = torch.randn(slots, spec.kernel - 1, spec.channels, device=device)
        self.recurrent = torch.randn(slots, spec.value_heads, spec.key_dim, spec.value_dim, device=device)
        self.slots = torch.randperm(slots, device=device)[:batch].to(torch.int32)
        self.flat = torch.randn(batch, spec.width, device=device)
        self.mixed = torch.full((batch, spec.channels), NAN, device=device)
        self.out = torch.full((batch, spec.values), NAN, device=device, dtype=dtype)
        self.rows = torch.tensor([live], dtype=torch.int32, device=device)

    def run(self) -> torch.Tensor:
        self.mixed.fill_(NAN)
        self.out.fill_(NAN)
        delta_decode(
            self.flat, self.spec, *self.layer, self.conv, self.recurrent, self.slots, self.mixed, self.out,
            self.rows,
        )  # fmt: skip
        return self.out


def expected_row(
    step: Step, row: int, conv: torch.Tensor, recurrent: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output [values], convolution state and recurrent state of one row, from the states before the step."""
    slot = int(step.slots[row])
    layer = Layer(*step.layer)
    flat = step.flat[row : row + 1]
    inputs, last = rows_of(flat, step.spec, layer, conv[slot])
    found, states = token_by_token(inputs, recurrent[slot])
    return normed(found, flat, step.spec, layer)[0], last, states[-1]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_equals_the_layer_written_out(
    device: torch.device, dtype: torch.dtype, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, 4))
    live = data.draw(st.integers(1, batch))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    step = Step(data.draw(specs), batch, live, dtype, device)
    conv, recurrent = step.conv.clone(), step.recurrent.clone()
    out = step.run()
    ulp = 2.0**-7 if dtype == torch.bfloat16 else 1e-5  # the interpreter truncates to bfloat16
    for row in range(live):
        slot = int(step.slots[row])
        expected, last, state = expected_row(step, row, conv, recurrent)
        torch.testing.assert_close(out[row].double(), expected, rtol=ulp, atol=2e-5)
        torch.testing.assert_close(step.conv[slot].double(), last, rtol=0, atol=0)
        torch.testing.assert_close(step.recurrent[slot].double(), state, rtol=0, atol=2e-5)
        conv[slot], recurrent[slot] = step.conv[slot], step.recurrent[slot]
    assert torch.equal(step.conv, conv), "the state of a slot that no live row has changed"
    assert torch.equal(step.recurrent, recurrent)
    assert bool(out[live:].isnan().all())


def test_a_row_gives_the_same_bits_in_any_company(device: torch.device) -> None:
    torch.manual_seed(3)
    step = Step(DeltaShape(2, 4, 16, 8, 4, EPS), 4, 4, torch.float32, device)
    conv, recurrent = step.conv.clone(), step.recurrent.clone()
    together = step.run().clone()
    for row in range(4):
        alone = Step(step.spec, 1, 1, torch.float32, device)
        alone.layer, alone.conv, alone.recurrent = step.layer, conv.clone(), recurrent.clone()
        alone.flat, alone.slots = step.flat[row : row + 1], step.slots[row : row + 1]
        assert torch.equal(alone.run()[0], together[row])
        slot = int(step.slots[row])
        assert torch.equal(alone.recurrent[slot], step.recurrent[slot])


def test_many_steps_follow_the_recurrence(device: torch.device) -> None:
    torch.manual_seed(4)
    step = Step(DeltaShape(1, 2, 16, 16, 4, EPS), 1, 1, torch.float32, device)
    slot = int(step.slots[0])
    flat = torch.randn(20, step.spec.width, device=device)
    inputs, last = rows_of(flat, step.spec, step.layer, step.conv[slot])
    found, states = token_by_token(inputs, step.recurrent[slot])
    expected = normed(found, flat, step.spec, step.layer)
    for token in range(len(flat)):
        step.flat = flat[token : token + 1]
        torch.testing.assert_close(step.run()[0].double(), expected[token], rtol=0, atol=5e-5)
    torch.testing.assert_close(step.recurrent[slot].double(), states[-1], rtol=0, atol=5e-5)
    torch.testing.assert_close(step.conv[slot].double(), last, rtol=0, atol=0)


def cases() -> list[Case]:
    spec = DeltaShape(16, 32, 128, 128, 4, EPS)
    convolve = Case(
        MODULE, "_convolve", ("*fp32", "*fp32", "*fp32", "*i32", "*fp32", "*i32", "i32"),
        {"KERNEL": spec.kernel, "SIZE": spec.channels, "BLOCK": CHANNELS}, 2,
    )  # fmt: skip
    shape: dict[str, int | float | bool | str | None] = {
        "KEY_HEADS": 16, "HEADS": 32, "DK": 128, "DV": 128, "DK_TILE": 128, "DV_TILE": 128,
    }  # fmt: skip
    steps = [
        Case(MODULE, "_step", (*["*fp32"] * 6, "*i32", kind, "*i32", "i32", "fp32"), shape, warps)
        for kind in ("*bf16", "*fp32")
        for warps in (4, 8)
    ]
    return [convolve, *steps]


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernels_compile_without_spills(capability: int) -> None:
    assert_no_spills(cases(), [capability])
