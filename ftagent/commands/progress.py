"""One line on stderr that says how far something is: bytes, speed, time left. Knows no engine.

On a terminal the line is written over and over; elsewhere, as in a log, a new one comes every ten seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

ON_TERMINAL_S = 0.1
ELSEWHERE_S = 10.0
QUICK_S = 0.4  # what takes less needs no line
MIB, GIB = 2**20, 2**30


class ProgressLine:
    """Call `update` as often as you like, from one thread at a time; `close` when it is over."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._phase = ""
        self._began = (0.0, 0)  # time and bytes when the phase began
        self._shown = 0.0
        self._width = 0

    def update(self, phase: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `phase` ("reading", "writing") are done."""
        now = self._clock()
        if phase != self._phase:
            self.close()
            self._phase, self._began = phase, (now, done)
            self._shown = now + (QUICK_S if self._terminal else 0.0)
        if now - self._shown >= (ON_TERMINAL_S if self._terminal else ELSEWHERE_S):
            self._shown = now
            self._show(_line(phase, done, total, now - self._began[0], done - self._began[1]))

    def close(self) -> None:
        """End the line, if one was begun."""
        if self._terminal and self._width:
            self._write("\r" + " " * self._width + "\r")
        self._width = 0
        self._phase = ""

    def _show(self, line: str) -> None:
        if self._terminal:
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # whoever read it has gone; the work goes on
            pass


def size_text(size: int) -> str:
    """A size for people: "3.21 GiB", "15.6 MiB"."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def _line(phase: str, done: int, total: int, seconds: float, since: int) -> str:
    share = done * 100 // total if total else 100
    text = f"{phase} {size_text(done)} of {size_text(total)} ({share} %)"
    if seconds <= 0 or since <= 0:
        return text
    speed = since / seconds
    pace = f"{speed / 1e9:.2f} GB/s" if speed >= 1e9 else f"{speed / 1e6:.1f} MB/s"
    return f"{text}, {pace}, {_left((total - done) / speed)} left"


def _left(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
