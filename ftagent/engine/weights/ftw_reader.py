"""A directory of FTW shards as a checkpoint: dense tensors by name, experts as rows straight into banks.

All reads are direct, on blocks, into the memory that keeps the bytes; see `direct` for where that is not
possible. With `verify` every chunk is held against its digest as it arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ftagent.engine.weights.direct import BLOCK_BYTES, DirectFile, aligned_bytes
from ftagent.engine.weights.ftw import FtwSet, FtwTensor, open_set
from ftagent.engine.weights.safetensors import Checkpoint, TensorEntry
from ftagent.errors import LoadFailed

DENSE_READERS = 2  # threads that read the chunks of one tensor; those that fill banks read beside them


class FtwCheckpoint(Checkpoint):
    """A set of shards whose headers have been checked. Files are opened when they are first read."""

    mapped = False

    def __init__(self, found: FtwSet, verify: bool = False) -> None:
        dense = {tensor.name: _entry(found, tensor) for tensor in found.tensors if tensor.bank is None}
        super().__init__(found.directory, dense)
        self.found = found
        self.verify = verify
        self.identity = found.digest
        self.banks: Mapping[int, FtwTensor] = {
            tensor.bank.layer: tensor for tensor in found.tensors if tensor.bank is not None
        }
        self._tensors = {tensor.name: tensor for tensor in found.tensors}
        self._readers: ThreadPoolExecutor | None = None

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype, in memory of its own."""
        entry, tensor = self.entries[name], self._tensors[name]
        dtype = self.dtype(name)
        # Up to the end of the last block: there is padding, or another tensor, or the end of the region.
        room = aligned_bytes(min(-(-tensor.bytes // BLOCK_BYTES) * BLOCK_BYTES, self.found.bytes - tensor.at))
        if tensor.chunks > 1:
            pool = self._pool()
            jobs = [pool.submit(self._read_chunk, tensor, index, room) for index in range(tensor.chunks)]
            for job in jobs:
                job.result()
        elif tensor.chunks:
            self._read_chunk(tensor, 0, room)
        return room[: tensor.bytes].view(dtype).view(entry.shape)

    def read_bytes(self, name: str, begin: int, target: torch.Tensor) -> None:
        self._read(self._tensors[name].at + begin, [target])

    def read_rows(self, tensor: FtwTensor, chunk: int, rows: Sequence[torch.Tensor]) -> None:
        """Fill `rows` (uint8, a stored row's bytes each) with the rows of one chunk of a bank.

        Safe from several threads. Raises LoadFailed when a file has become shorter, cannot be read, or, with
        `verify`, holds other bytes than were written.
        """
        begin, _ = tensor.chunk_range(chunk)
        self._read(tensor.at + begin, rows)
        if self.verify:
            self.check(tensor, chunk, rows)

    def read_chunk(self, tensor: FtwTensor, chunk: int, target: torch.Tensor) -> None:
        """Any chunk of any tensor into `target`, held against its digest whatever `verify` says."""
        begin, end = tensor.chunk_range(chunk)
        self._read(tensor.at + begin, [target[: end - begin]])
        self.check(tensor, chunk, [target[: end - begin]])

    def check(self, tensor: FtwTensor, chunk: int, pieces: Sequence[torch.Tensor]) -> None:
        """Raise LoadFailed unless the pieces together are what was written as this chunk."""
        if digest_of(pieces) == tensor.digests[chunk]:
            return
        begin, end = tensor.chunk_range(chunk)
        index, offset, _ = next(self.found.extents(tensor.at + begin, end - begin))
        raise LoadFailed(
            f"{self.found.shards[index].file}: tensor {tensor.name} is damaged, within {end - begin} bytes "
            f"from byte {offset}; copy the file again, or convert again"
        )

    def forget(self, name: str) -> None:
        """Nothing is mapped."""

    def close(self) -> None:
        super().close()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown()

    def _read_chunk(self, tensor: FtwTensor, chunk: int, room: torch.Tensor) -> None:
        begin, end = tensor.chunk_range(chunk)
        last = chunk == tensor.chunks - 1
        self._read(tensor.at + begin, [room[begin:] if last else room[begin:end]])
        if self.verify:
            self.check(tensor, chunk, [room[begin:end]])

    def _read(self, at: int, targets: Sequence[torch.Tensor]) -> None:
        extents = list(self.found.extents(at, sum(map(len, targets))))
        rest = list(targets)
        for index, offset, size in extents:
            part, rest = _split(rest, size)
            self._file(self.found.shards[index].file).read_into(part, offset)

    def _file(self, file: Path) -> DirectFile:
        with self._opening:
            if file not in self._files:
                self._files[file] = DirectFile(file)
            return self._files[file]

    def _pool(self) -> ThreadPoolExecutor:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(DENSE_READERS, "dense")
        return self._readers


def open_ftw(directory: Path, verify: bool = False) -> FtwCheckpoint:
    """Check the headers of a directory's shards; see `ftw.open_set`. Raises LoadFailed."""
    return FtwCheckpoint(open_set(directory), verify)


def digest_of(pieces: Sequence[torch.Tensor]) -> str:
    """SHA-256 of uint8 tensors one after the other. Leaves the interpreter to others meanwhile."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.numpy().data)
    return digest.hexdigest()


def _entry(found: FtwSet, tensor: FtwTensor) -> TensorEntry:
    """Where a tensor begins; its end may lie in a later shard."""
    index = next((index for index, _, _ in found.extents(tensor.at, 1)), len(found.shards) - 1)
    shard = found.shards[index]
    begin = shard.data + tensor.at - shard.begin
    return TensorEntry(shard.file, tensor.dtype, tensor.shape, begin, begin + tensor.bytes)


def _split(targets: list[torch.Tensor], size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The first `size` bytes of some memory, and the rest."""
    first: list[torch.Tensor] = []
    for index, target in enumerate(targets):
        if size < len(target):
            return ([*first, target[:size]] if size else first), [target[size:], *targets[index + 1 :]]
        first.append(target)
        size -= len(target)
    return first, []
