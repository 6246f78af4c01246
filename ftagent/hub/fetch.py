"""Brings files of a repository into a directory: several at once, resumed, checked as they arrive.

A file lies in the directory's `.ftagent` until all of it is there and agrees with the hub. Its name there has
its digest, so what was begun of other content is never gone on with.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ftagent.errors import PullFailed
from ftagent.hub.files import Digest, RemoteFile
from ftagent.hub.store import OURS

if TYPE_CHECKING:
    from ftagent.hub.remote import Hub

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in all

AT_ONCE = 4  # files; one connection is seldom as fast as the line
PIECE_BYTES = 8 * 2**30  # of one request: content networks refuse files of more than 50 GB in one piece
TRIES = 6  # without a byte in between
PAUSE_S = 2.0  # before the second try; each further one waits twice as long
_READ_BYTES = 2**22
_TELL_S = 0.1


def partial_path(directory: Path, commit: str, file: RemoteFile) -> Path:
    """Where a file lies until it is whole."""
    return directory / OURS / f"{file.name}.{(file.digest or commit)[:24]}.part"


def is_whole(path: Path, file: RemoteFile, progress: Progress) -> bool:
    """Whether all of a file of this machine is what the hub has."""
    digest, done = Digest(file), 0
    with path.open("rb") as opened:
        while data := opened.read(_READ_BYTES):
            digest.update(data)
            done += len(data)
            progress(f"checking {file.name}", done, file.size)
    return done == file.size and digest.agrees()


class Fetcher:
    """Fetches files of one commit. `done` bytes of `total` are there at first."""

    def __init__(self, hub: Hub, commit: str, directory: Path, done: int, total: int) -> None:
        self._hub = hub
        self._commit = commit
        self._directory = directory
        self._total = total
        self._done = done
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(
        self, files: Sequence[RemoteFile], progress: Progress, arrived: Callable[[RemoteFile], None]
    ) -> None:
        """Fetch all; `progress` and `arrived` are called from this thread alone.

        Raises PullFailed, once all that runs has stopped. What has arrived by then is kept for the next time.
        """
        with ThreadPoolExecutor(AT_ONCE, "pull") as pool:
            try:
                jobs = {pool.submit(self._fetch, file): file for file in files}
                waiting = set(jobs)
                while waiting:
                    over, waiting = wait(waiting, _TELL_S, FIRST_COMPLETED)
                    for job in over:
                        job.result()
                        arrived(jobs[job])
                    progress("downloading", self._done, self._total)
            finally:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, file: RemoteFile) -> None:
        partial = partial_path(self._directory, self._commit, file)
        with self._errors_named(file):
            with partial.open("ab+") as opened:
                digest = self._receive(file, opened)
                opened.flush()
                os.fsync(opened.fileno())
            if digest is None:
                return
            if not digest.agrees():
                from ftagent.hub.remote import differs

                partial.unlink()
                raise PullFailed(differs(self._hub.repo, file))
            os.replace(partial, self._directory / file.name)

    def _receive(self, file: RemoteFile, opened: BinaryIO) -> Digest | None:
        """Go on with `opened` to the file's end; None when the pull was stopped."""
        from ftagent.hub.remote import ConnectionLost

        opened.seek(0)
        receiver = _Receiver(file, opened)
        while data := opened.read(_READ_BYTES):
            receiver.digest.update(data)
        receiver.have = opened.tell()
        tries = 0
        while receiver.have < file.size:
            before, lost = receiver.have, "it sends no more"
            try:
                end = min(file.size, before + PIECE_BYTES)
                with self._hub.stream(self._commit, file, before, end) as (begin, chunks):
                    if begin != before:  # no ranges here
                        self._count(receiver.restart())
                    for chunk in chunks:
                        if self._stop.is_set():
                            return None
                        self._count(receiver.take(chunk))
                        if receiver.have == file.size:  # whatever else is sent
                            break
            except ConnectionLost as error:
                lost = str(error)
            if self._stop.is_set():
                return None
            if receiver.have > before:
                tries = 0
            else:
                tries += 1
                self._pause(file, receiver.have, tries, lost)
        return receiver.digest

    def _pause(self, file: RemoteFile, have: int, tries: int, lost: str) -> None:
        if tries == TRIES:
            raise PullFailed(
                f"{file.name}: the connection was lost at byte {have} of {file.size} ({lost}); the same "
                "command goes on where it stopped"
            )
        self._stop.wait(PAUSE_S * 2 ** (tries - 1))

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size

    @contextmanager
    def _errors_named(self, file: RemoteFile) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise PullFailed(
                    f"{self._directory}: no room left for {file.name} ({error.strerror}); make room and run "
                    "the same command again: it goes on where it stopped"
                ) from error
            raise PullFailed(f"{error.filename or file.name}: {error.strerror or error}") from error


class _Receiver:
    """A file as far as it has come: `have` bytes, and their digest."""

    def __init__(self, file: RemoteFile, opened: BinaryIO) -> None:
        self._file = file
        self._opened = opened
        self.digest = Digest(file)
        self.have = 0

    def take(self, chunk: bytes) -> int:
        """Append, but never more than belongs to the file; returns by how many bytes it has grown."""
        fits = chunk[: self._file.size - self.have]
        self._opened.write(fits)
        self.digest.update(fits)
        self.have += len(fits)
        return len(fits)

    def restart(self) -> int:
        """Drop all; returns by how many bytes the file has grown."""
        self._opened.seek(0)
        self._opened.truncate()
        self.digest = Digest(self._file)
        dropped, self.have = self.have, 0
        return -dropped
