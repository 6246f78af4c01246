"""Prefill rows of the gated delta net on a device, against the layer written out in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.delta_rows import ROWS, delta_rows, gated_norm
from tests.engine.kernels.compiling import CAPABILITIES, Case, assert_no_spills, cuobjdump
from tests.engine.kernels.gpu.delta_reference import normed, random_layer, rows_of

MODULE = "ftagent.engine.kernels.gpu.delta_rows"
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-6

specs = st.sampled_from(
    [
        DeltaShape(2, 4, 16, 8, 4, EPS),
        DeltaShape(1, 3, 12, 24, 4, EPS),
        DeltaShape(2, 2, 64, 16, 3, EPS),
        DeltaShape(1, 2, 128, 128, 4, EPS),
        DeltaShape(3, 3, 8, 40, 2, EPS),
    ]
)


@settings(max_examples=12, deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_equal_the_layer_written_out(
    device: torch.device, dtype: torch.dtype, data: st.DataObject
) -> None:
    spec = data.draw(specs)
    tokens = data.draw(st.sampled_from([1, 2, 3, 4, 15, 16, 17, 50]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    layer = random_layer(spec, device)
    flat = torch.randn(tokens, spec.width, device=device).to(dtype)
    conv = torch.randn(spec.kernel - 1, spec.channels, device=device)
    expected, last = rows_of(flat, spec, layer, conv)
    found = delta_rows(flat, spec, layer.taps, layer.rate, layer.bias, conv)
    group = spec.value_heads // spec.key_heads
    assert found.key.shape == (tokens, spec.key_heads, spec.key_dim)
    repeated = found._replace(
        query=found.query.repeat_interleave(group, 1), key=found.key.repeat_interleave(group, 1)
    )
    for name, some, wanted in zip(found._fields, repeated, expected, strict=True):
        torch.testing.assert_close(some.double(), wanted, rtol=1e-5, atol=1e-5, msg=lambda m: f"{name}: {m}")  # noqa: B023
    assert torch.equal(conv.double(), last)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 5, 40), (0, 17, 40), (0, 38, 39, 40)])
def test_pieces_give_the_rows_of_the_whole(cuts: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(len(cuts))
    spec = DeltaShape(2, 4, 16, 8, 4, EPS)
    layer = random_layer(spec, device)
    flat = torch.randn(40, spec.width, device=device)
    start = torch.randn(spec.kernel - 1, spec.channels, device=device)
    whole = delta_rows(flat, spec, layer.taps, layer.rate, layer.bias, start.clone())
    pieces = [
        delta_rows(flat[a:b], spec, layer.taps, layer.rate, layer.bias, start) for a, b in pairwise(cuts)
    ]
    for part, expected in enumerate(whole):
        torch.testing.assert_close(torch.cat([piece[part] for piece in pieces]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [DeltaShape(2, 4, 16, 8, 4, EPS), DeltaShape(1, 3, 12, 24, 4, 1e-3)])
def test_gated_norm(spec: DeltaShape, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(5)
    layer = random_layer(spec, device)
    flat = torch.randn(21, spec.width, device=device).to(dtype)
    found = torch.randn(21, spec.value_heads, spec.value_dim, device=device)
    out = gated_norm(found, flat, spec, layer.norm)
    assert out.dtype == dtype
    ulp = 2.0**-7 if dtype == torch.bfloat16 else 1e-5  # the interpreter truncates to bfloat16
    torch.testing.assert_close(out.double(), normed(found, flat, spec, layer), rtol=ulp, atol=1e-6)


def cases(kind: str) -> list[Case]:
    heads: dict[str, int | float | bool | str | None] = {"HEADS": 32, "ROWS": ROWS}
    return [
        Case(
            MODULE, "_convolve_heads", (kind, "*fp32", "*fp32", "*fp32", "i32", "i32"),
            {"KEY_HEADS": 16, "DK": 128, "DV": 128, "KERNEL": 4, "TILE": 128, **heads},
        ),
        Case(MODULE, "_gates", (kind, kind, *["*fp32"] * 4, "i32", "i32"), {"TILE": 32, **heads}),
        Case(
            MODULE, "_gated_norm", ("*fp32", kind, "*fp32", kind, "i32", "i32", "fp32"),
            {"DV": 128, "TILE": 128, **heads},
        ),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernels_compile_without_spills(capability: int) -> None:
    assert_no_spills([*cases("*bf16"), *cases("*fp32")], [capability])
