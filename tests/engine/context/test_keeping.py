"""How much may be kept: defaults, what the user asks for, and what does not fit."""

from __future__ import annotations

import random

import pytest

from ftagent.engine.context.arena import Arena
from ftagent.engine.context.keeping import GIB, Kept, kept_for_device, kept_on_cpu
from ftagent.errors import ConfigError

STATE = 66_000_000  # Qwen3.6-35B-A3B


def test_a_device_gets_an_eighth_of_what_is_left_half_of_it_for_states() -> None:
    kept = kept_for_device(None, STATE, 40 * GIB)
    assert 5 * GIB - 4096 <= kept.total(STATE) <= 5 * GIB
    assert kept.states == 40
    assert kept_for_device(None, STATE, 1000 * GIB).total(STATE) <= 8 * GIB
    assert kept_for_device(None, STATE, 1000 * GIB).states == 64
    assert kept_for_device(None, STATE, 4 * GIB).states == 4, "a few at least, where all is for them"
    assert kept_for_device(None, STATE, 0) == kept_for_device(None, STATE, -GIB) == Kept(0, 0)


def test_the_cpu_keeps_a_gib_of_states_and_as_much_of_pages() -> None:
    assert kept_on_cpu(None, STATE, 100 * GIB) == Kept(GIB // STATE, GIB)
    assert kept_on_cpu(None, GIB, 8 * GIB) == Kept(4, GIB // 2)
    assert kept_on_cpu(None, 0, -GIB) == Kept(64, 0)


@pytest.mark.parametrize("function", [kept_for_device, kept_on_cpu])
def test_what_is_asked_for_is_what_is_planned(function: object) -> None:
    assert callable(function)
    assert function("7", STATE, 40 * GIB).states == 7
    assert function("0", STATE, 40 * GIB) == Kept(0, 0)
    assert function("0", 0, 40 * GIB) == Kept(0, 0)
    assert function("2GiB", STATE, 1000).total(STATE) == pytest.approx(2 * GIB, abs=4096)
    assert function("2GiB", 0, 1000) == Kept(64, 2 * GIB)
    assert function("10MB", STATE, 40 * GIB).states == 0, "not one state"
    with pytest.raises(ConfigError, match="anchors: 'many' is not a size"):
        function("many", STATE, GIB)


def test_planned_states_always_have_their_places() -> None:
    dice = random.Random(3)
    for _ in range(300):
        state = dice.randrange(1, 100_000_000)
        kept = kept_for_device(str(dice.randrange(1, 9 * GIB)) + "B", state, 0)
        assert Arena(kept.total(state), state).places >= kept.states
