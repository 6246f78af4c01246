"""The tier of prefixes in files: one file for each, named by its content, whole or not there at all.

Layout: magic, then little-endian lengths (`_HEADER`), then ids, pages and state, then a SHA-256 of all before
it. Files are written under another name and renamed, so several processes may share a directory, and a crash
leaves nothing but a temporary file, which a later start removes. The file used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ftagent.engine.context.tiers import Address, Segment

MAGIC = b"ftprefix"
VERSION = 1
SUFFIX = ".prefix"
_HEADER = struct.Struct("<8sIIQQQ")  # magic, version, first page, bytes of ids, pages and state
_TEMPORARY = ".writing-"
ABANDONED_S = 3600  # a temporary file that old has no writer any more
QUEUE = 4  # segments that wait to be written; more are not kept

log = logging.getLogger(__name__)


class DiskTier:
    """Prefixes of one model in `directory`; all files under its parent together take `capacity` bytes."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory = directory
        self._capacity = capacity
        self._known: dict[Address, Path] = {}
        self._read_at: int | None = None  # mtime of the directory when it was read
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ftagent-prefixes")
        self._writing: set[Address] = set()
        self.skipped = 0
        self._remove_abandoned()

    def positions(self) -> Iterable[int]:
        self._look()
        return {address.position for address in self._known}

    def first(self, address: Address) -> int | None:
        return 0 if address in self._known or address in self._writing else None

    def get(self, address: Address) -> Segment | None:
        """Read and check; a damaged file is removed, and counts as none."""
        path = self._known.get(address)
        if path is None:
            return None
        try:
            data = path.read_bytes()
            os.utime(path)  # used just now
        except OSError:  # another process has removed it
            self._known.pop(address, None)
            return None
        segment = decode(data)
        if segment is None or segment.position != address.position:
            log.warning("%s: damaged; it is removed, and its prompt computed again", path)
            path.unlink(missing_ok=True)
            self._known.pop(address, None)
        return segment

    def put(self, address: Address, segment: Segment) -> None:
        """Write it on another thread; where too much waits already, or it is too large, it is not kept."""
        if len(self._writing) >= QUEUE or segment.nbytes > self._capacity:
            self.skipped += 1
            return
        self._writing.add(address)
        self._writer.submit(self._write, address, segment)

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown(wait=True)

    def _write(self, address: Address, segment: Segment) -> None:
        path = self._directory / f"{address.position}-{address.digest}{SUFFIX}"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._directory)
            try:
                with os.fdopen(handle, "wb") as opened:
                    for piece in encode(segment):
                        opened.write(piece)
                    opened.flush()
                    os.fsync(opened.fileno())
                os.replace(name, path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._shrink()
        except OSError as error:
            log.warning("%s: cannot be written (%s); the next start will be cold", path, error.strerror)
        finally:
            self._writing.discard(address)

    def _look(self) -> None:
        """Read the directory again if something has changed in it."""
        try:
            changed = self._directory.stat().st_mtime_ns
            if changed == self._read_at:
                return
            names = os.listdir(self._directory)
        except OSError:
            self._known = {}
            return
        self._read_at = changed
        self._known = {
            address: self._directory / name for name in names if (address := _address(name)) is not None
        }

    def _shrink(self) -> None:
        """Remove the files that were used longest ago until the others fit."""
        files = sorted(_files(self._directory.parent), reverse=True)
        total = 0
        for _, size, path in files:
            total += size
            if total > self._capacity:
                Path(path).unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        try:
            for entry in os.scandir(self._directory):
                if entry.name.startswith(_TEMPORARY) and entry.stat().st_mtime < time.time() - ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)
        except OSError:  # no directory yet, or a file that another process removed
            return


def encode(segment: Segment) -> Iterator[bytes]:
    """The pieces of its file."""
    digest = hashlib.sha256()
    lengths = len(segment.key), len(segment.pages), len(segment.state)
    for piece in (
        _HEADER.pack(MAGIC, VERSION, segment.first, *lengths),
        segment.key,
        segment.pages,
        segment.state,
    ):
        digest.update(piece)
        yield piece
    yield digest.digest()


def decode(data: bytes) -> Segment | None:
    """What `encode` wrote; None when anything in it is wrong."""
    if len(data) < _HEADER.size:
        return None
    magic, version, first, ids, pages, state = _HEADER.unpack_from(data)
    end = _HEADER.size + ids + pages + state
    if (magic, version) != (MAGIC, VERSION) or len(data) != end + hashlib.sha256().digest_size:
        return None
    view = memoryview(data)
    if hashlib.sha256(view[:end]).digest() != data[end:]:
        return None
    begin = _HEADER.size
    return Segment(
        data[begin : begin + ids], first, data[begin + ids : begin + ids + pages], data[end - state : end]
    )


def _address(name: str) -> Address | None:
    position, _, digest = name.removesuffix(SUFFIX).partition("-")
    return Address(int(position), digest) if name.endswith(SUFFIX) and position.isdecimal() else None


def _files(root: Path) -> Iterator[tuple[float, int, str]]:
    """(time of use, bytes, path) of all prefixes under `root`, of whatever model."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith(SUFFIX):
                try:
                    found = os.stat(path)
                except FileNotFoundError:  # another process has removed it
                    continue
                yield found.st_mtime, found.st_size, path
