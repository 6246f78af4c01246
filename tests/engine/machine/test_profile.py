"""A profile survives its file, and nothing else passes for one."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.machine.gpus import Gpu
from ftagent.engine.machine.probe import Cpu, Machine, Memory
from ftagent.engine.machine.profile import (
    CpuFigures,
    Dtype,
    Fingerprint,
    Line,
    LinkFigures,
    Profile,
    fingerprint,
    load_profile,
    merged,
    profile_file,
    store_profile,
)
from ftagent.errors import ConfigError

MARK = Fingerprint("Some CPU", 8, 64, "Card", "GPU-1", "580.1")
CARD = Gpu("Card", "GPU-1", driver="580.1", memory_free=5)
MACHINE = Machine(
    Cpu("Some CPU", 8, 8, 8, None, ("avx2",), None),
    Memory(64 * 2**30 - 12345, None, 2**30, None, "madvise"),
    None,
    (CARD,),
    None,
)

LINES = st.builds(Line, st.integers(0, 10**9), st.integers(1, 10**12))
DTYPES: st.SearchStrategy[Dtype] = st.sampled_from(["bfloat16", "float32"])
CPU = st.builds(
    CpuFigures,
    DTYPES,
    st.integers(1, 10**9),
    st.sampled_from(["native", "torch"]),
    LINES,
    st.none() | LINES,
    st.integers(0, 10**6),
)
LINK = st.builds(LinkFigures, st.integers(1, 10**9), LINES, st.none() | LINES)
PROFILES = st.builds(
    Profile,
    st.just(MARK),
    st.just("2026-12-01T00:00:00+00:00"),
    st.integers(1, 64),
    st.none() | st.integers(1, 10**12),
    st.lists(LINK, max_size=4, unique_by=lambda each: each.piece_bytes).map(tuple),
    st.lists(CPU, max_size=4, unique_by=lambda each: (each.dtype, each.piece_bytes)).map(tuple),
)
EXAMPLE = Profile(
    MARK,
    "2026-12-01T00:00:00+00:00",
    6,
    10**11,
    (LinkFigures(1000, Line(9500, 55 * 10**9)),),
    (CpuFigures("bfloat16", 1000, "native", Line(5000, 10**11)),),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ftagent.paths.cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@given(profile=PROFILES)
def test_what_is_stored_is_found_again(profile: Profile) -> None:
    file = store_profile(profile)
    assert load_profile(MARK) == profile
    assert json.loads(file.read_bytes())["schema"] == 1
    assert list(file.parent.iterdir()) == [file]  # nothing half-written beside it


def test_no_file_is_no_profile_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert load_profile(MARK) is None
    assert caplog.records == []


def damage(text: str) -> dict[str, str]:
    values = json.loads(text)
    return {
        "empty": "",
        "cut": text[: len(text) // 2],
        "not an object": "[]",
        "another schema": json.dumps({**values, "schema": 2}),
        "a rate of zero": text.replace(str(55 * 10**9), "0"),
        "a missing part": json.dumps({key: value for key, value in values.items() if key != "threads"}),
        "two figures for one shape": json.dumps({**values, "link": values["link"] * 2}),
    }


@pytest.mark.parametrize("kind", list(damage(json.dumps({"link": []}))))
def test_a_damaged_file_is_said_once_and_is_no_profile(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    file = store_profile(EXAMPLE)
    file.write_text(damage(file.read_text(encoding="utf-8"))[kind], encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_profile(MARK) is None
    assert len(caplog.records) == 1
    assert str(file) in caplog.text
    assert "bench bandwidth" in caplog.text
    store_profile(EXAMPLE)
    assert load_profile(MARK) == EXAMPLE


def test_a_foreign_file_is_said_once_and_is_no_profile(caplog: pytest.LogCaptureFixture) -> None:
    other = replace(MARK, uuid="GPU-2")
    profile_file(other).parent.mkdir(parents=True)
    profile_file(other).write_bytes(store_profile(EXAMPLE).read_bytes())
    assert load_profile(other) is None
    assert len(caplog.records) == 1
    assert "another machine" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "X"},
        {"uuid": "X"},
        {"driver": "X"},
        {"cpu": "X"},
        {"cores": 7},
        {"memory_gib": 63},
        {"gpu": None},
    ],
)
def test_every_part_of_the_fingerprint_counts(change: dict[str, object]) -> None:
    other = replace(MARK, **change)  # type: ignore[arg-type]
    assert profile_file(other) != profile_file(MARK)


def test_the_fingerprint_is_of_what_does_not_change() -> None:
    assert fingerprint(MACHINE, CARD) == MARK
    busy = replace(MACHINE, memory=replace(MACHINE.memory, available=1, total=64 * 2**30 - 99999))
    assert fingerprint(busy, replace(CARD, memory_free=1)) == MARK
    assert fingerprint(MACHINE, None) == replace(MARK, gpu=None, uuid=None, driver=None)
    limited = replace(MACHINE, memory=replace(MACHINE.memory, limit=16 * 2**30))
    assert fingerprint(limited, CARD).memory_gib == 16


def test_a_full_disk_leaves_the_old_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    file = store_profile(EXAMPLE)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            store_profile(replace(EXAMPLE, threads=1))
    assert load_profile(MARK) == EXAMPLE
    assert list(file.parent.iterdir()) == [file]


@given(old=PROFILES, new=PROFILES)
def test_new_figures_replace_those_of_their_shape_alone(old: Profile, new: Profile) -> None:
    both = merged(old, new)
    both.check_integrity()
    if old.threads != new.threads:
        assert both == new
        return
    for each in new.link:
        assert each in both.link
    assert {each.piece_bytes for each in both.link} == {each.piece_bytes for each in old.link + new.link}
    assert set(new.cpu) <= set(both.cpu) <= set(new.cpu + old.cpu)


def test_merging_keeps_machines_apart() -> None:
    foreign = replace(EXAMPLE, fingerprint=replace(MARK, cores=1))
    assert merged(foreign, EXAMPLE) == EXAMPLE
    assert merged(None, EXAMPLE) == EXAMPLE


def test_the_nearest_size_of_the_right_dtype_is_found() -> None:
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float32")
    figures = [CpuFigures(dtype, size, "native", Line(0, 1)) for dtype in dtypes for size in (10, 1000)]
    profile = replace(
        EXAMPLE, cpu=tuple(figures), link=(LinkFigures(10, Line(0, 1)), LinkFigures(1000, Line(0, 1)))
    )
    near = profile.cpu_for("float32", 120)
    assert near is not None
    assert (near.dtype, near.piece_bytes) == ("float32", 1000)
    link = profile.link_for(90)
    assert link is not None
    assert link.piece_bytes == 10
    assert replace(profile, cpu=(), link=()).link_for(5) is None
    assert replace(profile, cpu=()).cpu_for("float32", 5) is None


def test_a_line_is_fixed_time_and_rate() -> None:
    assert Line(9_500, 55_300_000_000).ns(9_437_184) == 9_500 + 170_654
    assert Line(7, 1_000_000_000).marginal_ns(123) == 123


def test_a_model_without_experts_finds_figures_too() -> None:
    profile = replace(EXAMPLE, link=(LinkFigures(10, Line(0, 1)),))
    assert profile.link_for(0) == LinkFigures(10, Line(0, 1))


def test_a_file_from_before_the_device_was_read_still_counts() -> None:
    store_profile(replace(EXAMPLE, device_bytes_per_s=7))
    file = profile_file(EXAMPLE.fingerprint)
    kept = json.loads(file.read_text())
    assert kept.pop("device_bytes_per_s") == 7
    file.write_text(json.dumps(kept))
    assert load_profile(EXAMPLE.fingerprint) == replace(EXAMPLE, device_bytes_per_s=None)
