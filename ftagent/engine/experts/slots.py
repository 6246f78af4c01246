"""Device slots: compute-ready copies of experts, in slabs that can come and go. Knows tensors, not policy."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertShape

SLAB_SLOTS = 64


class ExpertWeights(NamedTuple):
    """One expert ready to compute with: gate_up [2I, H] (gate rows first), down [H, I]."""

    gate_up: torch.Tensor
    down: torch.Tensor


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
        self.slot_bytes = shape.weights() * dtype.itemsize
        self._slots: list[ExpertWeights] = []
        hidden, inner = shape
        if shared:
            empty = torch.empty(0, dtype=dtype)
            self._slots = [ExpertWeights(empty, empty)] * count
        for first in range(0, 0 if shared else count, SLAB_SLOTS):
            slots = min(SLAB_SLOTS, count - first)
            gate_up = torch.empty(slots, 2 * inner, hidden, dtype=dtype, device=device)
            down = torch.empty(slots, hidden, inner, dtype=dtype, device=device)
            self._slots += [
                ExpertWeights(*pair) for pair in zip(gate_up.unbind(0), down.unbind(0), strict=True)
            ]

    def __getitem__(self, slot: int) -> ExpertWeights:
        return self._slots[slot]

    def fetch(self, slot: int, bank: ExpertBank, expert: int) -> None:
        """Bring an expert of `bank` into a slot."""
        if self.shared:
            row = bank.row(expert)
            self._slots[slot] = ExpertWeights(row.gate_up, row.down)
        else:
            bank.decode(expert, *self._slots[slot])
