"""Norms, rotary embedding and places of prefill rows on a device, against the same written out in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.kernels.gpu.norm import rms_norm
from ftagent.engine.kernels.gpu.rope import qk_norm_rope
from tests.engine.kernels.compiling import CAPABILITIES, Case, assert_no_spills, cuobjdump

MODULE = "ftagent.engine.kernels.gpu."
DTYPES = [torch.float32, torch.bfloat16]
NAN = float("nan")
EPS = 1e-6

shapes = st.sampled_from(
    [(4, 2, 16, 16), (3, 1, 24, 8), (2, 2, 64, 64), (4, 1, 32, 0), (6, 3, 40, 20), (2, 1, 256, 64)]
)


def tolerance(dtype: torch.dtype) -> float:
    """Relative; the interpreter truncates to bfloat16, a device rounds."""
    return 2.0**-7 if dtype == torch.bfloat16 else 1e-5


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The first 2 * half dimensions of x [rows, heads, d] rotated by angle [rows, half], half-split."""
    half = angle.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@settings(max_examples=12, deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_keys_and_values(device: torch.device, dtype: torch.dtype, data: st.DataObject) -> None:
    heads, kv_heads, dim, rotary = data.draw(shapes)
    rows = data.draw(st.sampled_from([1, 3, 31, 70]))
    gated, normed = data.draw(st.booleans()), data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    spec = AttentionSpec(heads, kv_heads, dim, rotary, dim**-0.5, EPS, gated, normed)
    flat = torch.randn(rows, spec.width, device=device).to(dtype)
    norms = torch.rand(heads + kv_heads, dim, device=device) + 0.5
    angle = torch.rand(200, rotary // 2, device=device, dtype=torch.float64) * 6
    cos = torch.cat((angle.cos(), angle.cos()), -1).float()
    sin = torch.cat((-angle.sin(), angle.sin()), -1).float()
    positions = torch.randperm(200, device=device)[:rows]
    places = torch.randperm(128, device=device)[:rows]
    kv = torch.full((2 * kv_heads, 128, dim), NAN, device=device, dtype=dtype)
    query = qk_norm_rope(flat, spec, norms if normed else None, cos, sin, positions, places, kv)

    per_head = flat.double()[:, : (heads + 2 * kv_heads) * dim].view(rows, -1, dim)
    part = per_head[:, : heads + kv_heads]
    scaled = part
    if normed:
        scaled = part / (part.square().mean(-1, keepdim=True) + EPS).sqrt() * norms.double()
    expected = turned(scaled, angle[positions])
    rtol = tolerance(dtype)
    torch.testing.assert_close(query.double(), expected[:, :heads], rtol=rtol, atol=1e-5)
    keys, values = kv[:kv_heads, places], kv[kv_heads:, places]
    torch.testing.assert_close(keys.double(), expected[:, heads:].transpose(0, 1), rtol=rtol, atol=1e-5)
    assert torch.equal(values.double(), per_head[:, heads + kv_heads :].transpose(0, 1))
    others = torch.ones(128, dtype=torch.bool, device=device)
    others[places] = False
    assert bool(kv[:, others].isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 7), (37, 64), (3, 2048), (2, 5000)])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(size)
    x = (torch.randn(rows, size, device=device) * 3).to(dtype)
    norm = torch.rand(size, device=device) + 0.5
    out = rms_norm(x, norm, EPS)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance(dtype), atol=1e-6)


def cases(kind: str) -> list[Case]:
    shape: dict[str, int | float | bool | str | None] = {"HEADS": 16, "KV_HEADS": 2, "DIM": 256, "ROTARY": 64}
    types = (kind, "*fp32", "*fp32", "*fp32", "*i64", "*i64", kind, kind, *["i32"] * 3, "fp32")
    return [
        Case(MODULE + "rope", "_qk_norm_rope", types, {"ROWS": 8, "TILE": 256, "NORMED": True, **shape}),
        Case(MODULE + "rope", "_qk_norm_rope", types, {"ROWS": 8, "TILE": 256, "NORMED": False, **shape}),
        Case(
            MODULE + "norm", "_rms_norm", (kind, "*fp32", kind, "i32", "i32", "fp32"),
            {"SIZE": 2048, "ROWS": 2, "TILE": 2048}, 8,
        ),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernels_compile_without_spills(capability: int) -> None:
    assert_no_spills([*cases("*bf16"), *cases("*fp32")], [capability])
