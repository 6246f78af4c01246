"""From a safetensors directory to FTW: plan, write, check, rename. Every family that loads can be converted.

Dense tensors are copied as they are, in the order in which loading asks for them; experts are written as rows
of banks in the precision of the source, so a set serves every device and compute type. Memory: one expert and
one buffer for each thread.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from ftagent.engine.experts.bank import ExpertFormat, ExpertShape, row_pieces
from ftagent.engine.experts.heat import fingerprint
from ftagent.engine.experts.loading import ExpertNames, PieceReader, check_experts, fill_expert
from ftagent.engine.experts.stored import RowBuffer, StoredRows, describe
from ftagent.engine.load import Opened, open_model
from ftagent.engine.models.decoder import build_weights
from ftagent.engine.options import EngineOptions
from ftagent.engine.weights.direct import BLOCK_BYTES, aligned_bytes
from ftagent.engine.weights.ftw import (
    CHUNK_BYTES,
    PARTIAL,
    SUFFIX,
    FtwSet,
    FtwTensor,
    align_of,
    is_ftw,
    open_set,
    placed,
)
from ftagent.engine.weights.ftw_reader import FtwCheckpoint, digest_of, open_ftw
from ftagent.engine.weights.ftw_writer import (
    JOURNAL,
    Journal,
    SetPlan,
    ShardWriter,
    clear,
    must_be_empty,
    must_have_room,
    sync_directory,
)
from ftagent.engine.weights.safetensors import INDEX_NAME
from ftagent.engine.weights.source import Checker
from ftagent.errors import ConfigError, ConvertFailed, LoadFailed

SHARD_BYTES = 4000 * 2**20  # with its header a shard stays below the 4 GiB that some filesystems end at
GROUP_BYTES = 256 * 2**20  # what is written between two lines of the journal, about
THREADS = 4
WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    SUFFIX,
    PARTIAL,
    ".journal",
)

_Result = TypeVar("_Result")

Progress = Callable[[str, int, int], None]
"""What is being done ("writing", "checking"), bytes of it that are done, and all. One call at a time."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written. `bytes` are those of the shards."""

    directory: Path
    set: str
    shards: int
    tensors: int
    banks: int
    bytes: int
    resumed_bytes: int  # of them from an earlier conversion that was ended
    seconds: float


class _Bank(NamedTuple):
    names: ExpertNames
    format: ExpertFormat


class _Source(NamedTuple):
    """A checkpoint whose parts are named: dense tensors in the order of use, experts by layer."""

    opened: Opened
    dense: tuple[str, ...]
    banks: dict[str, _Bank]  # by the name of the bank


def convert(
    source: Path,
    target: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    restart: bool = False,
    threads: int = THREADS,
    progress: Progress | None = None,
) -> Converted:
    """Write `source` (safetensors) to `target` as FTW, or go on with what was begun there.

    `shard_bytes` is rounded down to whole blocks. Raises LoadFailed for a source that cannot be loaded,
    ConfigError for a target that is not fit, ConvertFailed when something stands in the way: no room, or a
    source that changes. What has been written stays, to be gone on with.
    """
    began = time.monotonic()
    found = _open_source(source, target)
    plan = _plan(found, shard_bytes // BLOCK_BYTES * BLOCK_BYTES)
    with _errors_named(target), ExitStack() as stack:
        target.mkdir(parents=True, exist_ok=True)
        if restart:
            clear(target)
        must_be_empty(target)
        writer = ShardWriter(target, plan)
        copies = _beside(source)
        need = writer.bytes + sum(file.stat().st_size for file in copies)
        must_have_room(target, need, [*writer.partials, *writer.finals])
        state = _state(found.opened)
        journal = Journal(target, plan.key(), state)
        stack.callback(journal.close)
        writer.open()
        stack.callback(writer.close)
        stack.callback(found.opened.checkpoint.close)
        resumed = _sum(tensor for tensor in plan.tensors if tensor.name in journal.done)
        _write(found, plan, writer, journal, _Meter("writing", _sum(plan.tensors), progress), threads)
        writer.finish(journal.done)
        if _state(found.opened) != state:
            raise ConvertFailed(f"{source}: changed while it was converted; start over with --restart")
        written = open_set(target, SUFFIX + PARTIAL)
        check_set(written, threads, progress)
        for file in copies:
            _copy(file, target)
        writer.rename()
        (target / JOURNAL).unlink()
        sync_directory(target)
    banks = sum(tensor.bank is not None for tensor in plan.tensors)
    seconds = time.monotonic() - began
    return Converted(
        target, written.digest, len(written.shards), len(plan.tensors), banks, writer.bytes, resumed, seconds
    )


def check(directory: Path, threads: int = THREADS, progress: Progress | None = None) -> FtwSet:
    """Read a whole FTW directory and hold it against its digests. Raises LoadFailed where it differs."""
    if not is_ftw(directory):
        raise LoadFailed(f"{directory}: no *{SUFFIX} file; only FTW directories can be checked")
    found = open_ftw(directory).found
    check_set(found, threads, progress)
    return found


def check_set(found: FtwSet, threads: int, progress: Progress | None = None) -> None:
    """As `check`, for a set that is open."""
    meter = _Meter("checking", _sum(found.tensors), progress)
    checkpoint, local = FtwCheckpoint(found), threading.local()

    def read(tensor: FtwTensor, chunk: int) -> None:
        begin, end = tensor.chunk_range(chunk)
        buffer = getattr(local, "buffer", None)
        if buffer is None or len(buffer) < end - begin:
            buffer = local.buffer = aligned_bytes(end - begin)
        checkpoint.read_chunk(tensor, chunk, buffer)
        meter.add(end - begin)

    try:
        with _workers(threads) as pool:
            _wait(
                [
                    pool.submit(read, tensor, chunk)
                    for tensor in found.tensors
                    for chunk in range(tensor.chunks)
                ]
            )
    finally:
        checkpoint.close()


class _Meter:
    """Counts bytes from several threads for a `Progress`."""

    def __init__(self, phase: str, total: int, progress: Progress | None) -> None:
        self._phase, self._total, self._progress = phase, total, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._phase, self._done, self._total)


def _open_source(source: Path, target: Path) -> _Source:
    if is_ftw(source):
        raise ConfigError(f"{source}: is FTW already; give the safetensors directory")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: a file; give a directory to write to")
    if source.resolve() == target.resolve():
        raise ConfigError(f"{target}: is the source; give another directory to write to")
    opened = open_model(source, EngineOptions(model=str(source), device="cpu"))
    checker = Checker(opened.checkpoint, opened.prefix, opened.dtype)
    build_weights(opened.config, checker)
    used = len(checker.asked)
    layouts = [names for names in opened.names if not isinstance(names, StoredRows)]
    for names in layouts:
        check_experts(checker, names, opened.config.experts, opened.shape)
    dense, experts = checker.asked[:used], set(checker.asked[used:])
    rest = sorted(opened.checkpoint.entries.keys() - experts - set(dense))
    banks = {
        f"experts.{layer}": _Bank(names, stored)
        for layer, names, stored in zip(opened.config.moe_layers, layouts, opened.formats, strict=True)
    }
    return _Source(opened, tuple(dict.fromkeys([*dense, *rest])), banks)


def _plan(source: _Source, shard_bytes: int) -> SetPlan:
    if shard_bytes <= 0:
        raise ConfigError(f"a shard holds at least {BLOCK_BYTES} bytes")
    opened = source.opened
    dense = [_dense(opened, name) for name in source.dense]
    rows = {name: _row_bytes(opened.shape, bank.format) for name, bank in source.banks.items()}
    experts = opened.config.experts
    align = align_of(dense, [row for row in rows.values() for _ in range(experts)])
    banks = [
        _planned(name, layer, (experts, -(-rows[name] // align) * align), opened.shape, bank.format)
        for layer, (name, bank) in zip(opened.config.moe_layers, source.banks.items(), strict=True)
    ]
    tensors = placed([*dense, *banks], align)
    return SetPlan(tuple(tensors), align, shard_bytes, fingerprint(opened.checkpoint))


def _dense(opened: Opened, name: str) -> FtwTensor:
    entry = opened.checkpoint.entries[name]
    return FtwTensor(name, entry.dtype, entry.shape, 0, entry.end - entry.begin, CHUNK_BYTES)


def _planned(
    name: str, layer: int, rows: tuple[int, int], shape: ExpertShape, stored: ExpertFormat
) -> FtwTensor:
    experts, stride = rows
    chunk = max(1, CHUNK_BYTES // stride) * stride
    return FtwTensor(name, "U8", rows, 0, experts * stride, chunk, bank=describe(layer, shape, stored))


def _row_bytes(shape: ExpertShape, stored: ExpertFormat) -> int:
    """Where the last piece of a row ends."""
    _, dtype, sizes, at = row_pieces(shape, stored)[-1]
    return at + torch.Size(sizes).numel() * dtype.itemsize


def _write(
    source: _Source, plan: SetPlan, writer: ShardWriter, journal: Journal, meter: _Meter, threads: int
) -> None:
    """Write all tensors that the journal does not name, a group at a time."""
    local = threading.local()

    def chunk_of(tensor: FtwTensor, chunk: int) -> str:
        if tensor.bank is None:
            found = _copy_chunk(source, tensor, chunk, writer, local)
        else:
            found = _pack_chunk(source, tensor, chunk, writer, local)
        begin, end = tensor.chunk_range(chunk)
        meter.add(end - begin)
        return found

    left = [tensor for tensor in plan.tensors if tensor.name not in journal.done]
    meter.add(_sum(plan.tensors) - _sum(left))
    with torch.inference_mode(), _workers(threads) as pool:
        for group in _groups(left):
            jobs = {
                tensor.name: [pool.submit(chunk_of, tensor, chunk) for chunk in range(tensor.chunks)]
                for tensor in group
            }
            digests = {name: _wait(found) for name, found in jobs.items()}
            writer.sync()
            journal.note(digests)


def _copy_chunk(
    source: _Source, tensor: FtwTensor, chunk: int, writer: ShardWriter, local: threading.local
) -> str:
    begin, end = tensor.chunk_range(chunk)
    if not hasattr(local, "buffer"):
        local.buffer = aligned_bytes(CHUNK_BYTES)
    piece = local.buffer[: end - begin]
    source.opened.checkpoint.read_bytes(tensor.name, begin, piece)
    writer.write(tensor.at + begin, piece)
    return digest_of([piece])


def _pack_chunk(
    source: _Source, tensor: FtwTensor, chunk: int, writer: ShardWriter, local: threading.local
) -> str:
    """Rows of a bank, one after the other."""
    opened, bank = source.opened, source.banks[tensor.name]
    experts, stride = tensor.shape
    key = (bank.format, experts)
    if getattr(local, "key", None) != key:
        local.key, local.row = key, RowBuffer(experts, opened.shape, bank.format)
        local.pieces = PieceReader(opened.checkpoint)
    begin, end = tensor.chunk_range(chunk)
    digest = hashlib.sha256()
    for expert in range(begin // stride, end // stride):
        fill_expert(local.pieces, bank.names, local.row, expert)
        (row,) = local.row.rows(expert, expert + 1, stride)
        digest.update(row.numpy().data)
        writer.write(tensor.at + expert * stride, row)
    return digest.hexdigest()


def _groups(tensors: Sequence[FtwTensor]) -> Iterator[list[FtwTensor]]:
    group: list[FtwTensor] = []
    for tensor in tensors:
        group.append(tensor)
        if _sum(group) >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _sum(tensors: Iterable[FtwTensor]) -> int:
    return sum(tensor.bytes for tensor in tensors)


@contextmanager
def _workers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that forget what has not begun when the body is left by an error."""
    before = torch.get_num_threads()
    # The copies of one expert are too small to share, and as many teams as workers would fight for cores.
    pool = ThreadPoolExecutor(threads, "convert", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _wait(jobs: Sequence[Future[_Result]]) -> list[_Result]:
    return [job.result() for job in jobs]


def _state(opened: Opened) -> dict[str, tuple[int, int]]:
    """Size and time of change of the files that are converted."""
    files = {entry.file for entry in opened.checkpoint.entries.values()} | {opened.directory / "config.json"}
    index = opened.directory / INDEX_NAME
    if index.exists():
        files.add(index)
    states = {file.name: file.stat() for file in files}
    return {name: (state.st_size, state.st_mtime_ns) for name, state in states.items()}


def _beside(source: Path) -> list[Path]:
    """What a model directory holds beside weights: config, tokenizer, template, licence."""
    return sorted(
        file
        for file in source.iterdir()
        if file.is_file()
        and not file.name.startswith(".")
        and file.suffix not in WEIGHTS
        and not file.name.endswith(".index.json")
    )


def _copy(file: Path, target: Path) -> None:
    partial = target / (file.name + PARTIAL)
    shutil.copyfile(file, partial)
    os.replace(partial, target / file.name)


@contextmanager
def _errors_named(target: Path) -> Iterator[None]:
    """Errors of the filesystem as what they mean for a conversion."""
    try:
        yield
    except OSError as error:
        raise ConvertFailed(f"{error.filename or target}: {error.strerror or error}") from error
