"""Partial attention, joined, against plain softmax attention in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ftagent.engine.kernels.attention import attend_all, attend_causal, join


def plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, past: int, scale: float
) -> torch.Tensor:
    group = query.shape[0] // key.shape[0]
    key, value = key.double().repeat_interleave(group, 0), value.double().repeat_interleave(group, 0)
    scores = query.double() @ key.transpose(1, 2) * scale
    rows, columns = scores.shape[1:]
    hidden = torch.arange(columns) > torch.arange(rows).unsqueeze(1) + past
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
