"""Device slots: compute-ready copies of experts, in slabs that can come and go. Knows tensors, not policy."""

from __future__ import annotations

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertShape
from ftagent.engine.kernels.experts import ExpertWeights

SLAB_SLOTS = 64
ALIGNMENT = 256  # bytes; products of equal values on differently aligned rows may differ in their last bits


def slot_bytes(shape: ExpertShape, itemsize: int) -> int:
    """Memory of one slot: its records [I, 3, H] and biases, up to the next slot."""
    return -(-shape.values() * itemsize // ALIGNMENT) * ALIGNMENT


class SlotStore:
    """Slots 0..count-1. A slab is one allocation of up to SLAB_SLOTS slots; live slots never move.

    On the CPU a bank whose stored format is the compute dtype needs no copies: with `shared` there are no
    slabs, and a slot is a view of its bank row.
    """

    def __init__(
        self, count: int, shape: ExpertShape, dtype: torch.dtype, device: torch.device, shared: bool = False
    ) -> None:
        self.count = count
        self.shared = shared
        self.device = device
        self.dtype = dtype
        self.slot_bytes = slot_bytes(shape, dtype.itemsize)
        self._slots: list[ExpertWeights] = []
        if shared:
            empty = torch.empty(0, dtype=dtype)
            self._slots = [ExpertWeights(empty, empty, empty, empty)] * count
            return
        stride = self.slot_bytes // dtype.itemsize
        for first in range(0, count, SLAB_SLOTS):
            slots = min(SLAB_SLOTS, count - first)
            slab = torch.empty(slots * stride + ALIGNMENT // dtype.itemsize, dtype=dtype, device=device)
            begin = -slab.data_ptr() % ALIGNMENT // dtype.itemsize
            rows = slab[begin : begin + slots * stride].view(slots, stride)[:, : shape.values()]
            self._slots += [shape.ready(row) for row in rows.unbind(0)]

    def __getitem__(self, slot: int) -> torch.Tensor:
        """T [I, 3, H] on the device."""
        return self._slots[slot].records

    def weights(self, slot: int) -> ExpertWeights:
        """A slot's records with the views that the torch kernels use."""
        return self._slots[slot]

    def addresses(self) -> torch.Tensor:
        """int64 [slots] on the CPU: where the records of each slot lie in the device's memory."""
        assert not self.shared, "shared slots lie in the banks"
        return torch.tensor([slot.records.data_ptr() for slot in self._slots], dtype=torch.int64)

    def fetch(
        self, slot: int, bank: ExpertBank, expert: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        """Bring an expert of `bank` into a slot.

        On a CUDA device the copy is queued on `stream` (default: the current one) and this returns at once
        when the bank is pinned; the bank holds records in the compute dtype.
        """
        if self.shared:
            self._slots[slot] = bank.weights(expert)
        elif self.device.type == "cuda":
            with torch.cuda.stream(stream):
                self._slots[slot].records.copy_(bank.records(expert), non_blocking=bank.pinned)
        else:
            bank.decode(expert, self._slots[slot])
