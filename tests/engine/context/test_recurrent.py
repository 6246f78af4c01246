"""State slots: zeroed when taken, snapshots that nothing changes, counts that add up."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.context.pages import PoolFull
from ftagent.engine.context.recurrent import StatePool, StateShape
from ftagent.engine.context.windows import WindowShape

SHAPE = StateShape(layers=2, conv_columns=3, conv_channels=5, heads=2, key_dim=4, value_dim=3)


def scribble(pool: StatePool, slot: int, value: float) -> None:
    pool.conv[:, slot] = value
    pool.recurrent[:, slot] = -value


def test_a_slot_is_zero_when_taken_again() -> None:
    pool = StatePool(1, SHAPE)
    slot = pool.allocate()
    scribble(pool, slot, 3.0)
    pool.release(slot)
    assert pool.allocate() == slot
    assert not pool.conv[:, slot].any()
    assert not pool.recurrent[:, slot].any()


def test_a_full_pool_says_so_and_stays_whole() -> None:
    pool = StatePool(2, SHAPE)
    taken = {pool.allocate(), pool.allocate()}
    with pytest.raises(PoolFull, match="recurrent state pool is full"):
        pool.allocate()
    pool.check_integrity()
    assert taken == {0, 1}
    assert pool.free_count == 0


def test_a_snapshot_does_not_change_with_its_slot_and_restores_by_copy() -> None:
    pool = StatePool(2, SHAPE)
    slot, other = pool.allocate(), pool.allocate()
    scribble(pool, slot, 1.0)
    snapshot = pool.snapshot(slot)
    scribble(pool, slot, 2.0)
    pool.restore(other, snapshot)
    scribble(pool, slot, 5.0)
    assert torch.equal(pool.conv[:, other], torch.ones_like(snapshot.conv))
    scribble(pool, other, 9.0)
    assert torch.equal(snapshot.recurrent, -torch.ones_like(snapshot.recurrent))
    assert snapshot.nbytes == pool.slot_bytes


def test_a_snapshot_of_windows_alone_holds_their_bytes() -> None:
    pool = StatePool(2, window=WindowShape(layers=3, planes=2, size=4, window=5), dtype=torch.bfloat16)
    assert pool.slot_bytes == 3 * 2 * 4 * 5 * 2
    slot, other = pool.allocate(), pool.allocate()
    pool.windows.write(1, slot, 0, torch.ones(2, 3, 4))
    snapshot = pool.snapshot(slot)
    assert snapshot.nbytes == pool.slot_bytes
    pool.windows.write(1, slot, 0, torch.zeros(2, 3, 4))
    pool.restore(other, snapshot)
    assert torch.equal(pool.windows.tail(1, other, 3).float(), torch.ones(2, 3, 4))


def test_a_free_slot_cannot_be_used() -> None:
    pool = StatePool(1, SHAPE)
    slot = pool.allocate()
    pool.release(slot)
    for misuse in (pool.release, pool.snapshot):
        with pytest.raises(AssertionError, match="is not held"):
            misuse(slot)
    pool.check_integrity()


def test_a_model_without_linear_layers_still_counts_slots() -> None:
    pool = StatePool(3)
    assert pool.slot_bytes == 0
    slot = pool.allocate()
    pool.restore(slot, pool.snapshot(slot))
    pool.release(slot)
    pool.check_integrity()
    assert pool.free_count == 3
