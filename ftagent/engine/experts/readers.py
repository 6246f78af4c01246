"""How many threads bring experts into their banks: as many as help, and as memory bears. Pure integers.

Only a reader's own buffer is held beside the banks, never a whole packed tensor or shard: packed and
scattered layouts are therefore read alike, in parallel, and serially only where memory is short.
"""

from __future__ import annotations

from typing import NamedTuple

DIRECT_READERS = 4  # into place past the page cache: one or two fill a virtual disk, an NVMe drive wants four
MOST_READERS = 16  # more do not fill banks faster
GIB = 2**30


class Reading(NamedTuple):
    """What is to be read, in bytes. `buffer` is the most that one reader holds beside the banks."""

    source: str  # "FTW", "safetensors"
    banks: int
    buffer: int  # 0: straight into the banks


class Readers(NamedTuple):
    """The choice, and in one line why."""

    threads: int
    how: str


def choose_readers(what: Reading, cores: int, free: int, asked: int | None = None) -> Readers:
    """`free` bytes of memory are available before the banks take theirs; `asked` is the user's own number."""
    size = f"{what.banks / GIB:.2f} GiB of experts from {what.source}"
    if not what.buffer:
        threads = asked or DIRECT_READERS
        return Readers(threads, f"{size}, straight into place, {_readers(threads)}")
    wanted = asked or max(1, min(cores, MOST_READERS))
    fitting = max(1, (free - what.banks) // what.buffer)
    threads = min(wanted, fitting)
    each = f"{size}, {_readers(threads)} with {what.buffer / 2**20:.0f} MiB each"
    short = f"; {free / GIB:.2f} GiB of memory are free" if threads < wanted else ""
    return Readers(threads, each + short)


def _readers(threads: int) -> str:
    return "one reader" if threads == 1 else f"{threads} readers"
