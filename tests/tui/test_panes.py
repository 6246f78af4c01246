"""The run screen's figures: unknown is a dash, a lost engine is said, nothing is wider than its column."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.engine.api import ModelInfo
from ftagent.engine.stats import Divergence, ExpertStats, PoolStats, RequestStats, Snapshot
from ftagent.errors import EngineError
from ftagent.gateway.client import Report
from ftagent.tui.feed import LOST_S, SAMPLES, History, LocalFeed, RemoteFeed, Tick, Trace
from ftagent.tui.figures import UNKNOWN, Figures
from ftagent.tui.panes import bar, run_figures, sparkline
from ftagent.tui.widgets import line_of
from tests.support.scripted import ScriptedEngine

MODEL = ModelInfo(id="m", family="f", context=98304, vocab=10)
REQUEST = RequestStats("r", 38112, 37120, 61, 0.1, 0.84, 3.0, "stop")
BUSY = Snapshot(
    time=100.0,
    step=7,
    phase="decode",
    running=1,
    waiting=2,
    decode_tokens_per_s=61.84,
    prefill_tokens_per_s=1234.5,
    prompt_tokens=40000,
    cached_tokens=38000,
    completion_tokens=50,
    pools=(PoolStats("kv", 12, 1024, 16384, 64), PoolStats("experts", 1152, 12288, 3 * 2**20)),
    experts=ExpertStats(
        10, 5, 3, 1, 2, (0.5, None, 1.0), bytes_link=6 * 2**30, bytes_cpu=2 * 2**30, link_ns=10**9,
        cpu_ns=10**9, q=0.61, q_optimum=0.6, mode="hybrid",
    ),
    recent_requests=(REQUEST,),
    context_used=38112,
    divergence=Divergence(7, 41, "system[0]", 37000, True),
)  # fmt: skip


def shown(tick: Tick, width: int = 32) -> list[str]:
    return [line_of(row, width) for row in run_figures(tick, Trace((61.0, None, 30.5), (0.5,)), width).rows]


def test_a_busy_engine() -> None:
    lines = "\n".join(shown(Tick(MODEL, "ok", BUSY, 100.1)))
    for words in (
        "Now ───", "● decode", "61.8 tok/s", "38,112 / 98,304", "0.84 s", "1 + 2 waiting", "95.0 %",
        "37,120 kept, 992 new", "turn 7 parts at 41", "in system[0], 37,000 lost", "75.0 %", "1,152 / 12,288",
        "hybrid", "0.61, best 0.60", "6.0 GiB/s", "2.0 GiB/s", "36.0 GiB", "61 out",
    ):  # fmt: skip
        assert words in lines
    assert "█" * 24 + "▒" * 8 in lines  # three quarters of the bytes came over the link


def test_unknown_is_a_dash_and_its_sections_are_left_out() -> None:
    bare = replace(
        BUSY,
        decode_tokens_per_s=None,
        pools=(),
        experts=None,
        recent_requests=(),
        prompt_tokens=0,
        divergence=None,
    )
    lines = shown(Tick(MODEL, "ok", bare, 100.1))
    text = "\n".join(lines)
    assert f"decode{UNKNOWN:>26}" in lines
    assert f"reused{UNKNOWN:>26}" in lines
    assert not any(word in text for word in ("Experts", "Memory", "Requests", "link", "kept"))


def test_an_engine_that_was_never_heard_of() -> None:
    figures = run_figures(Tick(None, "loading", None, 1.0, 3.2, "not reachable"), Trace(), 30)
    assert figures == Figures((("not reachable", None),), ("not reachable",), 3)  # type: ignore[arg-type]


def test_lost_figures_are_grey_with_their_age() -> None:
    idle = replace(BUSY, phase="idle", running=0)
    assert run_figures(Tick(MODEL, "ok", idle, 160.0), Trace(), 30).stale_s is None
    lost = run_figures(Tick(MODEL, "ok", idle, 160.0, lost_s=4.6), Trace(), 30)
    assert lost.stale_s == 4
    assert lost.brief[0] == "✕ no answer"


@given(width=st.integers(1, 60), text=st.text(max_size=30))
def test_no_line_is_wider_than_its_column(width: int, text: str) -> None:
    odd = replace(BUSY, divergence=Divergence(10**9, 10**9, text, 10**12, True), waiting=10**9)
    assert all(len(line) <= width for line in shown(Tick(MODEL, "ok", odd, 100.0), width))


def test_sparklines_show_gaps_and_the_last_values() -> None:
    assert sparkline([1.0, 2.0, None, 4.0, 0.0], 4) == "▅ █▁"
    assert sparkline([0.5, 1.0], 9, top=1.0) == "▅█"
    assert sparkline([0.0, 0.0], 9) == "▁▁"
    assert sparkline([], 9) == sparkline([1.0], 0) == ""


def test_bars_fill_by_what_is_used() -> None:
    assert bar(1, 4, 8) == "██······"
    assert bar(9, 4, 4) == "████"
    assert bar(1, 0, 4) == bar(1, 2, 0) == ""


def test_the_history_keeps_a_minute() -> None:
    history = History()
    for number in range(SAMPLES + 5):
        trace = history.add(Tick(MODEL, "ok", replace(BUSY, decode_tokens_per_s=float(number)), 100.0))
    assert len(trace.decode) == SAMPLES
    assert trace.decode[-1] == SAMPLES + 4
    assert history.add(Tick(MODEL, "ok", BUSY, 100.0, lost_s=2.0)).decode[-1] is None


def test_the_engine_of_this_process() -> None:
    engine = ScriptedEngine(lambda request: [])
    tick = LocalFeed(engine).tick()
    assert (tick.model, tick.health, tick.lost_s) == (engine.model, "ok", None)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # the pause of a poll


def test_an_engine_elsewhere_comes_goes_and_comes_back() -> None:
    answers = True

    def fetch(url: str, token: str | None) -> Report:
        assert (url, token) == ("http://there", "token")
        if not answers:
            raise EngineError("gone away")
        return Report("ok", MODEL, replace(BUSY, time=5.0), 0.5)

    feed = RemoteFeed("http://there", "token", fetch)
    try:
        until(lambda: feed.tick().model is not None)
        tick = feed.tick()
        assert tick.snapshot is not None
        assert 0.4 < tick.now - tick.snapshot.time < 5  # half a second old when it came, by our clock
        answers = False
        until(lambda: feed.tick().lost_s is not None)
        assert (feed.tick().lost_s or 0) >= LOST_S
        assert feed.tick().why == "gone away"
        answers = True
        until(lambda: feed.tick().lost_s is None)
    finally:
        feed.close()


@pytest.mark.parametrize("speed", [None, 61.84])
def test_the_brief_row_begins_with_the_phase(speed: float | None) -> None:
    figures = run_figures(Tick(MODEL, "ok", replace(BUSY, decode_tokens_per_s=speed), 100.0), Trace(), 30)
    assert figures.brief[0] == "● decode"
