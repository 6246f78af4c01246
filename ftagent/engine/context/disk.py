"""The tier of prefixes in files: one file for each, named by its content, whole or not there at all.

Layout: magic, then little-endian lengths (`_HEADER`), then ids, pages and state, then the SHA-256 of each
piece of these three, then that of header and digests. Pieces are read and checked on several threads, right
into the memory that they are copied to the device from. Files are written under another name and renamed, so
several processes may share a directory, and a crash leaves nothing but a temporary file, which a later start
removes. The file used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ftagent.engine.context.tiers import Address, Bytes, Held, Segment

MAGIC = b"ftprefix"
VERSION = 2
SUFFIX = ".prefix"
PIECE_BYTES = 4 << 20
READERS = 16  # threads at most: one reads and checks about 1.5 GB/s
_HEADER = struct.Struct("<8sIIQQQ")  # magic, version, first page, bytes of ids, pages and state
_TEMPORARY = ".writing-"
ABANDONED_S = 3600  # a temporary file that old has no writer any more
SETTLED_NS = 10**9  # a directory that has changed less long ago may change again at the same time stamp
QUEUE = 4  # segments that wait to be written; more are not kept

log = logging.getLogger(__name__)

Blank = Callable[[int, bool], Held]
"""Makes room for so many bytes of pages, or of a state; see `tiers.Contents.blank`."""


def ordinary(size: int, state: bool) -> Held:
    """A `Blank` for memory of any kind."""
    return Bytes(bytearray(size))


class DiskTier:
    """Prefixes of one model in `directory`; all files under its parent together take `capacity` bytes."""

    def __init__(self, directory: Path, capacity: int, blank: Blank = ordinary) -> None:
        self._directory = directory
        self._capacity = capacity
        self._blank = blank
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
            segment = read_segment(path, self._blank)
            os.utime(path)  # used just now
        except OSError:  # another process has removed it
            self._known.pop(address, None)
            return None
        if segment is None or segment.position != address.position:
            log.warning("%s: damaged; it is removed, and its prompt computed again", path)
            path.unlink(missing_ok=True)
            self._known.pop(address, None)
            return None
        return segment

    def takes(self, size: int) -> bool:
        """Not where too much waits to be written already, or it is too large; that is counted."""
        if len(self._writing) < QUEUE and size <= self._capacity:
            return True
        self.skipped += 1
        return False

    def put(self, address: Address, segment: Segment) -> None:
        """Write it on another thread."""
        self._writing.add(address)
        self._writer.submit(self._write, address, segment)

    def forget(self, address: Address) -> None:
        path = self._known.pop(address, None)
        if path is not None:
            path.unlink(missing_ok=True)

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
            settled = time.time_ns() - changed > SETTLED_NS
            names = os.listdir(self._directory)
        except OSError:
            self._known = {}
            return
        self._read_at = changed if settled else None
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


class _Piece(NamedTuple):
    """Bytes [begin, end) of one of the three parts, which stand in the file from `offset` on."""

    part: int
    begin: int
    end: int
    offset: int


def encode(segment: Segment) -> Iterator[bytes | memoryview]:
    """What its file holds, one piece after the other."""
    parts = [memoryview(segment.key), segment.pages.view(), segment.state.view()]
    header = _HEADER.pack(MAGIC, VERSION, segment.first, *map(len, parts))
    yield header
    digests = b""
    for piece in _pieces([len(part) for part in parts]):
        data = parts[piece.part][piece.begin : piece.end]
        digests += hashlib.sha256(data).digest()
        yield data
    yield digests
    yield hashlib.sha256(header + digests).digest()


def read_segment(path: Path, blank: Blank) -> Segment | None:
    """What `encode` wrote; None when anything in it is wrong. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        header = os.pread(handle, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, version, first, *lengths = _HEADER.unpack(header)
        if (magic, version) != (MAGIC, VERSION):
            return None
        body, size = sum(lengths), os.fstat(handle).st_size
        if body > size:  # before as much memory is asked for
            return None
        pieces = _pieces(lengths)
        digests = hashlib.sha256().digest_size * len(pieces)
        if size != _HEADER.size + body + digests + hashlib.sha256().digest_size:
            return None
        table = os.pread(handle, digests, _HEADER.size + body)
        if hashlib.sha256(header + table).digest() != os.pread(handle, size, _HEADER.size + body + digests):
            return None
        key, pages, state = bytearray(lengths[0]), blank(lengths[1], False), blank(lengths[2], True)
        views = [memoryview(key), pages.view(), state.view()]

        def check(number: int) -> bool:
            piece = pieces[number]
            target = views[piece.part][piece.begin : piece.end]
            wanted = table[32 * number : 32 * number + 32]
            return _fill(handle, target, piece.offset) and hashlib.sha256(target).digest() == wanted

        threads = max(1, min(READERS, len(pieces), os.cpu_count() or 1))
        with ThreadPoolExecutor(threads, thread_name_prefix="ftagent-prefix-reader") as readers:
            sound = all(readers.map(check, range(len(pieces))))
        if not sound:
            return None
    finally:
        os.close(handle)
    return Segment(bytes(key), first, pages, state)


def _pieces(lengths: Iterable[int]) -> list[_Piece]:
    """The pieces of the three parts, in the order of the file."""
    found: list[_Piece] = []
    offset = _HEADER.size
    for part, length in enumerate(lengths):
        for begin in range(0, length, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, length)
            found.append(_Piece(part, begin, end, offset + begin))
        offset += length
    return found


def _fill(handle: int, target: memoryview, offset: int) -> bool:
    """Read as much as `target` holds; False where the file ends before."""
    done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done:]], offset + done)
        if not count:
            return False
        done += count
    return True


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
