"""The staging ring hands out places in turn and keeps what has not been released."""

from __future__ import annotations

import random

import pytest
import torch

from ftagent.engine.device.ring import StagingRing


def test_a_place_keeps_its_expert_until_it_is_released() -> None:
    dice = random.Random(1)
    ring = StagingRing(5, (2, 3, 4), torch.float32, torch.device("cpu"))
    held: list[tuple[int, torch.Tensor]] = []
    for number in range(500):
        if ring.room and dice.random() < 0.6:
            records = torch.full((2, 3, 4), float(number))
            held.append((ring.fetch(records), records))
        elif held:
            place, records = held.pop(0)
            ring.wait(place)
            assert torch.equal(ring.records[place], records)
            assert ring.address(place) == ring.records[place].data_ptr()
            ring.release([place])
        ring.check_integrity()
        assert ring.room == 5 - len(held)
        assert len({place for place, _ in held}) == len(held)


def test_a_full_ring_says_so() -> None:
    ring = StagingRing(2, (1, 3, 2), torch.float32, torch.device("cpu"))
    for _ in range(2):
        ring.fetch(torch.zeros(1, 3, 2))
    with pytest.raises(AssertionError, match="full"):
        ring.fetch(torch.zeros(1, 3, 2))
