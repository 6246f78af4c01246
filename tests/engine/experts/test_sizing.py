"""The `experts` option in its three forms, and what a layer is left of the slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.experts.sizing import layer_floor, rows_with_room, slots_from_option, slots_in_reserve
from ftagent.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "slots"),
    [
        ("96", 96),
        ("1", 1),
        ("9999", 128),
        ("0.5", 64),
        ("1.0", 128),
        ("10KiB", 10),
        ("1KB", 0),
        ("1GiB", 128),
    ],
)
def test_forms(option: str, slots: int) -> None:
    if slots == 0:
        with pytest.raises(ConfigError, match="holds no expert"):
            slots_from_option(option, 128, 1024)
    else:
        assert slots_from_option(option, 128, 1024) == slots


@pytest.mark.parametrize("option", ["", "many", "1.5", "0", "0.0", "-3", "2 XB"])
def test_refusals(option: str) -> None:
    with pytest.raises(ConfigError, match="experts: "):
        slots_from_option(option, 128, 1024)


@given(layers=st.integers(1, 60), per_token=st.integers(1, 12), extra=st.integers(0, 3000))
def test_floors_leave_a_layer_room_for_a_token(layers: int, per_token: int, extra: int) -> None:
    slots = per_token + extra
    floor = layer_floor(slots, layers, per_token)
    rows = rows_with_room(slots, layers, per_token)
    assert 0 <= floor <= per_token
    assert floor * layers <= slots
    room = slots - (layers - 1) * floor - slots_in_reserve(slots, per_token)
    assert room >= rows * per_token
    assert room < (rows + 1) * per_token
    if slots >= layers * per_token + per_token + slots_in_reserve(slots, per_token):
        assert floor == per_token
