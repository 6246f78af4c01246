"""Rings of the last tokens against a plain list of all of them."""

from __future__ import annotations

import random

import pytest
import torch

from ftagent.engine.context.windows import WindowRings, WindowShape


def rows_of(begin: int, end: int, planes: int, size: int) -> torch.Tensor:
    """A vector of its own for every position and plane: [planes, end - begin, size]."""
    positions = torch.arange(begin, end, dtype=torch.float32).view(1, -1, 1)
    return positions * 1000 + torch.arange(planes).view(-1, 1, 1) * 10 + torch.arange(size)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_chunks_a_token_finds_what_its_window_holds(seed: int) -> None:
    dice = random.Random(seed)
    planes, size, window = dice.randrange(1, 5), dice.randrange(1, 4), dice.choice([1, 2, 5, 16])
    rings = WindowRings(WindowShape(2, planes, size, window), 3)
    position = 0
    while position < 120:
        assert_tail(rings, position)
        count = dice.choice([1, 1, 2, window, window + 1, dice.randrange(1, 50)])
        rings.write(1, 2, position, rows_of(position, position + count, planes, size))
        position += count
        seen = rings.seen(1, 2, position - 1)
        expected = rows_of(max(position - window, 0), position, planes, size)
        assert torch.equal(seen.sort(dim=1).values, expected)
    assert not rings.stored[0].any()
    assert not rings.stored[1, :2].any()


def assert_tail(rings: WindowRings, position: int) -> None:
    _, planes, size, window = rings.shape
    expected = rows_of(max(position + 1 - window, 0), position, planes, size)
    assert torch.equal(rings.tail(1, 2, position), expected)


def test_its_bytes_are_those_of_the_window() -> None:
    """gpt-oss-20b: 12 window layers, keys and values of 8 heads of 64, 128 tokens, two bytes each."""
    shape = WindowShape(layers=12, planes=16, size=64, window=128)
    assert shape.slot_bytes(torch.bfloat16) == 3 * 2**20
    assert WindowRings(shape, 2, torch.bfloat16).stored.nbytes == 2 * 3 * 2**20


def test_rings_of_a_layer_lie_as_pages_do() -> None:
    """Planes of all slots' tokens: the token at p of slot s is at s * window + p % window."""
    rings = WindowRings(WindowShape(layers=2, planes=3, size=2, window=5), 4)
    for slot in range(4):
        rings.write(1, slot, 0, rows_of(slot * 100, slot * 100 + 7, 3, 2))
    planes = rings.layer(1)
    assert planes.shape == (3, 20, 2)
    assert planes.data_ptr() == rings.layer(0).data_ptr() + planes.nbytes
    for slot in range(4):
        for position in range(2, 7):
            place = slot * 5 + position % 5
            expected = rows_of(slot * 100 + position, slot * 100 + position + 1, 3, 2)
            assert torch.equal(planes[:, place : place + 1], expected)
