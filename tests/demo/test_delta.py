"""The chunked delta rule against its own definition, step by step, and the scan against a plain loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ftagent.demo.training import delta


def inputs(length: int, seed: int) -> list[Tensor]:
    """q, k, v, g, beta as a layer makes them: unit keys, negative log decays, beta in (0, 1)."""
    torch.manual_seed(seed)
    q, k = (F.normalize(torch.randn(2, length, 3, 8), dim=-1) for _ in range(2))
    v = torch.randn(2, length, 3, 5)
    g = -torch.rand(2, length, 3) * 2
    beta = torch.rand(2, length, 3)
    return [x.requires_grad_() for x in (q * 8**-0.5, k, v, g, beta)]


def test_by_step_is_the_delta_rule() -> None:
    """One head, one step at a time, with matrices: S = S exp(g) + k (v - S^T k)^T beta, o = S^T q."""
    q, k, v, g, beta = (x[0, :, 0].detach() for x in inputs(7, 3))
    state = torch.zeros(8, 5)
    for t in range(7):
        state = state * g[t].exp()
        state = state + torch.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
        found = delta.by_step(*(x.detach() for x in inputs(7, 3)))[0, t, 0]
        torch.testing.assert_close(found, state.T @ q[t])


@pytest.mark.parametrize("length", [1, 63, 64, 65, 129, 200])
def test_chunks_equal_steps_in_values_and_gradients(length: int) -> None:
    given = inputs(length, length)
    weight = torch.randn(2, length, 3, 5)
    results = []
    for rule in (delta.by_step, delta.in_chunks):
        out = rule(*given)
        results.append((out, torch.autograd.grad((out * weight).sum(), given)))
    (steps, step_gradients), (chunks, chunk_gradients) = results
    torch.testing.assert_close(chunks, steps, atol=2e-5, rtol=1e-4)
    for chunk, step in zip(chunk_gradients, step_gradients, strict=True):
        torch.testing.assert_close(chunk, step, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_scan_equals_a_loop(count: int) -> None:
    torch.manual_seed(count)
    a = torch.randn(2, count, 4, 4, dtype=torch.float64) / 2
    b = torch.randn(2, count, 4, 6, dtype=torch.float64)
    state = torch.zeros(2, 4, 6, dtype=torch.float64)
    expected = []
    for i in range(count):
        state = a[:, i] @ state + b[:, i]
        expected.append(state)
    torch.testing.assert_close(delta.scan(a, b), torch.stack(expected, 1))
