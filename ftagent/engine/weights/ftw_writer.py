"""Writes the shards of an FTW set under temporary names, and remembers in a journal what is safely on disk.

A conversion that was ended, by whatever, goes on from its journal. Knows the format, no model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from ftagent.engine.weights.ftw import (
    PARTIAL,
    SUFFIX,
    FtwTensor,
    encode_header,
    ranges,
    set_digest,
    shard_name,
)
from ftagent.engine.weights.headers import parse_object
from ftagent.errors import ConfigError, ConvertFailed, LoadFailed

JOURNAL = "ftw-conversion.journal"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SetPlan(NamedTuple):
    """What will be written: tensors in the order of the region, without digests."""

    tensors: tuple[FtwTensor, ...]
    align: int
    shard_bytes: int
    source: str

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return ranges(self.tensors, self.shard_bytes)

    def heads(self, digest: str) -> list[dict[str, Any]]:
        """The headers' fields but for the tensors."""
        parts = self.ranges
        common = {
            "align": self.align,
            "bytes": parts[-1][1],
            "set": digest,
            "shards": len(parts),
            "source": self.source,
        }
        return [
            {**common, "shard": number, "begin": begin, "end": end}
            for number, (begin, end) in enumerate(parts)
        ]

    def headers(self, digests: Mapping[str, Sequence[str]]) -> list[bytes]:
        """The headers of all shards; of the right length as long as digests are missing."""
        tensors = [tensor._replace(digests=tuple(digests.get(tensor.name, ()))) for tensor in self.tensors]
        digest = set_digest(tensors)
        heads = self.heads(digest)
        found = []
        for head in heads:
            here = (tensor for tensor in tensors if _within(tensor, head, head is heads[-1]))
            found.append(encode_header(head, here))
        return found

    def key(self) -> str:
        """Tells this plan from others."""
        return hashlib.sha256(b"".join(self.headers({}))).hexdigest()


def _within(tensor: FtwTensor, head: Mapping[str, Any], last: bool) -> bool:
    begin, end = head["begin"], head["end"]
    if not tensor.bytes:  # it lies nowhere; somebody has to describe it
        return bool(begin <= tensor.at < end or (last and tensor.at == end))
    return bool(tensor.at < end and begin < tensor.end)


class Journal:
    """One conversion's book: its plan and the state of its source, then each tensor that is on disk.

    Raises ConvertFailed when another conversion writes to the same directory, or when what was begun there
    had another plan or another source.
    """

    def __init__(self, directory: Path, plan: str, source: Mapping[str, Sequence[int]]) -> None:
        self.path = directory / JOURNAL
        self.done: dict[str, list[str]] = {}
        self._file = _locked(self.path)
        try:
            self._begin({"plan": plan, "source": {name: list(state) for name, state in source.items()}})
        except BaseException:  # an interrupt too must not leave the journal locked
            self._file.close()
            raise

    def note(self, digests: Mapping[str, Sequence[str]]) -> None:
        """Add tensors that are on disk."""
        lines = [json.dumps({"tensor": name, "sha256": list(found)}) for name, found in digests.items()]
        self._file.write("".join(line + "\n" for line in lines).encode())
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self.done.update({name: list(found) for name, found in digests.items()})

    def close(self) -> None:
        self._file.close()

    def _begin(self, head: Mapping[str, Any]) -> None:
        self._file.seek(0)
        whole, _, cut = self._file.read().rpartition(b"\n")
        if cut:  # a line that was being written
            self._file.truncate(len(whole) + 1 if whole else 0)
        lines = whole.splitlines()
        if not lines:
            self._file.write((json.dumps(head) + "\n").encode())
            self._file.flush()
            return
        try:
            found, *items = [parse_object(self.path, line) for line in lines]
            for item in items:
                self.done[item["tensor"]] = [str(digest) for digest in item["sha256"]]
        except (LoadFailed, KeyError, TypeError) as error:
            raise ConvertFailed(f"{self.path}: damaged ({error}); start over with --restart") from error
        self._compare(found, head)

    def _compare(self, found: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        before = found.get("source") or {}
        changed = sorted(
            name for name in {*before, *head["source"]} if before.get(name) != head["source"].get(name)
        )
        if changed:
            raise ConvertFailed(
                f"{self.path.parent}: the source has changed since this conversion began ({changed[0]}); "
                "start over with --restart"
            )
        if found.get("plan") != head["plan"]:
            raise ConvertFailed(
                f"{self.path.parent}: was begun with another source or shard size; start over with --restart"
            )


class ShardWriter:
    """The files of one set, open for writing at any place. `write` is safe from several threads.

    Raises ConvertFailed when they cannot be opened.
    """

    def __init__(self, directory: Path, plan: SetPlan) -> None:
        self._directory = directory
        self._plan = plan
        self._ranges = plan.ranges
        self._data = [len(header) for header in plan.headers({})]
        names = [shard_name(number, len(self._ranges)) for number in range(len(self._ranges))]
        self.finals = [directory / name for name in names]
        self.partials = [directory / (name + PARTIAL) for name in names]
        self._files: list[int] = []

    @property
    def bytes(self) -> int:
        """What all files take."""
        return sum(self._data) + self._ranges[-1][1]

    def open(self) -> None:
        """Make the files, or go on with those that are there."""
        for final, partial, data, (begin, end) in zip(
            self.finals, self.partials, self._data, self._ranges, strict=True
        ):
            try:
                if final.exists() and not partial.exists():  # ended while it was renaming
                    os.replace(final, partial)
                file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._files.append(file)
                os.ftruncate(file, data + end - begin)
            except OSError as error:
                raise self._failed(partial, error, data + end - begin) from error

    def write(self, at: int, memory: torch.Tensor) -> None:
        """Put uint8 `memory` at byte `at` of the region."""
        view = memory.numpy().data
        for number, (begin, end) in enumerate(self._ranges):
            first, last = max(at, begin), min(at + len(view), end)
            if first < last:
                self._put(number, self._data[number] + first - begin, view[first - at : last - at])

    def finish(self, digests: Mapping[str, Sequence[str]]) -> None:
        """Write the headers: from now on the files are shards."""
        for number, header in enumerate(self._plan.headers(digests)):
            assert len(header) == self._data[number]
            self._put(number, 0, memoryview(header))
        self.sync()

    def sync(self) -> None:
        """Return when all that was written is on disk. It need not stay in memory."""
        for file, partial in zip(self._files, self.partials, strict=True):
            try:
                os.fdatasync(file)
            except OSError as error:
                raise self._failed(partial, error, 0) from error
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self) -> None:
        """Give the files their names, the first shard last."""
        for partial, final in reversed(list(zip(self.partials, self.finals, strict=True))):
            os.replace(partial, final)
        sync_directory(self._directory)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _put(self, number: int, offset: int, view: memoryview) -> None:
        while view:
            try:
                count = os.pwrite(self._files[number], view, offset)
            except OSError as error:
                raise self._failed(self.partials[number], error, len(view)) from error
            view, offset = view[count:], offset + count

    def _failed(self, file: Path, error: OSError, size: int) -> ConvertFailed:
        if error.errno not in _FULL:
            return ConvertFailed(f"{file}: cannot be written ({error.strerror})")
        free = shutil.disk_usage(self._directory).free
        return ConvertFailed(
            f"{file}: no room for {size} bytes ({error.strerror}; {free} bytes are free); make room and run "
            "the same command again: it goes on where it stopped"
        )


def must_have_room(directory: Path, need: int, present: Iterable[Path]) -> None:
    """Raise ConvertFailed unless `need` bytes fit, of which files that are `present` have some already."""
    there = sum(512 * file.stat().st_blocks for file in present if file.exists())
    free = shutil.disk_usage(directory).free
    if need - there > free:
        raise ConvertFailed(
            f"{directory}: needs {need - there} bytes, {free} are free: {need - there - free} bytes missing"
        )


def must_be_empty(directory: Path) -> None:
    """Raise ConfigError when a directory holds anything and no conversion was begun there."""
    if any(directory.glob(f"*{SUFFIX}")) and not (directory / JOURNAL).exists():
        raise ConfigError(f"{directory}: holds an FTW model already; remove it, or give another directory")
    if any(directory.iterdir()) and not (directory / JOURNAL).exists():
        raise ConfigError(f"{directory}: is not empty; give a new directory")


def clear(directory: Path) -> None:
    """Remove what an earlier conversion has left. Raises ConvertFailed when it is still running."""
    journal = directory / JOURNAL
    if not journal.exists():
        return
    with _locked(journal):
        for pattern in (f"*{SUFFIX}", f"*{SUFFIX}{PARTIAL}"):
            for file in directory.glob(pattern):
                file.unlink()
        journal.unlink()


def _locked(journal: Path) -> BinaryIO:
    opened = journal.open("ab+")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        opened.close()
        raise ConvertFailed(f"{journal.parent}: another conversion is writing here") from error
    return opened


def sync_directory(directory: Path) -> None:
    """Names in a directory survive a power cut from here on."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:  # a filesystem that cannot
        pass
    finally:
        os.close(handle)
