"""Plays the decode kernels' side of the mailbox in numpy, and checks every byte that they would use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftagent.engine.experts.conductor import Addresses
from ftagent.engine.experts.mailbox import MailboxLayout
from ftagent.engine.experts.native_policy import NativePolicy

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Routing(NamedTuple):
    """What one step's routers say, for live rows only."""

    ids: Ints  # [L, rows, k]
    guess: Ints  # [L, rows, G]
    x: Floats  # [L, rows, H]


class LayerUse(NamedTuple):
    """Unique experts that the device found, and that it did not."""

    hits: int
    misses: int


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Bytes on a page border, poisoned."""
    raw = np.full(size + 4096, 0xA5, dtype=np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + size]


class FakeDevice:
    """Slots, tables and the mailbox, all in host memory. `failed` is what the kernels' fail flag would be."""

    def __init__(
        self, layout: MailboxLayout, slots: int, intermediate: int, generator: np.random.Generator
    ) -> None:
        self.layout = layout
        self.records = intermediate
        shape = (layout.layers, layout.experts, intermediate, 3, layout.hidden)
        self.bank: Floats = generator.standard_normal(shape, dtype=np.float32)
        self.slots: Floats = np.full((slots, *shape[2:]), np.nan, dtype=np.float32)
        self.slot_of: Ints = np.full(shape[:2], -1, dtype=np.int32)
        self.landed: Ints = np.zeros(slots, dtype=np.int32)
        self.memory = aligned(layout.nbytes)
        self.memory[:] = 0
        self.arrays: dict[str, Numbers] = {name: self._view(name) for name in layout.offsets._fields}
        self.patience_s = 20.0
        self.failed = False
        self.between: Callable[[], None] = os.sched_yield  # what the device does between layers

    def _view(self, name: str) -> Numbers:
        shape = self.layout.shapes[name]
        start: int = getattr(self.layout.offsets, name)
        kind = np.float32 if name in ("x", "y") else np.int32
        size = 4 * int(np.prod(shape))
        return self.memory[start : start + size].view(kind).reshape(shape)

    def addresses(self) -> Addresses:
        row, slot = self.bank[0, 0].nbytes, self.slots[0].nbytes
        rows = [self.bank.ctypes.data + row * i for i in range(self.layout.layers * self.layout.experts)]
        slots = [self.slots.ctypes.data + slot * i for i in range(len(self.slots))]
        places = (self.memory.ctypes.data, rows, slots, self.slot_of.ctypes.data, self.landed.ctypes.data)
        return Addresses(*places)

    def fill(self, policy: NativePolicy, keys: list[tuple[int, int]]) -> None:
        """What loading does: experts in slots before the first step."""
        for key in keys:
            placement = policy.place(*key)
            assert placement is not None
            self.slots[placement.slot] = self.bank[key]
        self.publish(policy)

    def publish(self, policy: NativePolicy) -> None:
        """Write the table anew from the policy, and every resident expert with it."""
        for layer, expert in np.ndindex(self.slot_of.shape):
            slot = policy.lookup(layer, expert)
            self.slot_of[layer, expert] = -1 if slot is None else slot
            if slot is not None:
                self.slots[slot] = self.bank[layer, expert]

    def check_tables(self, policy: NativePolicy) -> None:
        """The device's table is the policy's, and slots are exact copies. While the conductor is settled."""
        for layer, expert in np.ndindex(self.slot_of.shape):
            slot = policy.lookup(layer, expert)
            wanted = -1 if slot is None else slot
            assert self.slot_of[layer, expert] == wanted, f"{layer=} {expert=} {wanted=} {self.slot_of=}"
            if slot is not None:
                assert np.array_equal(self.slots[slot], self.bank[layer, expert]), f"{slot=}"

    def step(self, epoch: int, routing: Routing) -> list[LayerUse]:
        uses = []
        for layer in range(self.layout.layers):
            self.between()
            uses.append(self._layer(layer, epoch, routing))
        return uses

    def _layer(self, layer: int, epoch: int, routing: Routing) -> LayerUse:
        layout = self.layout
        ids = routing.ids[layer].flatten()
        seen = np.array([self.slot_of[layer, expert] for expert in ids], dtype=np.int32)
        self._post(layer, epoch, routing, ids, seen)
        hits, misses = np.flatnonzero(seen >= 0), np.flatnonzero(seen < 0)
        out = np.zeros((len(ids), layout.hidden))
        x = np.repeat(routing.x[layer], layout.per_token, axis=0)
        for pair in hits:
            out[pair] = self._compute(layer, ids[pair], int(seen[pair]), self.records, x[pair])
        if len(misses):
            self._missing(layer, epoch, ids, misses, x, out)
        for pair in hits:  # nothing may have come into a slot while it was in use
            self._check(layer, ids[pair], int(seen[pair]), self.records)
        if not self.failed:
            wanted = [expert(self.bank[layer, e], x[pair]) for pair, e in enumerate(ids)]
            assert np.allclose(out, wanted, rtol=1e-4, atol=1e-4)
        found = set(ids[hits].tolist())
        return LayerUse(len(found), len(set(ids.tolist()) - found))

    def _post(self, layer: int, epoch: int, routing: Routing, ids: Ints, seen: Ints) -> None:
        arrays, rows = self.arrays, len(routing.x[layer])
        arrays["ids"][layer] = -1
        arrays["seen"][layer] = -1
        arrays["ids"][layer, : len(ids)] = ids
        arrays["seen"][layer, : len(ids)] = seen
        if self.layout.guesses:
            arrays["guess"][layer, :rows] = routing.guess[layer]
        arrays["x"][:] = np.nan
        arrays["x"][:rows] = routing.x[layer]
        arrays["post"][layer, 0] = epoch

    def _missing(
        self, layer: int, epoch: int, ids: Ints, misses: npt.NDArray[np.int64], x: Floats, out: Doubles
    ) -> None:
        arrays = self.arrays
        if not self._flag("planned", layer, epoch):
            return
        slot, cut, ticket = (arrays[name][layer].copy() for name in ("slot", "cut", "ticket"))
        table = self.slot_of.reshape(-1)
        count = int(arrays["updates"][layer])
        assert 0 <= count <= arrays["update_index"].shape[1]
        for index, value in zip(
            arrays["update_index"][layer, :count], arrays["update_value"][layer, :count], strict=True
        ):
            table[int(index)] = value
        for pair in misses:
            assert 0 <= cut[pair] <= self.records
            if cut[pair] == 0:
                continue
            place = int(slot[pair])
            assert 0 <= place < len(self.slots)
            if ticket[pair] and not self._landed(place, int(ticket[pair])):
                return
            out[pair] = self._compute(layer, ids[pair], place, int(cut[pair]), x[pair])
        if (cut[misses] < self.records).any():
            self._cpu_part(layer, epoch, ids, misses, cut, x, out)

    def _cpu_part(
        self,
        layer: int,
        epoch: int,
        ids: Ints,
        misses: npt.NDArray[np.int64],
        cut: Ints,
        x: Floats,
        out: Doubles,
    ) -> None:
        if not self._flag("done", layer, epoch):
            return
        for pair in misses:
            first = int(cut[pair])
            if first < self.records:
                y = self.arrays["y"][pair].astype(np.float64)
                wanted = expert(self.bank[layer, ids[pair], first:], x[pair])
                assert np.allclose(y, wanted, rtol=1e-4, atol=1e-4), f"{layer=} {pair=} {first=}"
                out[pair] += y
                self.arrays["y"][pair] = np.nan

    def _flag(self, name: str, layer: int, epoch: int) -> bool:
        """Wait for an answer of this epoch; False when it says failed."""
        flags = self.arrays[name]
        answered = self._wait(lambda: abs(int(flags[layer, 0])) == epoch)
        if flags[layer, 0] < 0:
            self.failed = True
        return answered and not self.failed

    def _landed(self, slot: int, ticket: int) -> bool:
        return self._wait(lambda: int(self.landed[slot]) - ticket >= 0)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Spin, bounded as in the kernels."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > deadline:
                self.failed = True
                return False
            os.sched_yield()
        return True

    def _compute(self, layer: int, which: int, slot: int, cut: int, x: Floats) -> Doubles:
        self._check(layer, which, slot, cut)
        return expert(self.slots[slot, :cut], x)

    def _check(self, layer: int, which: int, slot: int, cut: int) -> None:
        same = np.array_equal(self.slots[slot, :cut], self.bank[layer, which, :cut])
        assert same or self.failed, f"slot {slot} is not expert {which} of layer {layer} up to record {cut}"


def expert(records: Floats, x: Floats) -> Doubles:
    """The expert [n, 3, H] on one row [H], in float64."""
    wide, row = records.astype(np.float64), x.astype(np.float64)
    gate, up = wide[:, 0] @ row, wide[:, 1] @ row
    act = gate / (1 + np.exp(-gate)) * up
    result: Doubles = act @ wide[:, 2]
    return result


class Router:
    """Routing with the habits of real ones: popular experts, and those of the last step again."""

    def __init__(self, layout: MailboxLayout, generator: np.random.Generator) -> None:
        self.layout = layout
        self.generator = generator
        self.heat = generator.gumbel(size=(layout.layers, 1, layout.experts))
        self.last = np.zeros((layout.layers, layout.rows, layout.experts))

    def step(self, rows: int) -> Routing:
        layout, generator = self.layout, self.generator
        fresh = generator.gumbel(size=self.last.shape)
        self.last = 0.6 * self.last + 0.8 * fresh
        logits = (self.heat + self.last)[:, :rows]
        ids = np.argsort(-logits, axis=2)[:, :, : layout.per_token].astype(np.int32)
        noisy = logits + 0.5 * generator.gumbel(size=logits.shape)
        guess = np.full((layout.layers, rows, layout.guesses), -1, dtype=np.int32)
        guess[:-1] = np.argsort(-noisy, axis=2)[1:, :, : layout.guesses]
        x = generator.standard_normal((layout.layers, rows, layout.hidden), dtype=np.float32)
        return Routing(ids, guess, x)
