"""When an idle engine looks after its books: seldom, and only when something has run. Knows no clock."""

from __future__ import annotations

CHECK_EVERY_S = 10.0
CHECK_PART = 1 / 200  # checks take at most this part of the time


class Pace:
    """Times are in seconds, from any one clock."""

    def __init__(self) -> None:
        self._changed = False
        self._not_before = 0.0

    def ran(self) -> None:
        """Something has run since the last check."""
        self._changed = True

    def wait_s(self, now: float) -> float | None:
        """How long until a check is due: 0 now, None never, as long as nothing runs."""
        return max(0.0, self._not_before - now) if self._changed else None

    def checked(self, begin: float, end: float) -> None:
        """A check has been made."""
        self._changed = False
        self._not_before = end + max(CHECK_EVERY_S, (end - begin) / CHECK_PART)
