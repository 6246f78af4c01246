"""The native policy takes every decision that the Python one takes, over random operations."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.native_policy import NativePolicy, make_policy
from ftagent.engine.experts.policy import HALF_LIFE, ExpertPolicy, Placement, Worth
from ftagent.engine.machine import native

ACTIONS = ("use", "use", "place", "place", "place", "miss", "step", "steps", "pin", "unpin", "evict", "worth")
RARE = ("remove", "heat")


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    return loaded


class Pair:
    """Both policies, fed with the same operations."""

    def __init__(self, library: ctypes.CDLL, data: st.DataObject) -> None:
        self.data = data
        layers, experts = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
        slots = data.draw(st.integers(1, 12))
        floor = data.draw(st.integers(0, slots // layers))
        self.python = ExpertPolicy(layers, experts, slots, floor)
        self.native = NativePolicy(library, layers, experts, slots, floor)
        self.pinned: list[int] = []

    def key(self) -> tuple[int, int]:
        layers, experts = self.python.layers, self.python.experts
        return self.data.draw(st.integers(0, layers - 1)), self.data.draw(st.integers(0, experts - 1))

    def act(self, action: str) -> None:
        if action in ("step", "steps"):
            for _ in range(1 if action == "step" else HALF_LIFE + 5):
                self.python.begin_step()
                self.native.begin_step()
        elif action == "heat":
            self.heat()
        elif action in ("evict", "worth"):
            self.evict(action == "worth")
        elif action in ("pin", "unpin"):
            self.pin(action)
        else:
            self.expert(action)

    def heat(self) -> None:
        heat = self.python.frequencies()
        assert self.native.frequencies() == heat
        changed = [value + self.data.draw(st.integers(0, 3)) for value in heat]
        self.python.restore(changed)
        self.native.restore(changed)

    def evict(self, bounded: bool) -> None:
        layer, expert = self.key()
        worth = self.python.worth(layer, expert)
        assert self.native.worth(layer, expert) == worth
        limit = worth if bounded else None
        assert self.native.evict(layer, limit) == self.python.evict(layer, limit)

    def pin(self, action: str) -> None:
        if action == "unpin" and self.pinned:
            slot = self.pinned.pop(self.data.draw(st.integers(0, len(self.pinned) - 1)))
            self.python.unpin(slot)
            self.native.unpin(slot)
        elif action == "pin":
            slot_of = self.python.lookup(*self.key())
            if slot_of is not None:
                self.pinned.append(slot_of)
                self.python.pin(slot_of)
                self.native.pin(slot_of)

    def expert(self, action: str) -> None:
        key = self.key()
        slot = self.python.lookup(*key)
        assert self.native.lookup(*key) == slot
        if slot is None and action == "place":
            used = self.data.draw(st.booleans())
            assert self.native.place(*key, used) == self.python.place(*key, used)
        elif slot is None and action == "miss":
            self.python.miss(*key)
            self.native.miss(*key)
        elif slot is not None and action == "use":
            self.python.use(*key)
            self.native.use(*key)
        elif slot is not None and action == "remove" and slot not in self.pinned:
            assert self.native.remove(*key) == self.python.remove(*key)
        assert self.native.frequency(*key) == self.python.frequency(*key)

    def compare(self) -> None:
        assert self.native.resident == self.python.resident
        for layer in range(self.python.layers):
            assert self.native.layer_resident(layer) == self.python.layer_resident(layer)
            for expert in range(self.python.experts):
                assert self.native.lookup(layer, expert) == self.python.lookup(layer, expert)
            assert self.native.layer_slots(layer) == self.python.layer_slots(layer)
        self.native.check_integrity()
        self.python.check_integrity()


@settings(deadline=None, max_examples=250)
@given(data=st.data())
def test_every_operation_has_the_same_result(library: ctypes.CDLL, data: st.DataObject) -> None:
    pair = Pair(library, data)
    for action in data.draw(st.lists(st.sampled_from((*ACTIONS, *ACTIONS, *RARE)), max_size=70)):
        pair.act(action)
        pair.compare()
    assert pair.native.frequencies() == pair.python.frequencies()


def test_wrong_calls_are_refused(library: ctypes.CDLL) -> None:
    policy = NativePolicy(library, 2, 3, 2, 1)
    with pytest.raises(IndexError):
        policy.lookup(0, 3)
    with pytest.raises(IndexError):
        policy.pin(2)
    with pytest.raises(KeyError):
        policy.use(0, 0)
    assert policy.place(0, 0) == Placement(0, None)
    with pytest.raises(AssertionError, match="resident"):
        policy.place(0, 0)
    with pytest.raises(AssertionError, match="not pinned"):
        policy.unpin(0)
    policy.pin(0)
    with pytest.raises(AssertionError, match="pinned"):
        policy.remove(0, 0)
    with pytest.raises(AssertionError, match="floor"):
        NativePolicy(library, 2, 3, 2, 2)


def test_the_python_policy_stands_in_without_a_library() -> None:
    policy = make_policy(None, 1, 2, 1, 0)
    assert isinstance(policy, ExpertPolicy)
    assert policy.evict(0, Worth(1, 1)) is None
