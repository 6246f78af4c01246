"""Decode products against float64, for odd sizes, rows that are not live, and in any company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.gpu.linear import (
    MAX_IN,
    add_tile,
    embed,
    linear_add,
    norm_linear,
    norm_tile,
)
from tests.engine.kernels.compiling import Case, assert_no_spills, cuobjdump

MODULE = "ftagent.engine.kernels.gpu.linear"
DTYPES = [torch.bfloat16, torch.float32]
EPS = 1e-6
NAN = float("nan")

sizes = st.sampled_from([1, 3, 16, 37, 130, 1100])  # the last: several tiles for a program
widths = st.sampled_from([1, 7, 64, 100, 112, 200, 256])


def counter(rows: int, device: torch.device) -> torch.Tensor:
    return torch.tensor([rows], dtype=torch.int32, device=device)


def within_an_ulp(found: torch.Tensor, exact: torch.Tensor) -> None:
    """The interpreter truncates to bfloat16, a device rounds: both stay within one unit in the last place."""
    step = 2.0**-7 if found.dtype == torch.bfloat16 else 2.0**-20
    torch.testing.assert_close(found.double(), exact, rtol=step, atol=1e-30)


def products_close(found: torch.Tensor, vectors: torch.Tensor, weight: torch.Tensor) -> None:
    """Float32 sums in any order are close to vectors @ weight.T."""
    exact = vectors.double() @ weight.double().T
    bound = vectors.double().abs() @ weight.double().abs().T * 1e-6 + 1e-30
    assert bool(((found.double() - exact).abs() <= bound).all())


@settings(max_examples=10, deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_linear(device: torch.device, dtype: torch.dtype, data: st.DataObject) -> None:
    out_size, columns = data.draw(sizes), data.draw(widths)
    batch = data.draw(st.integers(1, 8))
    live = data.draw(st.integers(1, batch))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    x = torch.randn(batch, columns, device=device) * 10
    norm = torch.rand(columns, device=device) + 0.5
    weight = torch.randn(out_size, columns, device=device).to(dtype)
    out = torch.full((batch, out_size), NAN, device=device)
    normed = torch.full((batch, columns), NAN, device=device, dtype=dtype)
    norm_linear(x, norm, EPS, weight, out, normed, counter(live, device))

    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()
    within_an_ulp(normed[:live], exact[:live])
    products_close(out[:live], normed[:live], weight)
    assert bool(out[live:].isnan().all())
    assert bool(normed[live:].isnan().all())

    alone = torch.full((1, out_size), NAN, device=device)
    row = data.draw(st.integers(0, live - 1))
    norm_linear(x[row : row + 1], norm, EPS, weight, alone, None, counter(1, device))
    assert torch.equal(alone[0], out[row])


@settings(max_examples=10, deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_add(device: torch.device, dtype: torch.dtype, data: st.DataObject) -> None:
    hidden, columns = data.draw(sizes), data.draw(widths)
    batch = data.draw(st.integers(1, 8))
    live = data.draw(st.integers(1, batch))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    a = torch.randn(batch, columns, device=device).to(dtype)
    weight = torch.randn(hidden, columns, device=device).to(dtype)
    before = torch.randn(batch, hidden, device=device)
    x = before.clone()
    linear_add(a, weight, x, counter(live, device))
    exact = a.double() @ weight.double().T + before.double()
    bound = a.double().abs() @ weight.double().abs().T * 1e-6 + before.double().abs() * 1e-6
    assert bool(((x.double() - exact).abs() <= bound)[:live].all())
    assert torch.equal(x[live:], before[live:])

    row = data.draw(st.integers(0, live - 1))
    alone = before[row : row + 1].clone()
    linear_add(a[row : row + 1], weight, alone, counter(1, device))
    assert torch.equal(alone[0], x[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "columns"), [(5, 2048), (3, 4096), (2, 5000), (1, 8192), (1, 16384)])
def test_wide_rows(device: torch.device, dtype: torch.dtype, size: int, columns: int) -> None:
    torch.manual_seed(columns)
    x, norm = torch.randn(3, columns, device=device), torch.rand(columns, device=device)
    weight = torch.randn(size, columns, device=device).to(dtype)
    out = torch.full((3, size), NAN, device=device)
    normed = torch.full((3, columns), NAN, device=device, dtype=dtype)
    norm_linear(x, norm, EPS, weight, out, normed, counter(3, device))
    products_close(out, normed, weight)
    added = torch.zeros(3, size, device=device)
    linear_add(normed, weight, added, counter(3, device))
    products_close(added, normed, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 100, 1024, 2500])
def test_embed(device: torch.device, dtype: torch.dtype, columns: int) -> None:
    torch.manual_seed(columns)
    table = torch.randn(50, columns, device=device).to(dtype)
    tokens = torch.tensor([49, 0, 7, 3], dtype=torch.int32, device=device)
    x = torch.full((4, columns), NAN, device=device)
    embed(tokens, table, x, counter(3, device))
    assert torch.equal(x[:3], table[tokens[:3].long()].float())
    assert bool(x[3].isnan().all())


@given(st.integers(1, 250_000), st.integers(1, MAX_IN), st.sampled_from([10, 30, 132]))
def test_tiles_cover_the_weight_and_fit_the_registers(out: int, columns: int, processors: int) -> None:
    for tile in (norm_tile(out, columns, processors), add_tile(out, columns, processors)):
        assert tile.columns >= columns
        assert tile.rows * tile.columns <= tile.warps * 32 * 64
        assert tile.warps <= 8
        for value in tile[:3]:
            assert value & (value - 1) == 0
        assert 1 <= tile.programs <= -(-out // tile.rows)
    assert tile.programs == -(-out // tile.rows)
    assert tile.rows == 1 or tile.programs >= 2 * processors


def test_tiles_of_known_models() -> None:
    """As measured to be fastest on 132 multiprocessors."""
    assert norm_tile(151_936, 2048, 132) == (4, 2048, 4, 396)
    assert norm_tile(12_352, 2048, 132) == (4, 2048, 4, 396)
    assert norm_tile(5120, 2048, 132) == (2, 2048, 4, 528)
    assert norm_tile(256, 2048, 132) == (4, 2048, 4, 64)


@pytest.mark.parametrize("columns", [0, MAX_IN + 1])
def test_rows_that_do_not_fit_are_refused(columns: int) -> None:
    for tile in (norm_tile, add_tile):
        with pytest.raises(ValueError, match="columns"):
            tile(1, columns, 132)


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_nothing_spills(kind: str) -> None:
    product = ("*fp32", "*fp32", f"*{kind}", "*fp32", f"*{kind}", "*i32", "fp32", "i32")
    add = (f"*{kind}", f"*{kind}", "*fp32", "*i32", "i32")
    cases = []
    # Rows of MAX_IN, twice as wide as any here, keep up to 120 bytes a thread in memory.
    for out, columns in [(5120, 2048), (2048, 4096), (151936, 2048), (40, 200), (99, 8192)]:
        tile, many = norm_tile(out, columns, 132), norm_tile(out, columns, 132).programs < out
        shape = {"IN": columns, "IN_TILE": tile.columns, "ROWS": tile.rows}
        cases.append(Case(MODULE, "_norm_linear", product, {**shape, "KEEP": True, "MANY": many}, tile.warps))
        tile = add_tile(out, columns, 132)
        cases.append(Case(MODULE, "_linear_add", add, {**shape, "ROWS": tile.rows}, tile.warps))
    cases.append(Case(MODULE, "_embed", ("*i32", f"*{kind}", "*fp32", "*i32"), {"IN": 2048, "BLOCK": 1024}))
    assert_no_spills(cases)
