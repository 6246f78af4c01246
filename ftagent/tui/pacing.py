"""How often the screen may redraw while an answer streams. Knows processor time, no widget.

The engine decodes in the same process, so each millisecond that drawing takes is one that the engine has to
wait for: a busy drawing thread holds the interpreter. The pace follows the measured cost: cheap screens
redraw ten times a second, costly ones (long lists, slow machines) less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.015  # of one core
SHORTEST_S = 0.1
LONGEST_S = 0.6


class Pacer:
    """Gives the pause before the next redraw, so that the calling thread uses about `share` of a core.

    `between` are the shortest and the longest pause in seconds. `cpu` returns the seconds of processor time
    that the drawing thread has used.
    """

    def __init__(
        self,
        share: float = SHARE,
        cpu: Callable[[], float] = time.thread_time,
        between: tuple[float, float] = (SHORTEST_S, LONGEST_S),
    ) -> None:
        self._share = share
        self._cpu = cpu
        self._shortest_s, self._longest_s = between
        self._last = cpu()

    def pause_s(self) -> float:
        """Seconds to wait from now, given what was used since the call before."""
        now = self._cpu()
        used, self._last = now - self._last, now
        return min(max(used / self._share, self._shortest_s), self._longest_s)
