"""Both forms of the gated delta rule against the recurrence written out in float64."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.kernels.delta_rule import DeltaInputs, chunked, recurrent_step, unit_length


def inputs(tokens: int, heads: int, key_dim: int, value_dim: int) -> DeltaInputs:
    torch.manual_seed(tokens)
    return DeltaInputs(
        unit_length(torch.randn(tokens, heads, key_dim)) * key_dim**-0.5,
        unit_length(torch.randn(tokens, heads, key_dim)),
        torch.randn(tokens, heads, value_dim),
        -torch.rand(tokens, heads) * torch.tensor([0.01, 3.0])[torch.arange(heads) % 2],
        torch.rand(tokens, heads),
    )


def written_out(given: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value, decay, beta = (part.double() for part in given)
    state = state.double()
    out = torch.empty_like(value)
    for t in range(len(query)):
        for head in range(query.shape[1]):
            s = state[head] * decay[t, head].exp()
            error = (value[t, head] - key[t, head] @ s) * beta[t, head]
            state[head] = s + torch.outer(key[t, head], error)
            out[t, head] = query[t, head] @ state[head]
    return out, state


@pytest.mark.parametrize("tokens", [2, 63, 64, 65, 200])
def test_chunks_equal_the_recurrence(tokens: int) -> None:
    given = inputs(tokens, 3, 16, 8)
    state = torch.randn(3, 16, 8)
    expected, last = written_out(given, state)
    torch.testing.assert_close(chunked(given, state).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), last, rtol=0, atol=1e-5)


def test_steps_equal_the_recurrence() -> None:
    given = inputs(40, 2, 8, 12)
    state = torch.randn(2, 8, 12)
    expected, last = written_out(given, state)
    found = torch.cat([recurrent_step(given.rows(t, t + 1), state.unsqueeze(0)) for t in range(40)])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), last, rtol=0, atol=1e-5)


def test_extreme_decays_stay_finite() -> None:
    given = inputs(130, 2, 8, 8)._replace(decay=torch.full((130, 2), -80.0))
    state = torch.randn(2, 8, 8)
    assert torch.isfinite(chunked(given, state)).all()
    assert torch.isfinite(state).all()
