"""Which places of a prompt get an anchor."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import Boundary
from ftagent.engine.context.marks import NEAR, choose_marks, stable_head, with_fork


@settings(deadline=None)
@given(st.lists(st.integers(1, 3000), max_size=30), st.integers(1, 3000))
def test_marks_are_in_order_and_end_with_the_prompt(positions: list[int], tokens: int) -> None:
    boundaries = [Boundary("user", position, 0) for position in sorted(positions)]
    marks = choose_marks(boundaries, tokens)
    places = [0, *marks]
    assert tokens - places[-1] <= NEAR
    assert all(after - before >= NEAR for before, after in itertools.pairwise(places))
    assert set(marks) <= {*positions, tokens - 1}


def test_the_end_of_what_was_said_is_a_mark() -> None:
    """Where the reply's own markup begins: what is said next comes there when a reply is dropped."""
    edges = [Boundary("user", 100, 1), Boundary("thinking_start", 995, 2)]
    assert choose_marks(edges, 1000) == (100, 995)
    assert choose_marks(edges, 1000, 990) == (100, 990)
    assert choose_marks([Boundary("user", 100, 1)], 1000, 1000) == (100, 999)


def test_marks_hold_system_tools_last_user_and_last_edges() -> None:
    edges = [("system_end", 100), ("tools_end", 900), ("user", 950), ("assistant_end", 1000)]
    edges += [("user", 1003), ("thinking_start", 1030), ("tool_call", 1100), ("tool_result", 1200)]
    edges += [("tool_call", 1300), ("tool_result", 1400), ("thinking_start", 1496)]
    boundaries = [Boundary(kind, position, 0) for kind, position in edges]  # type: ignore[arg-type]
    assert choose_marks(boundaries, 1500) == (100, 900, 950, 1003, 1030, 1300, 1400, 1496)


def test_each_thinking_block_behind_the_last_user_message_has_a_mark() -> None:
    boundaries = [Boundary("user", 100, 1), Boundary("user", 200, 3)]
    starts = [150, 300, 400, 500, 600]
    boundaries += [Boundary("thinking_start", start, 4) for start in starts]
    boundaries += [Boundary("tool_call", start + 50, 4) for start in starts]
    assert set(starts[1:]) <= set(choose_marks(sorted(boundaries, key=lambda b: b.position), 700))


def test_the_next_turn_leaves_a_prompt_as_it_is_up_to_its_thinking() -> None:
    edges = [Boundary("user", 100, 1), Boundary("thinking_start", 150, 2), Boundary("user", 200, 3)]
    assert stable_head(edges, 260) == 260
    assert stable_head([*edges, Boundary("thinking_start", 250, 4)], 260) == 250
    assert stable_head((), 77) == 77


def test_a_fork_is_marked_where_a_step_is_worth_it() -> None:
    assert with_fork((100, 200), 20, 150) == (100, 150, 200)
    assert with_fork((100, 200), 20, 100 + NEAR - 1) == (100, 200)
    assert with_fork((100, 200), 140, 150) == (100, 200)
    assert with_fork((), 0, NEAR) == (NEAR,)
    assert with_fork((), 0, 0) == ()
