"""Rates and counts of the engine, by hand."""

from __future__ import annotations

import pytest

from ftagent.engine.meters import Meters, Queues, StepWork, aged
from ftagent.engine.stats import Snapshot


def look(meters: Meters, now: float) -> Snapshot:
    return meters.snapshot(StepWork(now, now, 0, 0), Queues(), (), None)


def test_rates_are_tokens_per_second_of_step_time_in_the_window() -> None:
    meters = Meters()
    assert look(meters, 0.0).decode_tokens_per_s is None
    meters.step(StepWork(0.0, 1.0, decode=0, prefill=500))
    meters.step(StepWork(1.0, 1.5, decode=1, prefill=100))
    meters.step(StepWork(4.0, 4.5, decode=4, prefill=0))
    found = look(meters, 4.5)
    assert found.decode_tokens_per_s == pytest.approx(5 / 1.0)
    assert found.prefill_tokens_per_s == pytest.approx(600 / 1.5)
    later = look(meters, 6.2)  # the first step ended more than five seconds ago
    assert later.prefill_tokens_per_s == pytest.approx(100 / 0.5)
    assert look(meters, 9.0).prefill_tokens_per_s is None
    assert look(meters, 9.0).decode_tokens_per_s == pytest.approx(4 / 0.5)
    assert look(meters, 9.0).step == 3


def test_phase_says_what_the_step_carried() -> None:
    phases = [StepWork(0, 1, decode, prefill).phase for decode, prefill in ((0, 0), (1, 0), (0, 9), (1, 9))]
    assert phases == ["idle", "decode", "prefill", "mixed"]


def test_an_old_snapshot_has_no_rates() -> None:
    meters = Meters()
    meters.step(StepWork(0.0, 1.0, decode=10, prefill=0))
    found = look(meters, 1.0)
    assert aged(found, 5.9).decode_tokens_per_s == pytest.approx(10)
    assert aged(found, 6.1).decode_tokens_per_s is None
