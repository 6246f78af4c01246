"""What a device's experts say of their mode when a side is lost; the conductor and the tables only play."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest

from ftagent.engine.device.experts import DeviceExperts
from ftagent.engine.experts.auto import AutoMode
from ftagent.engine.options import Mode


class Stats(NamedTuple):
    mode: str | None = None
    mode_reason: str | None = None


class Tables:
    """Nothing resident, nothing counted."""

    distrusted = 0

    def publish(self) -> None: ...

    def note_step(self, step: object) -> None: ...

    def distrust(self) -> None:
        self.distrusted += 1

    def stats(self) -> Stats:
        return Stats()


class Served(NamedTuple):
    misses: int = 3


class Playing:
    """A conductor whose sides can be lost; `failed` is what the next step says."""

    def __init__(self) -> None:
        self.wanted: Mode = "hybrid"
        self.lost: dict[Mode, Mode] = {}  # mode to the one that is left for it
        self.failed: str | None = None
        self.mode: Mode = "hybrid"

    def set_mode(self, mode: Mode) -> None:
        self.wanted = mode

    def begin_step(self, epoch: int, rows: int) -> None:
        self.mode = self.lost.get(self.wanted, self.wanted)

    def end_step(self) -> Served:
        self.mode = self.lost.get(self.mode, self.mode)
        return Served()


class Prompts:
    host_failed: str | None = None


CPU_LOST: dict[Mode, Mode] = {"hybrid": "offload", "cpu": "offload"}
LINK_LOST: dict[Mode, Mode] = {"hybrid": "cpu", "offload": "cpu"}


class Play:
    def __init__(self, asked: Mode, rivals: bool) -> None:
        self.conductor, self.tables, self.prompts = Playing(), Tables(), Prompts()
        self.auto = AutoMode() if rivals else None
        self.conductor.set_mode(asked)
        parts = cast("tuple[Any, Any, Any]", (self.tables, self.prompts, self.conductor))
        self.experts = DeviceExperts(*parts, self.auto, asked, 0)
        self.epoch = 0

    def step(self) -> str | None:
        self.epoch += 1
        self.experts.begin_decode(self.epoch, 1)
        self.experts.await_decode()
        reason = self.experts.end_decode(1, 1_000_000)
        self.conductor.failed = None
        return reason

    @property
    def said(self) -> Stats:
        return cast("Stats", self.experts.stats())


@pytest.mark.parametrize("during", ["hybrid", "cpu", "offload"])
@pytest.mark.parametrize(("lost", "left"), [(CPU_LOST, "offload"), (LINK_LOST, "cpu")])
def test_auto_stays_in_the_mode_that_is_left(during: Mode, lost: dict[Mode, Mode], left: Mode) -> None:
    """Whichever mode was being looked at when the side was lost."""
    play = Play("hybrid", rivals=True)
    assert play.auto is not None
    assert play.step() is None
    play.experts.set_mode(during)  # as when a challenger is measured
    play.conductor.mode = during
    play.experts._conductor.begin_step(99, 1)  # type: ignore[union-attr]
    play.conductor.lost = lost
    play.conductor.failed = "layer 1: it broke"
    play.experts.await_decode()
    assert play.experts.end_decode(1, 1_000_000) == "layer 1: it broke"
    play.conductor.failed = None
    assert play.tables.distrusted == 1
    for _ in range(3):
        assert play.step() is None
        assert play.said.mode == left
        assert play.conductor.mode == left
    assert play.said.mode_reason is not None
    assert "cannot be run" in play.said.mode_reason
    play.auto.check_integrity()


def test_a_mode_that_was_asked_for_gives_its_reason_too() -> None:
    play = Play("hybrid", rivals=False)
    play.conductor.lost, play.conductor.failed = CPU_LOST, "layer 0: CPU worker 3 hangs"
    assert play.step() == "layer 0: CPU worker 3 hangs"
    assert play.said == Stats("offload", "hybrid cannot be run: layer 0: CPU worker 3 hangs")


def test_threads_that_failed_in_a_prompt_are_noticed_by_the_next_step() -> None:
    play = Play("hybrid", rivals=True)
    assert play.step() is None
    play.conductor.lost, play.prompts.host_failed = CPU_LOST, "expert worker 0 of 2 does not answer"
    assert play.step() is None, "that step is sound"
    assert play.said == Stats("offload", "hybrid cannot be run: expert worker 0 of 2 does not answer")
    assert play.step() is None
    assert play.experts.mode == "offload"
