"""Reads whole blocks of a file past the page cache (O_DIRECT), straight into memory of the caller.

Where the filesystem has no direct I/O, or a read does not begin and end on blocks, the same call goes through
the page cache. Knows files and bytes only.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ftagent.errors import LoadFailed

BLOCK_BYTES = 4096  # a multiple of what any disk asks of direct reads: address, offset and length
MAX_VIEWS = 1024  # IOV_MAX
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)

log = logging.getLogger(__name__)


def aligned_bytes(size: int) -> torch.Tensor:
    """uint8 [size], beginning on a block and with room to the end of its last one: fit for direct reads."""
    room = torch.empty(-(-size // BLOCK_BYTES) * BLOCK_BYTES + BLOCK_BYTES, dtype=torch.uint8)
    return room[-room.data_ptr() % BLOCK_BYTES :][:size]


class DirectFile:
    """An open file. `read_into` is safe from several threads at once, and leaves the interpreter to others
    while it waits.

    Raises LoadFailed when the file cannot be opened.
    """

    def __init__(self, path: Path, direct: bool = True) -> None:
        self.path = path
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._direct: int | None = None
        self._refused: int | None = None  # once direct, closed with the others: somebody may be reading
        try:
            self._buffered = os.open(path, flags)
        except OSError as error:
            raise LoadFailed(f"{path}: cannot be opened ({error.strerror})") from error
        if direct and hasattr(os, "O_DIRECT"):
            try:
                self._direct = os.open(path, flags | os.O_DIRECT)
            except OSError as error:
                log.info("%s: no direct reads (%s); reading through the page cache", path, error.strerror)

    @property
    def direct(self) -> bool:
        """Whether aligned reads go past the page cache, as far as is known yet."""
        return self._direct is not None

    def read_into(self, targets: Sequence[torch.Tensor], offset: int) -> None:
        """Fill `targets` (uint8, contiguous), one after the other, with what the file holds from `offset` on.

        Raises LoadFailed when the file ends before, or cannot be read.
        """
        views = [target.numpy().data for target in targets if len(target)]
        blocks = not any(target.data_ptr() % BLOCK_BYTES for target in targets)
        while views:
            direct = self._direct if blocks and _whole_blocks(views, offset) else None
            try:
                # Python repeats a call that a signal interrupts.
                count = os.preadv(self._buffered if direct is None else direct, views[:MAX_VIEWS], offset)
            except OSError as error:
                if direct is None or error.errno not in _REFUSALS:
                    raise LoadFailed(
                        f"{self.path}: cannot be read at byte {offset} ({error.strerror})"
                    ) from error
                log.info("%s: direct reads refused (%s); using the page cache", self.path, error.strerror)
                self._direct, self._refused = None, direct
                continue
            if count == 0:
                missing = sum(map(len, views))
                raise LoadFailed(
                    f"{self.path}: cut short while it was read: {missing} bytes missing at byte {offset}"
                )
            blocks = blocks and count % BLOCK_BYTES == 0  # what is left of a short read need not be aligned
            offset += count
            views = _behind(views, count)

    def close(self) -> None:
        """Safe to call twice; nobody may be reading."""
        for file in (self._buffered, self._direct, self._refused):
            if file is not None and file >= 0:
                os.close(file)
        self._buffered, self._direct, self._refused = -1, None, None


def _whole_blocks(views: Sequence[memoryview], offset: int) -> bool:
    return not (offset % BLOCK_BYTES or any(len(view) % BLOCK_BYTES for view in views))


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What is still to be filled after `count` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
