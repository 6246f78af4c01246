"""The cost model that a profile gives, against its own figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.experts.calibration import calibrate, costs_from
from ftagent.engine.experts.costs import Miss, choose_split
from ftagent.engine.machine.probe import probe
from ftagent.engine.machine.profile import (
    CpuFigures,
    Fingerprint,
    Line,
    LinkFigures,
    Profile,
    fingerprint,
    store_profile,
)
from ftagent.engine.machine.record_pool import expert_bytes, expert_sizes

SIZES = expert_sizes(2048, 768, "bfloat16")
SIZE = expert_bytes(SIZES)
MEASURED = Profile(
    Fingerprint("CPU", 16, 125, "H200", "GPU-1", "580"),
    "2026-11-30",
    14,
    148_000_000_000,
    (LinkFigures(SIZE, Line(9_500, 55_300_000_000), Line(9_500, 52_100_000_000)),),
    (
        CpuFigures(
            *("bfloat16", SIZE, "native"), Line(2_000, 129_000_000_000), Line(3_000, 110_000_000_000), 4_000
        ),
    ),
)


def test_both_sides_count_as_they_are_beside_the_other() -> None:
    costs = costs_from(MEASURED, SIZES)
    assert costs.fetch_ns(1) == pytest.approx(9_500 + SIZE / 52.1, abs=2)
    assert costs.cpu_ns(1, 1) == pytest.approx(3_000 + SIZE / 110, abs=2)
    assert costs.cpu_ns(3, 6) == pytest.approx(3_000 + 3 * SIZE / 110 + 3 * 4_000, abs=4)


def test_the_measured_machine_gives_the_processor_two_of_three_misses() -> None:
    """facts of that machine: 180 us an expert over the link, 85 on the CPU."""
    cuts = choose_split(costs_from(MEASURED, SIZES), [Miss(1)] * 3, 768, 768)
    assert cuts.count(768) == 1
    assert cuts.count(0) == 2


def test_a_row_costs_no_more_than_an_expert_with_its_first() -> None:
    slow = replace(MEASURED, cpu=(replace(MEASURED.cpu[0], row_ns=10**9),))
    assert costs_from(slow, SIZES).cpu_ns(1, 1) == pytest.approx(3_000 + SIZE / 110, abs=2)


def test_alone_counts_where_the_other_side_was_not_measured() -> None:
    link, cpu = MEASURED.link[0], MEASURED.cpu[0]
    alone = replace(MEASURED, link=(replace(link, beside=None),), cpu=(replace(cpu, beside=None),))
    costs = costs_from(alone, SIZES)
    assert costs.fetch_expert == pytest.approx(SIZE / 55.3, abs=1)
    assert costs.cpu_expert + costs.cpu_row == pytest.approx(SIZE / 129, abs=1)


@given(factor=st.floats(0.1, 10))
def test_experts_of_another_size_cost_by_their_bytes(factor: float) -> None:
    sizes = expert_sizes(2048, max(int(768 * factor), 1), "bfloat16")
    costs, base = costs_from(MEASURED, sizes), costs_from(MEASURED, SIZES)
    ratio = expert_bytes(sizes) / SIZE
    assert costs.fetch_expert == pytest.approx(base.fetch_expert * ratio, rel=0.01, abs=2)
    assert costs.cpu_expert + costs.cpu_row == pytest.approx(
        (base.cpu_expert + base.cpu_row) * ratio, rel=0.01, abs=2
    )


def test_without_a_device_a_fetch_is_a_copy_in_memory() -> None:
    mark = replace(MEASURED.fingerprint, gpu=None, uuid=None, driver=None)
    costs = costs_from(replace(MEASURED, fingerprint=mark, link=()), SIZES)
    assert costs.fetch_expert == pytest.approx(2 * SIZE / 148, abs=2)


@pytest.mark.parametrize("profile", [None, replace(MEASURED, cpu=(), link=())])
def test_what_was_not_measured_is_guessed_by_size(profile: Profile | None) -> None:
    small, large = (costs_from(profile, expert_sizes(2048, width, "float32")) for width in (100, 1000))
    assert large.fetch_expert == pytest.approx(10 * small.fetch_expert, rel=0.01)
    assert large.cpu_expert == pytest.approx(10 * small.cpu_expert, rel=0.01)
    assert small.fetch_expert > 0
    assert small.cpu_expert > 0


def test_the_stored_profile_of_this_machine_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftagent.paths.cache_dir", lambda: tmp_path)
    nothing = calibrate(SIZES, None)
    assert (nothing.profile, nothing.threads, nothing.costs) == (None, None, costs_from(None, SIZES))
    mine = replace(MEASURED, fingerprint=fingerprint(probe(), None))
    store_profile(mine)
    found = calibrate(SIZES, None)
    assert (found.profile, found.threads, found.costs) == (mine, 14, costs_from(mine, SIZES))
