"""The best logits against a stable sort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.gpu import sample
from ftagent.engine.kernels.gpu.sample import CANDIDATES, candidates
from tests.engine.kernels.compiling import Case, assert_no_spills, cuobjdump

MODULE = "ftagent.engine.kernels.gpu.sample"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", autouse=True)
def small_blocks(device: torch.device) -> Iterator[None]:
    """Under the interpreter: blocks that it sorts in bearable time, and three launches for 300 logits."""
    with pytest.MonkeyPatch.context() as patch:
        if device.type != "cuda":
            patch.setattr(sample, "BLOCK", 128)
        yield


def best(logits: torch.Tensor, live: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch, device = len(logits), logits.device
    values = torch.full((batch, CANDIDATES), 7.5, device=device)
    ids = torch.full((batch, CANDIDATES), -7, dtype=torch.int32, device=device)
    candidates(logits, values, ids, torch.tensor([live], dtype=torch.int32, device=device))
    return values, ids


def check(logits: torch.Tensor, live: int) -> None:
    values, ids = best(logits, live)
    count = min(logits.shape[1], CANDIDATES)
    exact, order = torch.sort(logits[:live], dim=-1, descending=True, stable=True)
    assert torch.equal(values[:live, :count], exact[:, :count])
    assert torch.equal(ids[:live, :count].long(), order[:, :count])
    assert bool((values[:live, count:] == -INF).all())
    assert bool((ids[:live, count:] == -1).all())
    assert bool((values[live:] == 7.5).all())
    assert bool((ids[live:] == -7).all())


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_ties_infinities_and_odd_sizes(device: torch.device, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 63, 64, 65, 128, 129, 300]))
    batch = data.draw(st.integers(1, 2))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    kinds = data.draw(st.sampled_from([3, 40, 100_000]))  # few kinds of value: many ties
    logits = torch.randint(-kinds, kinds + 1, (batch, size), device=device).float() / 8
    for special in (INF, -INF, -0.0, 1e-42, -3e38):
        if data.draw(st.booleans()):
            logits[:, data.draw(st.integers(0, size - 1))] = special
    check(logits, data.draw(st.integers(1, batch)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes the interpreter minutes")
@pytest.mark.parametrize("size", [70_000, 151_936, 248_320, 300_000])
def test_a_vocabulary(device: torch.device, size: int) -> None:
    torch.manual_seed(size)
    check(torch.randn(1, size, device=device).mul(100).round().div(16), 1)


def test_all_masked_but_one(device: torch.device) -> None:
    logits = torch.full((1, 300), -INF, device=device)
    logits[0, 299] = -5.0
    check(logits, 1)


@pytest.mark.slow
def test_larger_blocks(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "BLOCK", 4096)
    monkeypatch.setattr(sample, "WARPS", 16)
    torch.manual_seed(7)
    check(torch.randn(1, 4200, device=device).round(decimals=1), 1)


@pytest.mark.parametrize(("size", "sign"), [(70, 1.0), (70, -1.0), (150, -1.0)])
def test_a_nan_spoils_its_row_only(device: torch.device, size: int, sign: float) -> None:
    torch.manual_seed(size)
    logits = torch.randn(2, size, device=device)
    logits[0, size - 3] = torch.copysign(torch.tensor(NAN), torch.tensor(sign))
    logits[0, 2] = INF
    values, _ = best(logits, 2)
    assert bool(values[0].isnan().all())
    assert torch.equal(values[1, :CANDIDATES], logits[1].sort(descending=True).values[:CANDIDATES])


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize(("size", "warps"), [(1024, 8), (4096, 16)])
def test_nothing_spills(size: int, warps: int) -> None:
    shape = {"BEST": CANDIDATES, "SIZE": size, "NOTHING": -(2**63), "LOW": 2**31 - 1}
    rest = ("*fp32", "*i32", "*i32", "i32", "i32")
    first = Case(
        MODULE, "_best", ("*fp32", "*i64", *rest), {**shape, "FIRST": True, "LAST": False}, warps=warps
    )
    middle = Case(
        MODULE, "_best", ("*i64", "*i64", *rest), {**shape, "FIRST": False, "LAST": False}, warps=warps
    )
    last = Case(
        MODULE, "_best", ("*i64", "*fp32", *rest), {**shape, "FIRST": False, "LAST": True}, warps=warps
    )
    if size == 1024:
        assert_no_spills([first, middle, last])
    else:
        assert_no_spills([first, last], [90])
