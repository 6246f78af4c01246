"""Slots: exact copies of bank rows, aligned, at addresses that never move."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.slots import ALIGNMENT, SLAB_SLOTS, SlotStore, slot_bytes

SHAPE = ExpertShape(hidden=72, intermediate=17)
CPU = torch.device("cpu")


def filled(experts: int, dtype: torch.dtype) -> ExpertBank:
    bank = ExpertBank(experts, SHAPE, ExpertFormat(dtype))
    for expert in range(experts):
        bank.records(expert).copy_(torch.randn(17, 3, 72))
    return bank


@pytest.mark.parametrize("count", [1, SLAB_SLOTS, SLAB_SLOTS + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slots_are_aligned_and_do_not_overlap(count: int, dtype: torch.dtype) -> None:
    store = SlotStore(count, SHAPE, dtype, CPU)
    addresses = store.addresses()
    assert addresses.dtype == torch.int64
    assert addresses.shape == (count,)
    assert not (addresses % ALIGNMENT).any()
    steps = addresses.sort().values.diff()
    assert bool((steps >= slot_bytes(SHAPE, dtype.itemsize)).all())
    assert store.slot_bytes >= SHAPE.weights() * dtype.itemsize
    for slot in range(count):
        store[slot].fill_(slot)
    assert all(bool((store[slot] == slot).all()) for slot in range(count))
    assert torch.equal(store.addresses(), addresses)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_fetch_brings_the_values_of_an_expert(stored: torch.dtype) -> None:
    bank, store = filled(3, stored), SlotStore(2, SHAPE, torch.float32, CPU)
    store[1].fill_(torch.nan)
    store.fetch(1, bank, 2)
    assert torch.equal(store[1], bank.records(2).float())


def test_shared_slots_are_the_bank_rows() -> None:
    bank, store = filled(3, torch.float32), SlotStore(2, SHAPE, torch.float32, CPU, shared=True)
    store.fetch(0, bank, 2)
    assert store[0].data_ptr() == bank.address(2)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [True, False])
def test_fetch_to_a_device(pinned: bool) -> None:
    from ftagent.engine.experts.pinning import CudaRegistrar

    device = torch.device("cuda", torch.cuda.current_device())
    bank, store = filled(3, torch.bfloat16), SlotStore(70, SHAPE, torch.bfloat16, device)
    if pinned:
        assert bank.pin(CudaRegistrar(device)) is None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    store.fetch(69, bank, 2, stream)
    store.fetch(3, bank, 0)
    torch.cuda.synchronize()
    assert torch.equal(store[69].cpu(), bank.records(2))
    assert torch.equal(store[3].cpu(), bank.records(0))
    assert not (store.addresses() % ALIGNMENT).any()
    bank.close()
