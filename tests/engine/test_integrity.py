"""The books are checked when the engine is idle: seldom, and never in silence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine import pace
from ftagent.engine.engine import LocalEngine
from ftagent.errors import BooksBroken, EngineStopped
from tests.engine.test_scheduler import prompt_of
from tests.support.toy import ToyRunner
from tests.support.toy_engine import ask, last, run, toy_engine, until


def lose_a_page(engine: LocalEngine) -> None:
    engine._runner.kv.allocate(1)


def lose_a_state(engine: LocalEngine) -> None:
    engine._runner.recurrent.allocate()


def miscount_anchors(engine: LocalEngine) -> None:
    engine.scheduler.prefix._count += 1


def lose_a_node(engine: LocalEngine) -> None:
    engine.scheduler.prefix._tree._root.children.clear()


BREAKAGES: dict[Callable[[LocalEngine], None], str] = {
    lose_a_page: "pages are lost",
    lose_a_state: "state slots are lost",
    miscount_anchors: "anchors are miscounted",
    lose_a_node: "pages are lost",
}


@pytest.mark.broken_books
@pytest.mark.parametrize("harm", BREAKAGES, ids=lambda harm: harm.__name__)
def test_an_idle_engine_finds_what_is_broken_and_says_so(
    harm: Callable[[LocalEngine], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pace, "CHECK_EVERY_S", 0.0)
    with toy_engine(ToyRunner(), sound=False) as engine:
        last(run(engine, ask(prompt_of(0, 30), 5)))
        engine.check_integrity()
        harm(engine)
        last(run(engine, ask(prompt_of(1, 30), 5)))
        asyncio.run(until(lambda: engine.health == "failed"))
        with pytest.raises(EngineStopped, match=BREAKAGES[harm]):
            run(engine, ask(prompt_of(2, 30), 5))
    assert BREAKAGES[harm] in caplog.text
    assert "BooksBroken" in caplog.text


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20), st.floats(0, 0.5)), max_size=60))
def test_checks_are_seldom_short_and_only_behind_steps(hours: list[tuple[bool, float, float]]) -> None:
    """Each entry: whether something runs, how long nothing does then, and how long a check would take."""
    found, now, spent, changed = pace.Pace(), 0.0, 0.0, False
    times: list[float] = []
    for runs, idle_s, check_s in hours:
        if runs:
            found.ran()
            changed = True
        due_s = found.wait_s(now)
        assert (due_s is not None) == changed
        if due_s is not None and due_s <= idle_s:
            now += due_s
            times.append(now)
            found.checked(now, now + check_s)
            now, spent, changed = now + check_s, spent + check_s, False
        now += idle_s
    least_s = pace.CHECK_EVERY_S - 1e-6
    assert all(later - earlier >= least_s for earlier, later in itertools.pairwise(times))
    assert spent <= now * pace.CHECK_PART + 0.5  # the last one is not paid for yet


def test_whoever_asks_is_told_between_two_steps() -> None:
    with toy_engine(ToyRunner()) as engine:
        engine.check_integrity()
        last(run(engine, ask(prompt_of(0, 30), 5)))
        engine.check_integrity()
        engine.close()
        engine.check_integrity()


@pytest.mark.broken_books
@pytest.mark.parametrize("closed", [False, True])
def test_whoever_asks_is_told_what_is_broken(closed: bool, caplog: pytest.LogCaptureFixture) -> None:
    with toy_engine(ToyRunner(), sound=False) as engine:
        if closed:
            engine.close()
        lose_a_state(engine)
        with pytest.raises(BooksBroken, match="state slots are lost"):
            engine.check_integrity()
