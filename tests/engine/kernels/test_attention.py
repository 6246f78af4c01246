"""Partial attention, joined, against plain softmax attention in float64."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import pytest
import torch

from ftagent.engine.kernels import attention
from ftagent.engine.kernels.attention import (
    attend_all,
    attend_causal,
    attend_plain,
    attend_window,
    join,
    merge,
)


def plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, past: int, scale: float
) -> torch.Tensor:
    group = query.shape[0] // key.shape[0]
    key, value = key.double().repeat_interleave(group, 0), value.double().repeat_interleave(group, 0)
    scores = query.double() @ key.transpose(1, 2) * scale
    rows, columns = scores.shape[1:]
    index = torch.arange(columns, device=query.device)
    hidden = index > index[:rows].unsqueeze(1) + past
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ value


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("cuts", [(0,), (0, 5), (0, 64, 70), (0, 1, 2, 90)])
def test_parts_joined_equal_the_whole(heads: int, kv_heads: int, cuts: tuple[int, ...]) -> None:
    torch.manual_seed(heads + len(cuts))
    rows, past, scale = 23, cuts[-1], 0.3
    query = torch.randn(heads, rows, 16) * 3
    key, value = (torch.randn(kv_heads, past + rows, 16) * 2 for _ in range(2))
    parts = [attend_causal(query, key[:, past:], value[:, past:], scale)]
    parts += [attend_all(query, key[:, a:b], value[:, a:b], scale) for a, b in pairwise(cuts)]
    expected = plain(query, key, value, past, scale)
    torch.testing.assert_close(join(parts).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(reduce(merge, parts).out.double(), expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("score_bytes", [1, 5000, 2**28])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_form_equals_the_fused_one_in_blocks_of_any_size(
    score_bytes: int, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORE_BYTES", score_bytes)
    torch.manual_seed(0)
    query = (torch.randn(23, 6, 12) * 2).to(dtype).transpose(0, 1)
    key, value = (torch.randn(2, 23 if causal else 31, 12).to(dtype) for _ in range(2))
    found = attend_plain(query, key, value, causal, 0.4)
    assert found.out.dtype == dtype
    expected = attend_causal(query, key, value, 0.4) if causal else attend_all(query, key, value, 0.4)
    torch.testing.assert_close(found.out, expected.out, rtol=0, atol=2e-2 if dtype.itemsize == 2 else 1e-5)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-2 if dtype.itemsize == 2 else 1e-5)


def seen_by_each(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Row by row and head by head, each over the keys that its window holds, float64, scale 0.3."""
    heads, rows, _ = query.shape
    past, group = key.shape[1] - rows, heads // key.shape[0]
    out = torch.empty(query.shape, dtype=torch.float64)
    for head in range(heads):
        for row in range(rows):
            end = past + row + 1
            held = slice(max(end - window, 0), end)
            scores = key[head // group, held].double() @ query[head, row].double() * 0.3
            weights = scores.exp()
            total = weights.sum() + (0 if sinks is None else sinks[head].double().exp())
            out[head, row] = (weights / total) @ value[head // group, held].double()
    return out


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(
    ("window", "past", "rows"),
    [(1, 0, 9), (4, 0, 3), (4, 3, 30), (16, 7, 150), (128, 127, 140), (500, 9, 140)],
)
def test_a_window_hides_what_lies_before_it(window: int, past: int, rows: int, with_sinks: bool) -> None:
    torch.manual_seed(window + rows)
    query = torch.randn(4, rows, 8) * 2
    key, value = (torch.randn(2, past + rows, 8) * 2 for _ in range(2))
    sinks = torch.randn(4) * 3 if with_sinks else None
    found = join([attend_window(query, key, value, window, 0.3)], sinks)
    expected = seen_by_each(query, key, value, window, sinks)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cuts", [(0,), (0, 5), (0, 1, 2, 90)])
def test_a_sink_takes_its_share_once_of_all_parts(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(len(cuts))
    rows, past = 11, cuts[-1]
    query = torch.randn(6, rows, 16)
    key, value = (torch.randn(2, past + rows, 16) for _ in range(2))
    sinks = torch.randn(6) * 2
    parts = [attend_causal(query, key[:, past:], value[:, past:], 0.3)]
    parts += [attend_all(query, key[:, a:b], value[:, a:b], 0.3) for a, b in pairwise(cuts)]
    expected = seen_by_each(query, key, value, 1000, sinks)
    torch.testing.assert_close(join(parts, sinks).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnADevice:
    @pytest.fixture(params=[False, True], ids=["short", "as if long"], autouse=True)
    def long(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param:
            monkeypatch.setattr(attention, "LONG", 1)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize(
        ("heads", "kv_heads", "dim"), [(32, 4, 128), (16, 2, 256), (4, 2, 16), (6, 1, 72), (4, 4, 20)]
    )
    @pytest.mark.parametrize(("past", "rows"), [(0, 300), (700, 1), (64, 130), (1000, 333)])
    def test_parts_joined_equal_the_whole(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, past: int, rows: int
    ) -> None:
        """Keys and values are views of a longer storage and queries lie row by row, as in a layer."""
        torch.manual_seed(past + rows)
        device, scale = torch.device("cuda"), dim**-0.5
        query = torch.randn(rows, heads, dim, device=device).to(dtype).transpose(0, 1)
        stored = torch.randn(2 * kv_heads, past + rows + 50, dim, device=device).to(dtype)
        key, value = stored[:kv_heads, : past + rows], stored[kv_heads:, : past + rows]
        parts = [attend_causal(query, key[:, past:], value[:, past:], scale)]
        if past:
            parts.append(attend_all(query, key[:, :past], value[:, :past], scale))
        assert parts[0].lse.dtype == torch.float32
        expected = plain(query, key, value, past, scale)
        atol = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(join(parts).double(), expected, rtol=0, atol=atol)
