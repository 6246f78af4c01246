"""Which expert sits in which device slot: replacement on integers. Knows no tensors, bytes or clocks but
steps.

One pool of slots for all layers. The victim is the expert whose last use lies furthest back; among equals the
one used less often (a frequency that halves every HALF_LIFE steps), then the lower slot. A layer keeps
`floor` experts that other layers cannot take: without it, one pass over the layers pushes out every layer's
experts when slots are fewer than layers x experts per token. Pinned slots are in flight and never taken.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

HALF_LIFE = 64  # steps
ONE = 1 << 16  # one use, in the fixed point of the decayed frequency

Key = tuple[int, int]
"""(layer, expert)"""


class Placement(NamedTuple):
    """A slot for an expert that was missing, and who had to leave it."""

    slot: int
    evicted: Key | None


class Worth(NamedTuple):
    """Why an expert stays: the step of its last use, and the decayed frequency of its uses then."""

    step: int
    frequency: int


class ExpertPolicy:
    """Look-up table and replacement of `slots` slots for `layers` x `experts` experts."""

    def __init__(self, layers: int, experts: int, slots: int, floor: int) -> None:
        assert floor * layers <= slots, f"floor {floor} x {layers} layers does not fit {slots} slots"
        self.layers = layers
        self.experts = experts
        self.slots = slots
        self.floor = floor
        self._now = 0
        self._slot_of: list[dict[int, int]] = [{} for _ in range(layers)]
        self._owner: list[Key | None] = [None] * slots
        self._pins = [0] * slots
        self._free = list(range(slots))[::-1]
        self._last_use = [0] * slots
        self._frequency: dict[Key, tuple[int, int]] = {}  # (value at last use, step of last use)
        # Entries (last use, frequency, slot) are pushed on every use; stale ones are dropped when met.
        self._heap: list[tuple[int, int, int]] = []

    @property
    def resident(self) -> int:
        """Slots that hold an expert."""
        return self.slots - len(self._free)

    def layer_resident(self, layer: int) -> int:
        return len(self._slot_of[layer])

    def begin_step(self) -> None:
        """Advance the clock: uses before this call are older than uses after it."""
        self._now += 1

    def lookup(self, layer: int, expert: int) -> int | None:
        """The slot that holds the expert, or None. Does not count as a use."""
        return self._slot_of[layer].get(expert)

    def layer_slots(self, layer: int) -> list[int | None]:
        """The slot of every expert of a layer, or None."""
        table = self._slot_of[layer]
        return [table.get(expert) for expert in range(self.experts)]

    def slot(self, layer: int, expert: int) -> int:
        """The slot of a resident expert."""
        return self._slot_of[layer][expert]

    def use(self, layer: int, expert: int) -> None:
        """Record that a resident expert is used in this step."""
        slot = self._slot_of[layer][expert]
        self._last_use[slot] = self._now
        self._push(slot, self._count(layer, expert, ONE))

    def miss(self, layer: int, expert: int) -> None:
        """Record a use of an expert that has no slot and may get none."""
        assert expert not in self._slot_of[layer], f"expert {expert} of layer {layer} is resident"
        self._count(layer, expert, ONE)

    def place(self, layer: int, expert: int, used: bool = True) -> Placement | None:
        """Give a missing expert a slot, which makes it as recent as a use does. None when every slot is
        pinned or kept by a floor. Without `used` its frequency stays: `miss` counted the use, or there
        was none.
        """
        assert expert not in self._slot_of[layer], f"expert {expert} of layer {layer} is resident already"
        evicted: Key | None = None
        if self._free:
            slot = self._free.pop()
        else:
            victim = self._victim(layer)
            if victim is None:
                return None
            slot = victim
            evicted = self._vacate(slot)
        self._owner[slot] = (layer, expert)
        self._slot_of[layer][expert] = slot
        self._last_use[slot] = self._now
        self._push(slot, self._count(layer, expert, ONE if used else 0))
        return Placement(slot, evicted)

    def evict(self, layer: int, worth: Worth | None = None) -> Placement | None:
        """Free the slot that `place` would take for `layer`, ahead of need: the next `place` gets it.

        With `worth` only if what leaves is worth less. None when there is nothing to evict.
        """
        victim = self._victim(layer)
        if victim is None:
            return None
        owner = self._owner[victim]
        assert owner is not None
        mine = Worth(self._last_use[victim], self._frequency[owner][0])
        if worth is not None and not mine < worth:
            self._push(victim, mine.frequency)
            return None
        self._free.append(victim)
        return Placement(victim, self._vacate(victim))

    def remove(self, layer: int, expert: int) -> int:
        """Take an expert out of its slot, which must not be pinned; the slot is free then."""
        slot = self._slot_of[layer][expert]
        assert self._pins[slot] == 0, f"slot {slot} is pinned"
        self._vacate(slot)
        self._free.append(slot)
        return slot

    def pin(self, slot: int) -> None:
        self._pins[slot] += 1

    def unpin(self, slot: int) -> None:
        assert self._pins[slot] > 0, f"slot {slot} is not pinned"
        self._pins[slot] -= 1

    def frequency(self, layer: int, expert: int) -> int:
        """Uses so far in units of ONE, halved for every HALF_LIFE steps since each."""
        value, step = self._frequency.get((layer, expert), (0, self._now))
        return value >> ((self._now - step) // HALF_LIFE)

    def worth(self, layer: int, expert: int) -> Worth:
        """What the last use or miss of an expert made it worth; nothing if there was none."""
        value, step = self._frequency.get((layer, expert), (0, 0))
        return Worth(step, value)

    def frequencies(self) -> list[int]:
        """Decayed frequency of every expert, [layers * experts]: the heat to keep between runs."""
        keys = ((layer, expert) for layer in range(self.layers) for expert in range(self.experts))
        return [self.frequency(*key) for key in keys]

    def restore(self, frequencies: list[int]) -> None:
        """Set every expert's frequency, as of this step, from what `frequencies` gave."""
        assert len(frequencies) == self.layers * self.experts, f"{len(frequencies)=}"
        for place, value in enumerate(frequencies):
            self._frequency[divmod(place, self.experts)] = (value, self._now)
        self._rebuild()

    def check_integrity(self) -> None:
        """Raise AssertionError when table, owners and free list disagree."""
        for layer, table in enumerate(self._slot_of):
            for expert, slot in table.items():
                assert self._owner[slot] == (layer, expert), (
                    f"slot {slot}: {self._owner[slot]=} {layer=} {expert=}"
                )
        held = sum(len(table) for table in self._slot_of)
        free = set(self._free)
        assert len(free) == len(self._free), "a slot is free twice"
        assert held + len(free) == self.slots, f"{held=} free={len(free)} {self.slots=}"
        assert all(self._pins[slot] == 0 for slot in free), "a free slot is pinned"

    def _victim(self, layer: int) -> int | None:
        """Pop the best victim that is neither pinned nor kept for its layer; put the skipped ones back."""
        skipped: list[tuple[int, int, int]] = []
        found: int | None = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            slot = entry[2]
            if entry != self._entry(slot):
                continue
            if self._may_evict(slot, layer):
                found = slot
            else:
                skipped.append(entry)
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return found

    def _may_evict(self, slot: int, layer: int) -> bool:
        owner = self._owner[slot]
        if owner is None or self._pins[slot]:
            return False
        return owner[0] == layer or len(self._slot_of[owner[0]]) > self.floor

    def _entry(self, slot: int) -> tuple[int, int, int] | None:
        owner = self._owner[slot]
        if owner is None:
            return None
        return self._last_use[slot], self._frequency[owner][0], slot

    def _vacate(self, slot: int) -> Key:
        owner = self._owner[slot]
        assert owner is not None
        del self._slot_of[owner[0]][owner[1]]
        self._owner[slot] = None
        return owner

    def _count(self, layer: int, expert: int, uses: int) -> int:
        value = self.frequency(layer, expert) + uses
        self._frequency[layer, expert] = (value, self._now)
        return value

    def _push(self, slot: int, frequency: int) -> None:
        heapq.heappush(self._heap, (self._last_use[slot], frequency, slot))
        if len(self._heap) > 8 * self.slots + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        live = [self._entry(slot) for slot in range(self.slots)]
        self._heap = [entry for entry in live if entry is not None]
        heapq.heapify(self._heap)
