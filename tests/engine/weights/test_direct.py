"""Reads past the page cache: whole whatever the system returns, or an error that names file and bytes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ftagent.engine.weights.direct import BLOCK_BYTES, MAX_VIEWS, DirectFile, aligned_bytes
from ftagent.errors import LoadFailed

SIZE = 40 * BLOCK_BYTES


@pytest.fixture(params=["disk", "memory"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file on a disk, and one on tmpfs."""
    if request.param == "memory":
        shm = Path("/dev/shm")
        if not os.access(shm, os.W_OK):
            pytest.skip("no tmpfs at /dev/shm")
        path = shm / f"ftagent-{os.getpid()}-{random.getrandbits(64):x}"
    else:
        path = tmp_path / "file"
    path.write_bytes(content())
    yield path
    path.unlink(missing_ok=True)


def content() -> bytes:
    return random.Random(0).randbytes(SIZE)


def read(opened: DirectFile, sizes: Sequence[int], offset: int, skew: int = 0) -> bytes:
    memory = aligned_bytes(sum(sizes) + skew + BLOCK_BYTES)[skew : skew + sum(sizes)]
    opened.read_into(torch.split(memory, list(sizes)), offset)
    return memory.numpy().tobytes()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("sizes", "offset", "skew"),
    [
        ([SIZE], 0, 0),
        ([3 * BLOCK_BYTES, BLOCK_BYTES], 5 * BLOCK_BYTES, 0),
        ([3 * BLOCK_BYTES], 17, 0),
        ([3 * BLOCK_BYTES], BLOCK_BYTES, 24),
        ([5000, 3, 0, 900], 2 * BLOCK_BYTES, 0),
        ([], 0, 0),
        ([7] * (MAX_VIEWS + 5), 1, 0),
    ],
)
def test_any_range_comes_whole(file: Path, sizes: list[int], offset: int, skew: int, direct: bool) -> None:
    opened = DirectFile(file, direct)
    assert read(opened, sizes, offset, skew) == content()[offset : offset + sum(sizes)]
    opened.close()
    opened.close()


@pytest.mark.parametrize("most", [1, 511, BLOCK_BYTES, BLOCK_BYTES + 3])
def test_short_reads_are_gone_on_with(file: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def short(handle: int, views: Sequence[memoryview], offset: int) -> int:
        return real(handle, [views[0][:most]], offset)

    monkeypatch.setattr(os, "preadv", short)
    opened = DirectFile(file)
    assert (
        read(opened, [BLOCK_BYTES, 2 * BLOCK_BYTES], BLOCK_BYTES) == content()[BLOCK_BYTES : 4 * BLOCK_BYTES]
    )
    opened.close()


def test_a_file_that_ends_early_is_named_with_what_is_missing(file: Path) -> None:
    opened = DirectFile(file)
    words = rf"{file}: cut short while it was read: {2 * BLOCK_BYTES} bytes missing at byte {SIZE}"
    with pytest.raises(LoadFailed, match=words):
        read(opened, [5 * BLOCK_BYTES], SIZE - 3 * BLOCK_BYTES)
    opened.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_filesystem_that_opens_nothing_directly_is_read_through_the_cache(
    file: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    opened = DirectFile(file)
    assert not opened.direct
    assert read(opened, [SIZE], 0) == content()
    opened.close()


def test_a_filesystem_that_refuses_later_is_read_through_the_cache(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = DirectFile(file), os.preadv
    if not opened.direct:
        pytest.skip("nothing to refuse here")
    direct = opened._direct

    def refusing(handle: int, views: Sequence[memoryview], offset: int) -> int:
        if handle == direct and offset:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(handle, views, offset)

    monkeypatch.setattr(os, "preadv", refusing)
    assert read(opened, [BLOCK_BYTES], 0) == content()[:BLOCK_BYTES]
    assert opened.direct
    assert read(opened, [BLOCK_BYTES], BLOCK_BYTES) == content()[BLOCK_BYTES : 2 * BLOCK_BYTES]
    assert not opened.direct
    before = len(os.listdir("/proc/self/fd"))
    opened.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_a_disk_that_fails_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    opened = DirectFile(file)
    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(LoadFailed, match=rf"{file}: cannot be read at byte 8192 \(Input/output error\)"):
        read(opened, [BLOCK_BYTES], 8192)
    opened.close()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"absent: cannot be opened \(No such file"):
        DirectFile(tmp_path / "absent")


def test_room_for_direct_reads_begins_and_ends_on_blocks() -> None:
    for size in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1):
        memory = aligned_bytes(size)
        assert len(memory) == size
        assert memory.data_ptr() % BLOCK_BYTES == 0
        room = memory.untyped_storage().nbytes() - memory.storage_offset()
        assert room >= -(-size // BLOCK_BYTES) * BLOCK_BYTES
        assert memory.dtype == torch.uint8
