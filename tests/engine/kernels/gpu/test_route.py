"""The router's kernel against float64, its ties, and the router of the CPU path."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.gpu import experts_reference
from ftagent.engine.kernels.gpu.route import MAX_EXPERTS, RouteSpec, route

EXAMPLES = 8 if torch.cuda.is_available() else 30  # each has a kernel of its own to compile on a device
NEVER = 77  # what outputs hold before


@dataclass(frozen=True)
class Routed:
    ids: torch.Tensor
    weights: torch.Tensor
    seen: torch.Tensor
    guess: torch.Tensor


def run(flat: torch.Tensor, spec: RouteSpec, slot_of: torch.Tensor, live: int, guesses: int = 0) -> Routed:
    batch, device = flat.shape[0], flat.device

    def poisoned(columns: int) -> torch.Tensor:
        return torch.full((batch, columns), NEVER, dtype=torch.int32, device=device)

    out = Routed(
        poisoned(spec.per_token),
        torch.full((batch, spec.per_token), float("nan"), device=device),
        poisoned(spec.per_token),
        poisoned(max(1, guesses)),
    )
    rows = torch.tensor([live], dtype=torch.int32, device=device)
    route(flat, spec, slot_of, out.ids, out.weights, out.seen, out.guess if guesses else None, rows)
    return out


@st.composite
def cases(draw: st.DrawFn) -> tuple[RouteSpec, int, int, int, int]:
    """Spec, batch, live rows, guesses, seed."""
    experts = draw(st.sampled_from([1, 8, 16, 60, 130, 256, 512]))
    per_token = draw(st.integers(1, min(experts, 10)))
    ahead = draw(st.booleans())
    spec = RouteSpec(experts, per_token, draw(st.booleans()), experts + 5 if ahead else -1)
    batch = draw(st.integers(1, 3))
    return spec, batch, draw(st.integers(0, batch)), per_token if ahead else 0, draw(st.integers(0, 2**31))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_equals_float64(device: torch.device, case: tuple[RouteSpec, int, int, int, int]) -> None:
    spec, batch, live, guesses, seed = case
    generator = torch.Generator().manual_seed(seed)
    # Logits on a grid of 1/64: distinct ones stay distinct in any precision, equal ones are ties.
    grid = torch.randint(-400, 400, (batch, 2 * spec.experts + 9), generator=generator)
    flat = (grid / 64).to(device)
    slot_of = torch.randint(-1, 50, (spec.experts,), generator=generator, dtype=torch.int32).to(device)
    found = run(flat, spec, slot_of, live, guesses)
    ids, weights, guess = (part[:live] for part in experts_reference.route(flat.double(), spec, guesses))
    assert torch.equal(found.ids[:live].long(), ids)
    torch.testing.assert_close(found.weights[:live].double(), weights, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.seen[:live], slot_of[ids])
    if guesses:
        assert torch.equal(found.guess[:live].long(), guess)
    assert bool((found.ids[live:] == NEVER).all()), "a row that is not live was written"
    assert bool(found.weights[live:].isnan().all())


def test_ties_go_to_the_lower_id(device: torch.device) -> None:
    flat = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0, 1.0]], device=device)
    found = run(flat, RouteSpec(6, 5, True), torch.arange(6, dtype=torch.int32, device=device), 1)
    assert found.ids.tolist() == [[1, 2, 4, 0, 3]]


def test_scores_that_vanish_are_still_in_order(device: torch.device) -> None:
    """Softmax of far apart logits is exactly zero: ties, so the lower ids."""
    flat = torch.tensor([[-300.0, 0.0, -200.0, float("-inf")]], device=device)
    found = run(flat, RouteSpec(4, 4, False), torch.zeros(4, dtype=torch.int32, device=device), 1)
    assert found.ids.tolist() == [[1, 0, 2, 3]]
    assert found.weights.tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter
def test_numbers_that_are_none_give_valid_ids(device: torch.device) -> None:
    flat = torch.full((1, 16), float("nan"), device=device)
    found = run(flat, RouteSpec(16, 8, True), torch.zeros(16, dtype=torch.int32, device=device), 1)
    assert sorted(found.ids[0].tolist()) == list(range(8))


def test_row_does_not_depend_on_its_company(device: torch.device) -> None:
    torch.manual_seed(1)
    flat, spec = torch.randn(4, 130, device=device), RouteSpec(130, 8, True)
    slot_of = torch.arange(130, dtype=torch.int32, device=device)
    whole = run(flat, spec, slot_of, 4)
    for row in range(4):
        alone = run(flat[row : row + 1], spec, slot_of, 1)
        assert torch.equal(alone.ids[0], whole.ids[row])
        assert torch.equal(alone.weights[0], whole.weights[row])


def test_equals_softmax_and_topk(device: torch.device) -> None:
    """The router of `models.layers.Moe`, written with torch's own functions."""
    torch.manual_seed(2)
    flat = torch.randn(3, 128, device=device) * 2
    found = run(flat, RouteSpec(128, 8, True), torch.zeros(128, dtype=torch.int32, device=device), 3)
    weights, chosen = torch.topk(torch.softmax(flat, dim=-1), 8, dim=-1)
    assert torch.equal(found.ids.long(), chosen)
    torch.testing.assert_close(found.weights, weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize(("experts", "per_token"), [(MAX_EXPERTS + 1, 8), (0, 1), (8, 9), (8, 0)])
def test_refuses_sizes_it_does_not_take(experts: int, per_token: int) -> None:
    with pytest.raises(ValueError, match="route: "):
        RouteSpec(experts, per_token, True)
