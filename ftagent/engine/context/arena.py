"""Which bytes of one piece of memory are taken. Pure integers: knows neither the memory nor what is in it.

Kept states all have one size and must find room as long as they are few enough, so they take places of a grid
that begins at the end of the memory. Everything else takes the lowest gap that is large enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGN = 4096  # bytes; ranges begin and end on multiples of it


class Arena:
    """Ranges of [0, size). `place_bytes` is the size of a place of the grid; 0: there is none."""

    def __init__(self, size: int, place_bytes: int = 0) -> None:
        self.size = size // ALIGN * ALIGN
        self.place_bytes = rounded(place_bytes)
        self._taken: list[tuple[int, int]] = []  # (begin, end), in order
        self.used = 0  # bytes

    @property
    def places(self) -> int:
        """Places of the grid, free or not."""
        return self.size // self.place_bytes if self.place_bytes else 0

    def take(self, size: int) -> int | None:
        """The begin of `size` bytes that are taken now; None when no gap is that large."""
        wanted, begin = max(rounded(size), ALIGN), 0
        for low, high in self._taken:
            if low - begin >= wanted:
                break
            begin = high
        return self._take(begin, wanted) if begin + wanted <= self.size else None

    def take_place(self) -> int | None:
        """The begin of the last free place of the grid, which is taken now; None when there is none."""
        for number in range(1, self.places + 1):
            begin = self.size - number * self.place_bytes
            after = bisect_left(self._taken, (begin, 0))
            before_ends = self._taken[after - 1][1] if after else 0
            next_begins = self._taken[after][0] if after < len(self._taken) else self.size
            if before_ends <= begin and begin + self.place_bytes <= next_begins:
                return self._take(begin, self.place_bytes)
        return None

    def give(self, begin: int) -> None:
        """Free the range that begins there."""
        index = bisect_left(self._taken, (begin, 0))
        assert index < len(self._taken), f"nothing is taken at {begin}"
        low, high = self._taken[index]
        assert low == begin, f"nothing is taken at {begin}"
        del self._taken[index]
        self.used -= high - low

    def check_integrity(self) -> None:
        """Raise AssertionError when ranges overlap, leave the memory or are miscounted."""
        end = 0
        for low, high in self._taken:
            assert end <= low < high, "ranges overlap"
            end = high
        assert end <= self.size, "a range beyond the end"
        assert self.used == sum(high - low for low, high in self._taken), "bytes are miscounted"

    def _take(self, begin: int, size: int) -> int:
        insort(self._taken, (begin, begin + size))
        self.used += size
        return begin


def rounded(size: int) -> int:
    """`size` bytes as a range takes them."""
    return -(-size // ALIGN) * ALIGN
