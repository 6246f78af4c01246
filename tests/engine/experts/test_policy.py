"""The replacement policy against a twin that looks at every slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.policy import HALF_LIFE, ONE, ExpertPolicy


class Twin:
    """Says which slots a new expert may take, by trying all of them."""

    def __init__(self, layers: int, slots: int, floor: int) -> None:
        self.floor = floor
        self.owner: list[tuple[int, int] | None] = [None] * slots
        self.used: dict[tuple[int, int], list[int]] = {}
        self.pinned: set[int] = set()
        self.now = 0

    def frequency(self, key: tuple[int, int]) -> int:
        """Uses, halved for every HALF_LIFE steps, replayed from the whole history."""
        value, last = 0, None
        for step in self.used.get(key, []):
            value = (value >> ((step - last) // HALF_LIFE) if last is not None else 0) + ONE
            last = step
        return value

    def victim(self, layer: int) -> int | None:
        counts = [sum(owner is not None and owner[0] == other for owner in self.owner) for other in range(99)]
        allowed = [
            slot
            for slot, owner in enumerate(self.owner)
            if owner is not None
            and slot not in self.pinned
            and (owner[0] == layer or counts[owner[0]] > self.floor)
        ]
        return min(allowed, key=self.rank, default=None)

    def rank(self, slot: int) -> tuple[int, int, int]:
        owner = self.owner[slot]
        assert owner is not None
        return self.used[owner][-1], self.frequency(owner), slot


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_every_decision_equals_the_brute_force_one(data: st.DataObject) -> None:
    layers, experts = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    slots = data.draw(st.integers(1, 8))
    floor = data.draw(st.integers(0, slots // layers))
    policy, twin = ExpertPolicy(layers, experts, slots, floor), Twin(layers, slots, floor)
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["need", "need", "need", "step", "long", "pin", "unpin"]))
        if action == "need":
            key = (data.draw(st.integers(0, layers - 1)), data.draw(st.integers(0, experts - 1)))
            need(policy, twin, key)
        elif action in ("step", "long"):
            for _ in range(1 if action == "step" else HALF_LIFE + 3):
                policy.begin_step()
                twin.now += 1
        else:
            slot = data.draw(st.integers(0, slots - 1))
            if action == "pin" and twin.owner[slot] is not None and slot not in twin.pinned:
                policy.pin(slot)
                twin.pinned.add(slot)
            elif action == "unpin" and slot in twin.pinned:
                policy.unpin(slot)
                twin.pinned.remove(slot)
        policy.check_integrity()


def need(policy: ExpertPolicy, twin: Twin, key: tuple[int, int]) -> None:
    """Use a resident expert, or place a missing one, and compare."""
    slot = policy.lookup(*key)
    assert slot == (twin.owner.index(key) if key in twin.owner else None)
    if slot is not None:
        policy.use(*key)
        twin.used.setdefault(key, []).append(twin.now)
        return
    free = [place for place, owner in enumerate(twin.owner) if owner is None]
    victim = twin.victim(key[0])
    placement = policy.place(*key)
    if not free and victim is None:
        assert placement is None
        return
    assert placement is not None
    if free:
        assert placement.slot in free
        assert placement.evicted is None
    else:
        assert placement.slot == victim
        assert placement.evicted == twin.owner[placement.slot]
    twin.owner[placement.slot] = key
    twin.used.setdefault(key, []).append(twin.now)
    assert policy.frequency(*key) == twin.frequency(key)


def test_a_floor_saves_every_layer_from_a_pass_over_all_layers() -> None:
    """With fewer slots than layers x experts per token, plain recency would never hit."""
    layers, slots = 4, 4
    policy = ExpertPolicy(layers, 8, slots, floor=1)
    hits = 0
    for _ in range(10):
        policy.begin_step()
        for layer in range(layers):
            for expert in (0, 1):
                hits += policy.lookup(layer, expert) is not None
                if policy.lookup(layer, expert) is None:
                    policy.place(layer, expert)
                else:
                    policy.use(layer, expert)
    assert all(policy.layer_resident(layer) == 1 for layer in range(layers))
    assert hits == 0  # two experts in turn on one slot: none survives, but no layer lost its own


def test_nothing_is_placed_when_all_is_pinned() -> None:
    policy = ExpertPolicy(1, 3, 1, 0)
    placement = policy.place(0, 0)
    assert placement is not None
    policy.pin(placement.slot)
    assert policy.place(0, 1) is None
    policy.unpin(placement.slot)
    assert policy.place(0, 1) == (placement.slot, (0, 0))


def test_the_heap_stays_small() -> None:
    policy = ExpertPolicy(1, 4, 4, 0)
    for expert in range(4):
        policy.place(0, expert)
    for step in range(2000):
        policy.begin_step()
        policy.use(0, step % 4)
    assert len(policy._heap) <= 8 * 4 + 65
    policy.begin_step()
    assert policy.lookup(0, 0) is not None


def test_damage_is_found() -> None:
    policy = ExpertPolicy(1, 2, 2, 0)
    policy.place(0, 0)
    policy._owner[policy._slot_of[0][0]] = (0, 1)
    with pytest.raises(AssertionError):
        policy.check_integrity()
