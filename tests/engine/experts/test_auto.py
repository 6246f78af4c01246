"""Mode auto on simulated machines: what it costs beside always running the best mode, and that it settles."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ftagent.engine.experts.auto import LONGEST, PROBE_EVERY, AutoMode, Change, Forecast
from ftagent.engine.options import Mode

FIXED = 2_000_000
Drawn = Callable[[int, Mode], float]


@dataclass
class Simulation:
    """A machine whose step takes `fixed + misses * per_miss[mode]`, times noise; `total` adds up per mode.

    `per_miss` may change at a step. Every mode sees the same misses and the same noise, so that the totals
    differ by what the modes cost. `hiccups` is the share of steps that take five times as long.
    """

    per_miss: Callable[[int], dict[Mode, float]]
    noise: float = 0.05
    hiccups: float = 0.0
    misses: Callable[[random.Random, int], int] = lambda rng, step: rng.randint(60, 120)
    rows: Callable[[int], int] = lambda step: 1
    fixed: int = FIXED
    seed: int = 0
    total: float = 0.0
    alone: dict[Mode, float] = field(default_factory=dict)
    ran: list[Mode] = field(default_factory=list)

    def run(self, auto: AutoMode, steps: int) -> list[Change]:
        rng = random.Random(self.seed)
        changes = []
        drift = 1.0
        for step in range(steps):
            missed = self.misses(rng, step)
            drift = min(max(drift * math.exp(rng.gauss(0, 0.002)), 0.75), 1.33)
            luck = math.exp(rng.gauss(0, self.noise)) * (5 if rng.random() < self.hiccups else 1) * drift
            times = {mode: (self.fixed + missed * each) * luck for mode, each in self.per_miss(step).items()}
            mode = auto.next_mode
            self.ran.append(mode)
            self.total += times[mode]
            for each, took in times.items():
                self.alone[each] = self.alone.get(each, 0.0) + took
            change = auto.record(mode, int(times[mode]), missed, self.rows(step))
            auto.check_integrity()
            if change is not None:
                changes.append(change)
        return changes

    def regret(self) -> float:
        """Time over that of the best mode alone, as a share of it."""
        return self.total / min(self.alone.values()) - 1


def constant(**per_miss: float) -> Callable[[int], dict[Mode, float]]:
    named: dict[Mode, float] = {"hybrid": per_miss["hybrid"], "offload": per_miss["offload"]}
    if "cpu" in per_miss:
        named["cpu"] = per_miss["cpu"]
    return lambda step: named


def step_ratio(ratio: float, per_miss: float = 90_000, misses: int = 90) -> float:
    """Per-miss time at which a whole step with `misses` misses takes `ratio` times one at `per_miss`."""
    return (ratio * (FIXED + misses * per_miss) - FIXED) / misses


OFFLOAD_ONLY: tuple[Mode, ...] = ("offload",)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.97, 1.0, 1.02, 1.1, 1.5, 2.5, 5, 12])
def test_never_two_percent_slower_than_offload_over_a_thousand_steps(
    ratio: float, noise: float, seed: int
) -> None:
    """Whatever hybrid is worth, from the very first step on."""
    machine = Simulation(constant(hybrid=step_ratio(ratio), offload=90_000), noise, seed=seed)
    machine.run(AutoMode(rivals=OFFLOAD_ONLY), 1000)
    assert machine.total <= 1.02 * machine.alone["offload"]
    assert machine.regret() <= 0.03


@pytest.mark.parametrize("seed", range(6))
def test_a_hybrid_twenty_times_slower_costs_one_step(seed: int) -> None:
    """One step is what it takes to see it: 19 steps' time, 1.9 percent of a thousand."""
    machine = Simulation(constant(hybrid=step_ratio(20), offload=90_000), seed=seed)
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    changes = machine.run(auto, 3000)
    assert machine.ran[:1000].count("hybrid") == 1
    assert [change.mode for change in changes] == ["offload"]
    assert changes[0].step <= 2
    assert machine.regret() <= 0.02


@pytest.mark.parametrize("hiccups", [0.0, 0.01])
@pytest.mark.parametrize("noise", [0.02, 0.08, 0.2])
def test_equal_modes_never_make_it_oscillate(noise: float, hiccups: float) -> None:
    for seed in range(3):
        machine = Simulation(constant(hybrid=90_000, offload=90_000), noise, hiccups, seed=seed)
        changes = machine.run(AutoMode(rivals=OFFLOAD_ONLY), 12_000)
        assert len(changes) <= 1, changes


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("hybrid", "best"), [(0.9, "hybrid"), (1.11, "offload")])
def test_ten_percent_are_found_and_kept(hybrid: float, best: Mode, seed: int) -> None:
    machine = Simulation(constant(hybrid=step_ratio(hybrid), offload=90_000), 0.05, 0.005, seed=seed)
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    changes = machine.run(auto, 6000)
    assert auto.mode == best
    assert len(changes) <= 1
    assert machine.ran[1000:].count(best) > 0.95 * 5000
    assert machine.regret() < 0.02


@pytest.mark.parametrize("seed", range(5))
def test_it_is_left_within_a_few_steps_when_the_machine_changes(seed: int) -> None:
    """At step 700 another program takes the cores: hybrid takes four times as long, until 2,000."""

    def per_miss(step: int) -> dict[Mode, float]:
        busy = 700 <= step < 2000
        return {"hybrid": step_ratio(4 if busy else 0.6), "offload": 90_000}

    machine = Simulation(per_miss, 0.05, seed=seed)
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    changes = machine.run(auto, 6000)
    assert [change.mode for change in changes] == ["offload", "hybrid"]
    assert 700 < changes[0].step <= 712
    assert 2000 < changes[1].step <= 2000 + LONGEST
    assert machine.ran[712:2000].count("hybrid") <= 12


def test_a_machine_that_slows_as_a_whole_does_not_change_the_mode() -> None:
    def per_miss(step: int) -> dict[Mode, float]:
        slow = 3 if step >= 1000 else 1
        return {"hybrid": slow * 50_000.0, "offload": slow * 90_000.0}

    auto = AutoMode(rivals=OFFLOAD_ONLY)
    assert Simulation(per_miss, 0.05).run(auto, 3000) == []
    assert auto.mode == "hybrid"


@pytest.mark.parametrize("seed", range(4))
def test_misses_that_wander_do_not_pass_for_speed(seed: int) -> None:
    """The number of misses doubles and halves within hundreds of steps; the modes are equal at any."""

    def misses(rng: random.Random, step: int) -> int:
        return max(1, int((100 + 60 * math.sin(step / 37)) * rng.uniform(0.8, 1.2)))

    machine = Simulation(constant(hybrid=90_000, offload=90_000), 0.03, misses=misses, seed=seed)
    assert machine.run(AutoMode(rivals=OFFLOAD_ONLY), 8000) == []


def test_without_misses_nothing_is_probed() -> None:
    machine = Simulation(constant(hybrid=90_000, offload=1), misses=lambda rng, step: 0)
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    machine.run(auto, 2000)
    assert set(machine.ran) == {"hybrid"}


def test_with_every_expert_resident_the_mode_is_fused() -> None:
    auto = AutoMode(resident=True)
    for step in range(1000):
        assert auto.next_mode == "fused"
        assert auto.record("fused", 10**6, step % 3, 1) is None


@pytest.mark.parametrize(
    ("forecast", "looked_at"),
    [(None, False), (Forecast(180_000, 85_000), False), (Forecast(3_000_000, 235_000), True)],
)
def test_cpu_is_looked_at_only_where_the_cost_model_gives_it_a_chance(
    forecast: Forecast | None, looked_at: bool
) -> None:
    machine = Simulation(constant(hybrid=90_000, offload=120_000, cpu=60_000), 0.02)
    auto = AutoMode(forecast=forecast)
    machine.run(auto, 2000)
    assert ("cpu" in machine.ran) == looked_at
    assert auto.mode == ("cpu" if looked_at else "hybrid")


def test_bursts_are_short_and_rare() -> None:
    machine = Simulation(constant(hybrid=80_000, offload=90_000), 0.02)
    machine.run(AutoMode(rivals=OFFLOAD_ONLY), 10_000)
    assert machine.ran.count("offload") <= 12 * (10_000 // PROBE_EVERY + 2)
    longest = max(len(run) for run in "".join(mode[0] for mode in machine.ran).split("h"))
    assert longest <= 12


def test_batches_of_other_sizes_are_not_compared() -> None:
    """Eight rows take twice as long as one, and the batch changes every few hundred steps."""

    def rows(step: int) -> int:
        return 8 if step // 300 % 2 else 1

    def misses(rng: random.Random, step: int) -> int:
        return 90 * (2 if rows(step) == 8 else 1)

    machine = Simulation(constant(hybrid=90_000, offload=90_000), 0.03, misses=misses, rows=rows, fixed=0)
    assert machine.run(AutoMode(rivals=OFFLOAD_ONLY), 6000) == []


def test_a_change_says_why_with_its_numbers() -> None:
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    assert "nothing is measured yet" in auto.reason
    assert auto.record("hybrid", 20_000_000, 90, 1) is None
    assert auto.next_mode == "offload"
    change = auto.record("offload", 5_000_000, 90, 1)
    assert change is not None
    assert (change.before, change.mode, change.step) == ("hybrid", "offload", 2)
    assert change.reason == (
        "a step with 90 misses takes 5,000 us in offload and 20,000 us in hybrid, medians of 1 and 1 steps"
    )
    assert auto.reason == change.reason
    assert list(auto.changes) == [change]


def test_a_mode_that_fails_is_left_for_good() -> None:
    auto = AutoMode(forecast=Forecast(3_000_000, 10_000))
    change = auto.exclude("hybrid", "a CPU worker hangs")
    assert change is not None
    assert change.mode == "offload"
    assert "a CPU worker hangs" in change.reason
    auto.exclude("cpu", "a CPU worker hangs")
    machine = Simulation(constant(hybrid=1, offload=90_000, cpu=1), 0.02)
    machine.run(auto, 1500)
    assert set(machine.ran) == {"offload"}
    with pytest.raises(ValueError, match="no mode is left"):
        auto.exclude("offload", "the link is gone")


def test_a_step_that_ran_in_another_mode_than_asked_does_not_count() -> None:
    auto = AutoMode(rivals=OFFLOAD_ONLY)
    auto.record("hybrid", 1000, 5, 1)
    assert auto.next_mode == "offload"
    for _ in range(200):
        assert auto.record("hybrid", 1000, 5, 1) is None
    assert auto.mode == "hybrid"
