"""The mailbox's arrays are aligned, in bounds, and do not overlap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.experts.mailbox import ALIGN, FLAG, MAX_UPDATES, MailboxLayout, Offsets


@given(
    sizes=st.tuples(*[st.integers(1, 9)] * 4),
    guesses=st.integers(0, 9),
    hidden=st.integers(1, 300),
    itemsize=st.sampled_from([2, 4]),
)
def test_arrays_are_aligned_and_apart(
    sizes: tuple[int, int, int, int], guesses: int, hidden: int, itemsize: int
) -> None:
    layers, experts, rows, per_token = sizes
    layout = MailboxLayout(layers, experts, rows, per_token, guesses, hidden, itemsize)
    pairs = rows * per_token
    assert layout.pairs == pairs
    bytes_of = {
        **dict.fromkeys(("post", "planned", "done"), 4 * layers * FLAG),
        "rows": 4,
        **dict.fromkeys(("ids", "seen", "slot", "cut", "ticket"), 4 * layers * pairs),
        "guess": 4 * layers * rows * guesses,
        "updates": 4 * layers,
        **dict.fromkeys(("update_index", "update_value"), 4 * layers * MAX_UPDATES),
        "x": itemsize * rows * hidden,
        "y": 4 * pairs * hidden,
    }
    assert set(bytes_of) == set(Offsets._fields)
    end = 0
    for start, name in sorted(zip(layout.offsets, Offsets._fields, strict=True)):
        assert start % ALIGN == 0
        assert start >= end
        end = start + bytes_of[name]
        width = itemsize if name == "x" else 4
        assert width * math.prod(layout.shapes[name]) == bytes_of[name]
    assert end <= layout.nbytes < end + 2 * ALIGN


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(AssertionError, match="positive"):
        MailboxLayout(1, 0, 1, 1, 0, 1, 2)
