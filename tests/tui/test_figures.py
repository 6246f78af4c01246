"""Figures as words: unknown is a dash, zero is zero, old is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.api import ModelInfo
from ftagent.engine.stats import ExpertStats, PoolStats, Snapshot
from ftagent.events import Usage
from ftagent.tui.figures import UNKNOWN, Figures, TurnFigures, details, figures, fit

MODEL = ModelInfo(id="m", family="f", context=65536, vocab=10)
NOTHING = TurnFigures()
FRESH = Snapshot(
    time=100.0,
    step=7,
    phase="decode",
    running=1,
    waiting=0,
    decode_tokens_per_s=61.84,
    prefill_tokens_per_s=0.0,
    prompt_tokens=1000,
    cached_tokens=900,
    completion_tokens=50,
    pools=(PoolStats("kv", 12, 1024, 16384, 64), PoolStats("experts", 1152, 12288, 3 * 2**20)),
    experts=ExpertStats(10, 5, 3, 1, 2, (0.5, None)),
    context_used=38112,
)


def rows(shown: Figures) -> dict[str, str]:
    return {label: value or "" for label, value in shown.rows}


def test_everything_known() -> None:
    turn = TurnFigures(0.836, Usage(1000, 7, cached_tokens=900))
    shown = figures(FRESH, MODEL, "ok", turn, now=100.5)
    assert rows(shown) == {
        "phase": "● decode",
        "decode": "61.8 tok/s",
        "prefill": "0.0 tok/s",
        "expert hits": "75.0 %",
        "expert slots": "1,152 / 12,288",
        "KV tokens": "768 / 65,536",
        "context": "38,112 / 65,536",
        "first token": "0.84 s",
        "cached": "900 / 1,000",
    }
    assert shown.stale_s is None


def test_unknown_is_a_dash_and_never_zero() -> None:
    bare = replace(
        FRESH, decode_tokens_per_s=None, prefill_tokens_per_s=None, pools=(), experts=None, running=0
    )
    for snapshot in (None, bare):
        shown = rows(figures(snapshot, MODEL, "ok", NOTHING, now=100.0))
        assert shown["context"] == f"{UNKNOWN} / 65,536"
        unknown = {"decode", "prefill", "expert hits", "expert slots", "KV tokens", "first token", "cached"}
        assert {label for label, value in shown.items() if value == UNKNOWN} >= unknown
        assert not any("0.0" in value or value.startswith("0") for value in shown.values())


def test_no_look_up_yet_is_unknown_and_all_missed_is_zero() -> None:
    none_yet = replace(FRESH, experts=ExpertStats(0, 0, 0, 0, 0, ()))
    all_missed = replace(FRESH, experts=ExpertStats(0, 9, 0, 4, 0, ()))
    assert rows(figures(none_yet, MODEL, "ok", NOTHING, 100.0))["expert hits"] == UNKNOWN
    assert rows(figures(all_missed, MODEL, "ok", NOTHING, 100.0))["expert hits"] == "0.0 %"


def test_context_falls_back_to_the_turn_that_ended() -> None:
    idle = replace(FRESH, phase="idle", running=0, context_used=0)
    shown = figures(idle, MODEL, "ok", TurnFigures(None, Usage(1000, 7)), 100.0)
    assert rows(shown)["context"] == "1,007 / 65,536"


@pytest.mark.parametrize(
    ("phase", "age", "stale"),
    [("decode", 1.9, None), ("decode", 3.4, 3), ("prefill", 61.0, 61), ("idle", 3600.0, None)],
)
def test_busy_figures_grow_stale_and_idle_ones_do_not(phase: str, age: float, stale: int | None) -> None:
    snapshot = replace(FRESH, phase=phase)  # type: ignore[arg-type]
    assert figures(snapshot, MODEL, "ok", NOTHING, 100.0 + age).stale_s == stale


def test_an_engine_that_is_gone_says_so() -> None:
    shown = figures(replace(FRESH, phase="idle"), MODEL, "failed", NOTHING, 104.0)
    assert rows(shown)["phase"] == "✕ failed"
    assert shown.stale_s == 4


@given(st.lists(st.text("ab", min_size=1, max_size=6), max_size=6), st.integers(0, 30))
def test_fit_takes_as_many_whole_parts_as_there_is_room_for(parts: list[str], width: int) -> None:
    prefixes = ["|".join(parts[:count]) for count in range(len(parts) + 1)]
    assert fit(tuple(parts), width, separator="|") == [line for line in prefixes if len(line) <= width][-1]


def test_details_name_every_pool_and_layer() -> None:
    text = {row.label: row.value for row in details(FRESH)}
    assert text["pool kv"] == "12 / 1,024 of 16.0 KiB, 16.0 MiB"
    assert text["pool experts"] == "1,152 / 12,288 of 3.0 MiB, 36.0 GiB"
    assert text["hits by layer"] == f"50.0 % {UNKNOWN}"
    assert text["prompt tokens"] == "1,000 since start, 900 from cache"
