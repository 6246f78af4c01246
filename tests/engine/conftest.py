"""Whatever a test of the engine builds has books that add up when the test is over."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ftagent.engine.engine import LocalEngine
from ftagent.engine.scheduler import Scheduler


@pytest.fixture(autouse=True)
def books_add_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks every engine and every scheduler without one, unless the test is marked `broken_books`."""
    engines: list[weakref.ref[LocalEngine]] = []
    schedulers: list[weakref.ref[Scheduler]] = []

    def noted(kind: type[Any], seen: list[Any]) -> None:
        build = kind.__init__

        def note(self: Any, *arguments: Any, **options: Any) -> None:
            build(self, *arguments, **options)
            seen.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", note)

    noted(LocalEngine, engines)
    noted(Scheduler, schedulers)
    yield
    if request.node.get_closest_marker("broken_books"):
        return
    found = [engine for reference in engines if (engine := reference()) is not None]
    for engine in found:
        engine.check_integrity()
        if engine._runner.experts is not None and engine.health == "ok":
            engine._runner.experts.check_integrity()
    owned = {id(engine.scheduler) for engine in found}
    for reference in schedulers:
        scheduler = reference()
        if scheduler is not None and id(scheduler) not in owned:
            scheduler.check_integrity()
