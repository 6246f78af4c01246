"""Where every routed expert is, as prefill, decode and the conductor agree on it.

Owns the device's copies of the look-up tables; the policy is the truth, and `publish` brings the device's
table up to date before a decode step. Knows no kernels and takes no decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import torch

from ftagent.engine.experts.admission import Admission
from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.counters import ExpertCounters
from ftagent.engine.experts.heat import Heat, fill_order
from ftagent.engine.experts.native_policy import NativePolicy
from ftagent.engine.experts.policy import ExpertPolicy
from ftagent.engine.experts.slots import SlotStore
from ftagent.engine.experts.traffic import Traffic
from ftagent.engine.stats import ExpertStats

if TYPE_CHECKING:
    from ftagent.engine.experts.conductor import StepCounters

Policy = ExpertPolicy | NativePolicy


class ExpertTables:
    """Banks, slots and policy of all MoE layers, with `slot_of` int32 [L, E] and `slot_ptr` int64 [slots].

    `slot_of` is the device's: during a decode step the conductor writes it too, and nobody here may.
    """

    def __init__(
        self,
        banks: Sequence[ExpertBank],
        store: SlotStore,
        policy: Policy,
        per_token: int,
        costs: CostModel,
        device: torch.device,
    ) -> None:
        self.banks = banks
        self.store = store
        self.policy = policy
        self.per_token = per_token
        self.costs = costs
        self.device = device
        self.layers, self.experts = len(banks), banks[0].experts
        self.intermediate = banks[0].shape.intermediate
        self.counters = ExpertCounters(self.layers)
        self.traffic = Traffic()
        self.addresses: list[int] = store.addresses().tolist()
        self.slot_ptr = (
            store.addresses().to(device) if store.count else torch.zeros(1, dtype=torch.int64).to(device)
        )
        shape = banks[0].shape
        self.biases: torch.Tensor | None = None  # T [L, E, 2I + H] on the device: gate | up | down
        if shape.biased:
            size = (self.layers, self.experts, shape.biases())
            self.biases = torch.zeros(size, dtype=store.dtype, device=device)
        self.slot_of = torch.full((self.layers, self.experts), -1, dtype=torch.int32, device=device)
        self._stale = True  # the device's table is behind the policy

    def slots_of(self, layer: int) -> list[int | None]:
        """The slot of every expert of a layer."""
        return self.policy.layer_slots(layer)

    def slot_address(self, slot: int) -> int:
        return self.addresses[slot]

    def slot_records(self, slot: int) -> torch.Tensor:
        """T [I, 3, H] on the device."""
        return self.store[slot]

    def records(self, layer: int, expert: int) -> torch.Tensor:
        """T [I, 3, H] in the host's bank."""
        return self.banks[layer].records(expert)

    def fill(self, heat: Heat | None) -> None:
        """Fill the slots at load, the hottest experts of an earlier run first, and the table of biases."""
        if self.biases is not None:
            for layer, bank in enumerate(self.banks):
                rows = [bank.weights(expert).biases for expert in range(self.experts)]
                self.biases[layer] = torch.stack([row.all for row in rows if row is not None])
        order = fill_order(self.layers, self.experts, heat)
        for layer, expert in islice(order, self.store.count):
            placement = self.policy.place(layer, expert, False)
            assert placement is not None, "as many experts as free slots"
            self.store.fetch(placement.slot, self.banks[layer], expert)
        self._stale = True

    def heat(self) -> Heat:
        """How often each expert has been used lately."""
        counts = self.policy.frequencies()
        return [counts[layer * self.experts : (layer + 1) * self.experts] for layer in range(self.layers)]

    def begin_pass(self) -> None:
        """A prefill pass is one step of the policy's clock."""
        self.policy.begin_step()
        self.counters.begin_step()

    def end_pass(self) -> None:
        self._stale = True

    def note_prefill(self, layer: int, rows: Sequence[int]) -> None:
        """Count one look-up for each expert that rows ask for, and a use for each that is resident."""
        asked = [expert for expert, count in enumerate(rows) if count]
        slots = self.slots_of(layer)
        hits = [expert for expert in asked if slots[expert] is not None]
        for expert in hits:
            self.policy.use(layer, expert)
        self.counters.record(layer, len(hits), len(asked) - len(hits), 0)

    def replace(self, layer: int, admission: Admission) -> int:
        """Give an admitted expert its slot; the caller copies the records."""
        if admission.victim is not None:
            self.policy.remove(layer, admission.victim)
        placement = self.policy.place(layer, admission.expert)
        assert placement is not None, "a slot was free"
        assert placement.evicted is None, "a free slot is taken before anybody is evicted"
        self._stale = True
        return placement.slot

    def note_step(self, step: StepCounters) -> None:
        """Count a decode step that the conductor served."""
        self.counters.record_step(step.layer_hits, step.layer_misses, step.evictions)
        self.traffic.add(step)

    def note_resident_step(self, rows: int) -> None:
        """Count a decode step in which nothing could miss: one look-up for each pair."""
        self.counters.record_step([rows * self.per_token] * self.layers, [0] * self.layers, 0)

    def distrust(self) -> None:
        """The device's table may be wrong: write it anew before the next step."""
        self._stale = True

    def stats(self) -> ExpertStats:
        return self.traffic.onto(self.counters.stats())

    def close(self) -> None:
        """Let go of slots and banks; registered memory is given back."""
        for bank in self.banks:
            bank.close()

    def publish(self) -> None:
        """Bring the device's table up to date where prefill or loading has moved experts."""
        if not self._stale:
            return
        table = [
            [-1 if slot is None else slot for slot in self.slots_of(layer)] for layer in range(self.layers)
        ]
        self.slot_of.copy_(torch.tensor(table, dtype=torch.int32))
        self._stale = False

    def check_integrity(self) -> None:
        """Raise AssertionError when the tables disagree, or a slot is not the exact copy of its bank row."""
        self.policy.check_integrity()
        for layer in range(self.layers):
            for expert, slot in enumerate(self.slots_of(layer)):
                if slot is not None:
                    same = torch.equal(self.store[slot].cpu(), self.records(layer, expert))
                    assert same, f"slot {slot} differs from expert {expert} of layer {layer}"
        if not self._stale:
            seen = self.slot_of.tolist()
            for layer in range(self.layers):
                held = [-1 if slot is None else slot for slot in self.slots_of(layer)]
                assert seen[layer] == held, f"the device's table of layer {layer} is not the policy's"
