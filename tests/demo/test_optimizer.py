"""Muon: what its update does to singular values, and which parameters it takes."""

from __future__ import annotations

import pytest
import torch

from ftagent.demo.training.network import Network
from ftagent.demo.training.optimizer import Muon, optimizers, orthogonalise
from ftagent.demo.training.shape import Shape


@pytest.mark.parametrize("shape", [(32, 32), (16, 80), (80, 16), (3, 24, 40)])
def test_updates_become_nearly_orthogonal(shape: tuple[int, ...]) -> None:
    """Five steps of these coefficients bring singular values to about 0.7..1.2 and keep the directions."""
    torch.manual_seed(0)
    update = torch.randn(shape) * 3
    found = orthogonalise(update).float()
    left, _, right = torch.linalg.svd(update, full_matrices=False)
    values = torch.linalg.svdvals(found)
    largest = values[..., : values.shape[-1] * 3 // 4]  # the smallest of a square matrix start near 0
    assert largest.min() > 0.5
    assert values.max() < 1.35
    nearest = left @ right
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), nearest.flatten(), dim=0)
    assert cosine > 0.95


def test_every_parameter_has_one_optimizer_and_matrices_go_to_muon() -> None:
    shape = Shape(vocab=64, hidden=64, layers=2, experts=16, intermediate=32, shared=32)
    network = Network(shape)
    muon, adam = optimizers(network, 0.02, 0.002)
    assert isinstance(muon, Muon)
    names = {id(p): name for name, p in network.named_parameters()}
    first, second = (
        {names[id(p)] for group in one.param_groups for p in group["params"]} for one in (muon, adam)
    )
    assert first | second == set(names.values())
    assert not first & second
    assert {"embed", "norm", "layers.0.mlp.gate", "layers.0.mixer.conv1d"} <= second
    assert {"layers.0.mlp.gate_up_proj", "layers.1.mixer.q_proj", "layers.0.mixer.out_proj"} <= first


def test_a_step_lowers_a_loss() -> None:
    """Least squares on one matrix: 60 steps come close to the solution."""
    torch.manual_seed(1)
    target = torch.randn(24, 16)
    weight = torch.nn.Parameter(torch.zeros(24, 16))
    muon = Muon([weight], lr=0.05, decay=0.0)
    losses = []
    for _ in range(120):
        loss = (weight - target).square().mean()
        losses.append(loss.item())
        muon.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        muon.step()
    assert losses[-1] < losses[0] / 20
