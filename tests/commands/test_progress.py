"""The line that says how far something is: on a terminal, in a log, and how it goes away."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from ftagent.commands.progress import ProgressLine, size_text

GIB = 2**30


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(terminal: bool, steps: Callable[[ProgressLine, Clock], None]) -> str:
    stream, clock = Stream(terminal), Clock()
    steps(ProgressLine(stream, clock), clock)
    return stream.getvalue()


def a_minute(line: ProgressLine, clock: Clock) -> None:
    """60 GiB in 60 s, told ten times a second."""
    for tick in range(601):
        clock.now = 100 + tick / 10
        line.update("reading", tick * GIB // 10, 60 * GIB)
    line.close()


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    lines = run(False, a_minute).splitlines()
    assert len(lines) == 6
    assert lines[0] == "reading 10.00 GiB of 60.00 GiB (16 %), 1.07 GB/s, 50 s left"
    assert lines[-1] == "reading 60.00 GiB of 60.00 GiB (100 %), 1.07 GB/s, 0 s left"


def test_a_terminal_has_one_line_which_is_gone_at_the_end() -> None:
    text = run(True, a_minute)
    assert "\n" not in text
    shown = text.split("\r")
    assert "reading 30.00 GiB of 60.00 GiB (50 %), 1.07 GB/s, 30 s left" in [line.rstrip() for line in shown]
    assert shown[-1] == ""
    assert shown[-2].strip() == ""
    assert len(shown[-2]) >= max(len(line.rstrip()) for line in shown)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_quick_needs_no_line(terminal: bool) -> None:
    def quick(line: ProgressLine, clock: Clock) -> None:
        line.update("reading", 0, GIB)
        clock.now += 0.3
        line.update("reading", GIB, GIB)
        line.close()

    assert run(terminal, quick) == ""


def test_speed_and_time_left_are_those_of_the_phase() -> None:
    def phases(line: ProgressLine, clock: Clock) -> None:
        line.update("writing", 0, GIB)
        clock.now += 20
        line.update("writing", GIB, GIB)
        line.update("checking", GIB // 2, GIB)  # half was done before
        clock.now += 4000
        line.update("checking", GIB // 2 + 2**20, GIB)

    writing, checking = run(False, phases).splitlines()
    assert writing.startswith("writing 1.00 GiB of 1.00 GiB (100 %), 53.7 MB/s")
    assert checking == "checking 513.0 MiB of 1.00 GiB (50 %), 0.0 MB/s, 567 h 46 min left"


def test_a_reader_that_has_gone_does_not_end_the_work() -> None:
    class Gone(Stream):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    clock = Clock()
    line = ProgressLine(Gone(True), clock)
    line.update("reading", 0, GIB)
    clock.now += 5
    line.update("reading", 1, GIB)
    line.close()


def test_sizes_are_words_for_people() -> None:
    assert [size_text(size) for size in (0, 16_338_944, GIB, 60 * GIB)] == [
        "0.0 MiB",
        "15.6 MiB",
        "1.00 GiB",
        "60.00 GiB",
    ]
