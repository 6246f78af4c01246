"""Ranges of kept memory against a map of its bytes in units, and the promise that states find room."""

from __future__ import annotations

import random

import pytest

from ftagent.engine.context.arena import ALIGN, Arena


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_apart_and_the_lowest_that_fit(seed: int) -> None:
    dice = random.Random(seed)
    units, place = dice.randrange(8, 60), dice.randrange(1, 6)
    arena = Arena(units * ALIGN + dice.randrange(ALIGN), place * ALIGN - dice.randrange(ALIGN))
    held = [False] * units  # the brute-force twin
    taken: dict[int, int] = {}
    for _ in range(300):
        if taken and dice.random() < 0.45:
            begin = dice.choice(list(taken))
            arena.give(begin * ALIGN)
            size = taken.pop(begin)
            held[begin : begin + size] = [False] * size
            continue
        if dice.random() < 0.5:
            size = place
            fitting = [units - n * place for n in range(1, units // place + 1)]
            found = arena.take_place()
        else:
            size = dice.randrange(1, 8)
            fitting = list(range(units - size + 1))
            found = arena.take(size * ALIGN - dice.randrange(ALIGN))
        free = [begin for begin in fitting if begin >= 0 and not any(held[begin : begin + size])]
        assert found == (free[0] * ALIGN if free else None)
        if free:
            taken[free[0]] = size
            held[free[0] : free[0] + size] = [True] * size
        arena.check_integrity()
        assert arena.used == sum(held) * ALIGN


def test_states_find_room_wherever_other_ranges_have_been() -> None:
    """As many states as the memory has places fit once all else is gone, in whatever order it went."""
    for seed in range(50):
        dice = random.Random(seed)
        arena = Arena(20 * ALIGN, 3 * ALIGN)
        states: list[int] = []
        others: list[int] = []
        for _ in range(60):
            state = arena.take_place() if dice.random() < 0.4 and len(states) < arena.places else None
            if state is not None:
                states.append(state)
            elif states and dice.random() < 0.4:
                arena.give(states.pop(dice.randrange(len(states))))
            else:
                other = arena.take(dice.randrange(1, 5) * ALIGN)
                others += [] if other is None else [other]
        for begin in others:
            arena.give(begin)
        while len(states) < arena.places:
            found = arena.take_place()
            assert found is not None
            states.append(found)
        arena.check_integrity()


def test_an_empty_memory_has_no_room() -> None:
    arena = Arena(ALIGN - 1, 10)
    assert arena.places == 0
    assert arena.take(1) is None
    assert arena.take_place() is None
    with pytest.raises(AssertionError, match="nothing is taken at 0"):
        arena.give(0)
