"""Conversions that are ended, find no room, or whose source changes: nothing is lost, nothing wrong kept."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from ftagent.engine.convert import check, convert
from ftagent.engine.weights import ftw_writer
from ftagent.engine.weights.ftw_writer import JOURNAL, Journal, ShardWriter
from ftagent.errors import ConvertFailed, LoadFailed
from tests.engine.models.tiny import Oracle
from tests.support.ftw_by_the_book import Book

SHARD = 40 * 4096


@pytest.fixture
def source(tmp_path: Path) -> Path:
    Oracle("qwen3_moe", tmp_path / "source", 0, {})
    return tmp_path / "source"


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in the journal for every tensor or so, as large models have."""
    monkeypatch.setattr("ftagent.engine.convert.GROUP_BYTES", 2**15)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


class _Kill(BaseException):
    """As if the process had ended: no handler of errors sees it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """The `call`-th call of a method never happens."""
    real, count = getattr(owner, name), [0]

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == call:
            raise _Kill
        return real(*arguments)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (ShardWriter, "write", 1),
        (ShardWriter, "write", 29),
        (ShardWriter, "sync", 2),
        (Journal, "note", 3),
        (ShardWriter, "finish", 1),
        (os, "replace", 1),
        (os, "replace", 4),
        (ftw_writer, "sync_directory", 1),
    ],
)
def test_an_ended_conversion_goes_on_and_ends_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int
) -> None:
    convert(source, tmp_path / "whole", shard_bytes=SHARD)
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        kill_at(patch, owner, name, call)
        with pytest.raises(_Kill):
            convert(source, target, shard_bytes=SHARD)
    done = convert(source, target, shard_bytes=SHARD)
    assert contents(target) == contents(tmp_path / "whole")
    if name in ("finish", "replace", "sync_directory"):
        assert done.resumed_bytes == sum(item["bytes"] for item in Book(target).tensors.values())
    elif call > 2:
        assert done.resumed_bytes > 0


@pytest.mark.usefixtures("small_groups")
def test_what_was_begun_is_no_model_and_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ftagent.engine.weights.checkpoint import open_weights

    with monkeypatch.context() as patch:
        kill_at(patch, ShardWriter, "finish", 1)
        with pytest.raises(_Kill):
            convert(source, tmp_path / "target", shard_bytes=SHARD)
    for opening in (open_weights, check):
        with pytest.raises(LoadFailed, match="was not finished; run ftagent convert again"):
            opening(tmp_path / "target")


PROGRAM = """
import sys, threading
from pathlib import Path
import ftagent.engine.convert as convert
convert.GROUP_BYTES = 2**15
after = int(sys.argv[3])
lock = threading.Lock()
def progress(phase, done, total):
    if phase == "writing" and done >= after:
        with lock:
            print("there", flush=True)
            sys.stdin.read()
convert.convert(Path(sys.argv[1]), Path(sys.argv[2]), shard_bytes=40 * 4096, progress=progress)
"""


@pytest.mark.parametrize("after", [1, 300_000, 900_000])
def test_a_killed_process_leaves_what_the_next_goes_on_with(source: Path, tmp_path: Path, after: int) -> None:
    target = tmp_path / "target"
    program = [sys.executable, "-c", PROGRAM, str(source), str(target), str(after)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    done = convert(source, target, shard_bytes=SHARD)
    convert(source, tmp_path / "whole", shard_bytes=SHARD)
    assert contents(target) == contents(tmp_path / "whole")
    assert (done.resumed_bytes > 0) == (after > 200_000)


LIMITED = """
import resource, sys
from pathlib import Path
from ftagent.engine.convert import convert
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
from ftagent.errors import ConvertFailed
try:
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
except ConvertFailed as error:
    sys.exit(str(error))
"""


def test_a_file_that_cannot_grow_is_named(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    program = [sys.executable, "-c", LIMITED, str(source), str(target), str(2**19)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert "model-00001-of-00001.ftw.partial: no room for" in ended.stderr
    assert "Traceback" not in ended.stderr
    convert(source, target)
    check(target)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("call", [1, 12, 40])
def test_a_disk_that_fills_up_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The `call`-th write finds half of its room."""
    real, count = os.pwrite, [0]

    def full(file: int, view: memoryview, offset: int) -> int:
        count[0] += 1
        if count[0] == call:
            return real(file, view[: len(view) // 2], offset)
        if count[0] > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, view, offset)

    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(
            ConvertFailed, match=r"\.ftw\.partial: no room for \d+ bytes \(No space left"
        ) as failed:
            convert(source, target, shard_bytes=SHARD)
        assert "make room and run the same command again" in str(failed.value)
    convert(source, target, shard_bytes=SHARD)
    convert(source, tmp_path / "whole", shard_bytes=SHARD)
    assert contents(target) == contents(tmp_path / "whole")


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_room_is_looked_for_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = convert(source, tmp_path / "whole")
    copies = sum(file.stat().st_size for file in source.iterdir() if file.suffix != ".safetensors")
    need = done.bytes + copies
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 0, need - 7))
    with pytest.raises(ConvertFailed, match=f"needs {need} bytes, {need - 7} are free: 7 bytes missing"):
        convert(source, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 0, need))
    convert(source, tmp_path / "target")


def test_what_is_written_already_needs_no_room(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, ShardWriter, "finish", 1)
        with pytest.raises(_Kill):
            convert(source, tmp_path / "target")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 0, 64 * 1024))
    convert(source, tmp_path / "target")


def touch(source: Path) -> None:
    file = source / "model.safetensors"
    os.utime(file, ns=(1, 1))


def shorten(source: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config))


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("change", [touch, shorten])
def test_a_source_that_changed_between_is_refused_until_told_to_restart(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        kill_at(patch, Journal, "note", 3)
        with pytest.raises(_Kill):
            convert(source, target, shard_bytes=SHARD)
    change(source)
    name = {"touch": "model.safetensors", "shorten": "config.json"}[change.__name__]
    with pytest.raises(
        ConvertFailed, match=rf"source has changed since .*\({name}\); start over with --restart"
    ):
        convert(source, target, shard_bytes=SHARD)
    done = convert(source, target, shard_bytes=SHARD, restart=True)
    assert done.resumed_bytes == 0
    Book(target)


def test_a_source_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    def meddle(phase: str, done: int, total: int) -> None:
        touch(source)

    with pytest.raises(ConvertFailed, match="changed while it was converted"):
        convert(source, tmp_path / "target", progress=meddle)
    assert not list((tmp_path / "target").glob("*.ftw"))


def test_another_way_to_convert_does_not_go_on_with_what_was_begun(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, ShardWriter, "finish", 1)
        with pytest.raises(_Kill):
            convert(source, tmp_path / "target", shard_bytes=SHARD)
    with pytest.raises(ConvertFailed, match="another source or shard size; start over with --restart"):
        convert(source, tmp_path / "target", shard_bytes=2 * SHARD)


def test_two_conversions_do_not_meet(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with (target / JOURNAL).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for restart in (False, True):
            with pytest.raises(ConvertFailed, match="another conversion is writing here"):
                convert(source, target, restart=restart)
        assert (target / JOURNAL).exists()
    convert(source, target)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_that_ends_within_a_line_loses_that_line_only(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        kill_at(patch, ShardWriter, "finish", 1)
        with pytest.raises(_Kill):
            convert(source, target, shard_bytes=SHARD)
    journal = target / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-cut])
    done = convert(source, target, shard_bytes=SHARD)
    convert(source, tmp_path / "whole", shard_bytes=SHARD)
    assert contents(target) == contents(tmp_path / "whole")
    assert done.resumed_bytes > 0


@pytest.mark.parametrize("text", [b"{\n", b"[]\n[]\n", b"\xff\n", b'{"plan":1}\n{}\n', b"1\n"])
def test_a_journal_that_is_damaged_is_named(source: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / JOURNAL).write_bytes(text)
    with pytest.raises(ConvertFailed, match="--restart"):
        convert(source, tmp_path / "target")
    convert(source, tmp_path / "target", restart=True)


@pytest.mark.usefixtures("small_groups")
def test_a_disk_that_keeps_something_else_is_found_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = os.pwrite, [0]

    def lying(file: int, view: memoryview, offset: int) -> int:
        count[0] += 1
        wrong = bytearray(view)
        wrong[len(wrong) // 2] ^= 4
        return real(file, wrong if count[0] == 11 else view, offset)

    monkeypatch.setattr(os, "pwrite", lying)
    with pytest.raises(LoadFailed, match=r"\.ftw\.partial: tensor \S+ is damaged"):
        convert(source, tmp_path / "target", shard_bytes=SHARD)
    assert not list((tmp_path / "target").glob("*.ftw"))


def test_one_expert_and_a_buffer_for_each_thread_are_all_the_memory_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resident memory, looked at before every write: less than one layer of experts (96 MiB)."""
    sizes: dict[str, Any] = {"hidden_size": 1024, "moe_intermediate_size": 1024, "num_hidden_layers": 2}
    source = tmp_path / "source"
    Oracle("qwen3_moe", source, 0, sizes)
    gc.collect()
    process, write = psutil.Process(), ShardWriter.write
    peaks = [0]

    def watched(self: ShardWriter, at: int, memory: torch.Tensor) -> None:
        peaks.append(process.memory_info().rss - before)
        write(self, at, memory)

    monkeypatch.setattr(ShardWriter, "write", watched)
    before = process.memory_info().rss
    convert(source, tmp_path / "target", threads=2)
    expert = 12
    assert max(peaks) <= (2 * (2 * expert + 8) + 8) * 2**20
