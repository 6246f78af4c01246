"""Grouped products of prefill against float64, and the maps around them against brute force."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.gpu import experts_reference
from ftagent.engine.kernels.gpu.device import Device
from ftagent.engine.kernels.gpu.grouped import (
    Biases,
    choose_rows,
    choose_tile,
    down,
    gate_up,
    group_pairs,
    order_pairs,
    positions,
    scatter_add,
)
from ftagent.engine.kernels.swiglu import Swiglu

EXAMPLES = 6 if torch.cuda.is_available() else 12  # each has kernels of its own to compile on a device


@dataclass(frozen=True)
class Layer:
    """One layer's tokens and experts; the experts lie apart and in reverse order."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    bank: torch.Tensor  # T [E, I, 3, H]
    memory: list[torch.Tensor]

    @property
    def pointers(self) -> torch.Tensor:
        addresses = [records.data_ptr() for records in self.memory]
        return torch.tensor(addresses, dtype=torch.int64, device=self.x.device)

    def expected(self) -> torch.Tensor:
        return experts_reference.layer(
            self.x.double(), self.ids, self.weights.double(), list(self.bank.double())
        )


def make(
    tokens: int, per_token: int, experts: int, hidden: int, intermediate: int, dtype: torch.dtype,
    device: torch.device, seed: int,
) -> Layer:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)

    bank = normal(experts, intermediate, 3, hidden, scale=hidden**-0.5)
    # Few experts take most tokens, and some none.
    scores = torch.rand(tokens, experts, generator=generator) + torch.rand(experts, generator=generator) * 2
    ids = scores.topk(per_token, dim=-1).indices.to(torch.int32).to(device)
    memory = [bank[one].clone() for one in reversed(range(experts))][::-1]
    weights = torch.rand(tokens, per_token, generator=generator).to(device)
    return Layer(normal(tokens, hidden), ids, weights, bank, memory)


def run(layer: Layer, wave: list[int], y: torch.Tensor) -> None:
    """Adds what the experts of `wave`, given in ascending order, give to y."""
    tokens, per_token = layer.ids.shape
    experts, intermediate, _, hidden = layer.bank.shape
    pairs, offsets = order_pairs(layer.ids, experts)
    keep = torch.cat([torch.arange(int(offsets[e]), int(offsets[e + 1])) for e in wave]).to(pairs.device)
    counts = torch.tensor([0] + [int(offsets[e + 1] - offsets[e]) for e in wave])
    chosen = torch.tensor(wave, device=pairs.device)
    wanted = pairs[keep].contiguous()
    groups = group_pairs(
        wanted, counts.cumsum(0).to(torch.int32).to(pairs.device), layer.pointers[chosen], per_token
    )
    act = torch.full((len(wanted), intermediate), float("nan"), dtype=layer.x.dtype, device=pairs.device)
    out = torch.full((len(wanted), hidden), float("nan"), dtype=layer.x.dtype, device=pairs.device)
    gate_up(layer.x, groups, act)
    down(act, groups, out)
    assert torch.isfinite(act).all()
    scatter_add(out, positions(wanted, tokens * per_token), layer.weights, y)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, int, int, torch.dtype, int]:
    experts = draw(st.sampled_from([2, 5, 8]))
    return (
        draw(st.sampled_from([1, 2, 17, 40, 70])),
        draw(st.integers(1, 2)),
        experts,
        draw(st.sampled_from([8, 64, 200])),
        draw(st.sampled_from([8, 24, 112])),
        draw(st.sampled_from([torch.float32, torch.bfloat16])),
        draw(st.integers(0, 2**31)),
    )


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_equals_float64(device: torch.device, case: tuple[int, int, int, int, int, torch.dtype, int]) -> None:
    check(device, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_of_many_rows(device: torch.device, dtype: torch.dtype) -> None:
    check(device, (140, 1, 1, 72, 24, dtype, 5))


def check(device: torch.device, case: tuple[int, int, int, int, int, torch.dtype, int]) -> None:
    tokens, per_token, experts, hidden, intermediate, dtype, seed = case
    layer = make(tokens, per_token, experts, hidden, intermediate, dtype, device, seed)
    before = torch.randn(tokens, hidden).to(device)
    y = before.clone()
    run(layer, list(range(experts)), y)
    expected = layer.expected()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2  # bfloat16 keeps 8 bits of act and of out
    error = (y.double() - before.double() - expected).abs().max()
    assert float(error) <= tolerance * float(expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_waves_of_experts_add_up(device: torch.device, dtype: torch.dtype) -> None:
    """Experts come in waves as they arrive; pairs of the others are left alone."""
    layer = make(30, 3, 6, 40, 16, dtype, device, 1)
    y = torch.zeros(30, 40, device=device)
    for wave in ([1, 4], [0, 2, 5], [3]):
        run(layer, wave, y)
    expected = layer.expected()
    assert float((y.double() - expected).abs().max()) <= 2e-2 * float(expected.abs().max())


@pytest.mark.parametrize(
    "how", [Swiglu(), Swiglu(1.702, 7.0, 1.0), Swiglu(1.702, 0.5, 1.0), Swiglu(limit=1.0)]
)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_biases_and_clamps(device: torch.device, dtype: torch.dtype, biased: bool, how: Swiglu) -> None:
    """Groups take the biases of their own experts, whatever their order: here 3, 0 and 2 of 5."""
    tokens, hidden, inner, wave = 12, 40, 20, [3, 0, 2]
    layer = make(tokens, 1, 5, hidden, inner, dtype, device, 7)
    x = layer.x * 3
    table = torch.randn(5, 2 * inner + hidden).to(dtype).to(device)
    pairs = torch.randperm(tokens).to(torch.int32).to(device)
    offsets = torch.tensor([0, 5, 6, 12], dtype=torch.int32, device=device)
    groups = group_pairs(pairs, offsets, layer.pointers[wave], 1)
    act = torch.full((tokens, inner), float("nan"), dtype=dtype, device=device)
    experts = torch.tensor(wave, dtype=torch.int32, device=device)
    gate_up(x, groups, act, biases=Biases(table, experts) if biased else None, how=how)
    limit = float("inf") if how.limit is None else how.limit
    for place, pair in enumerate(pairs.tolist()):
        expert = wave[0 if place < 5 else 1 if place < 6 else 2]
        gate, up, _ = layer.bank[expert].double().unbind(1)
        row, added = x[pair].double(), table[expert].double() * biased
        left, right = gate @ row + added[:inner], up @ row + added[inner : 2 * inner]
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
        expected = (right + how.offset) * left / (1 + (-how.alpha * left).exp())
        error = (act[place].double() - expected).abs().max()
        assert float(error) <= (1e-5 if dtype == torch.float32 else 1e-2) * float(expected.abs().max() + 1)


def test_nothing_to_do(device: torch.device) -> None:
    none = torch.empty(0, dtype=torch.int32, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    groups = group_pairs(none, zero, torch.empty(0, dtype=torch.int64, device=device), 2)
    x, act, out = (torch.empty(0, 16, device=device) for _ in range(3))
    gate_up(x, groups, act)
    down(act, groups, out)
    y = torch.ones(3, 16, device=device)
    scatter_add(out, positions(none, 6), torch.ones(3, 2, device=device), y)
    assert torch.equal(y, torch.ones(3, 16, device=device))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(0, 700), min_size=1, max_size=12))
def test_every_row_has_one_tile(device: torch.device, counts: list[int]) -> None:
    offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32).to(device)
    pairs = torch.zeros(sum(counts), dtype=torch.int32, device=device)
    groups = group_pairs(
        pairs, offsets, torch.zeros(len(counts), dtype=torch.int64, device=device), per_token=1
    )
    tiles = groups.tiles.tolist()
    total, most = tiles[0], groups.most
    found = list(zip(tiles[1 : 1 + total], tiles[1 + most : 1 + most + total], strict=True))
    begins = offsets.tolist()
    expected = [
        (group, row)
        for group in range(len(counts))
        for row in range(begins[group], begins[group + 1], groups.rows)
    ]
    assert found == expected
    assert total <= most


@given(tokens=st.integers(0, 40), per_token=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_pairs_are_sorted_by_expert(tokens: int, per_token: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 7, (tokens, per_token), generator=generator)
    pairs, offsets = order_pairs(ids, 7)
    flat = ids.flatten().tolist()
    expected = [[pair for pair, one in enumerate(flat) if one == expert] for expert in range(7)]
    assert [pairs[offsets[e] : offsets[e + 1]].tolist() for e in range(7)] == expected
    place = positions(pairs, len(flat))
    assert [pairs[at] for at in place.tolist()] == list(range(len(flat)))


def test_scatter_adds_rank_by_rank(device: torch.device) -> None:
    """The very sum: y + w0 o0 + w1 o1 + w2 o2 in float32, in that order, whatever row a pair stands in."""
    generator = torch.Generator().manual_seed(3)
    tokens, per_token, hidden = 5, 3, 72
    out = torch.randn(tokens * per_token, hidden, generator=generator) * 1000
    weights = torch.rand(tokens, per_token, generator=generator)
    y = torch.randn(tokens, hidden, generator=generator)
    orders = [torch.randperm(tokens * per_token, generator=generator) for _ in range(2)]
    results = []
    for order in orders:
        position = torch.empty(tokens * per_token, dtype=torch.int32)
        position[order] = torch.arange(tokens * per_token, dtype=torch.int32)
        position[4] = -1
        found = y.clone().to(device)
        scatter_add(out[order].to(device), position.to(device), weights.to(device), found)
        results.append(found)
    assert torch.equal(*results)
    expected = y.double()
    for pair in range(tokens * per_token):
        if pair != 4:
            token, rank = divmod(pair, per_token)
            expected[token] += weights[token, rank].double() * out[pair].double()
    torch.testing.assert_close(results[0].double().cpu(), expected, rtol=1e-5, atol=1e-3)


@given(rows=st.integers(0, 5000), itemsize=st.sampled_from([2, 4]), kind=st.sampled_from(
    [(80, 163), (86, 99), (89, 99), (90, 227), (120, 99)]
))  # fmt: skip
def test_tiles_fit_the_device(rows: int, itemsize: int, kind: tuple[int, int]) -> None:
    capability, kibibytes = kind
    tile = choose_tile(choose_rows(rows), itemsize, Device(capability, kibibytes * 1024, 132))
    assert tile.stages * (tile.rows + tile.columns) * tile.depth * itemsize <= kibibytes * 1024
    assert tile.rows == choose_rows(rows)
    assert tile.columns % 2 == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("tokens", [3, 40, 700])
def test_real_sizes_on_a_device(device: torch.device, tokens: int) -> None:
    check(device, (tokens, 4, 8, 2048, 768, torch.bfloat16, tokens))
