from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.stage import HELLO, Stage, staged


@pytest.fixture(scope="package")
def shared_stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """One gateway for the whole package, with its record and its script reset."""
    shared_stage.engine.requests.clear()
    shared_stage.engine.closed_early = 0
    shared_stage.engine.health_now = "ok"
    shared_stage.play(HELLO)
    return shared_stage
