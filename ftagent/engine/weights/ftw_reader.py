"""A directory of FTW shards as a checkpoint: dense tensors by name, experts as rows straight into banks.

All reads are direct, on blocks, into the memory that keeps the bytes; see `direct` for where that is not
possible. With `verify` every chunk is held against its digest as it arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from ftagent.engine.weights.direct import BLOCK_BYTES, DirectFile, aligned_bytes
from ftagent.engine.weights.ftw import FtwSet, FtwTensor, open_set
from ftagent.engine.weights.safetensors import Checkpoint, TensorEntry
from ftagent.errors import LoadFailed

DENSE_READERS = 2  # threads that read the chunks of one tensor; those that fill banks read beside them


class FtwCheckpoint(Checkpoint):
    """A set of shards whose headers have been checked. Files are opened when they are first read."""

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
        room = aligned_bytes(self._padded(tensor, tensor.bytes))
        if tensor.chunks > 1:
            begins = (tensor.chunk_range(chunk)[0] for chunk in range(tensor.chunks))
            jobs = [self._ahead(tensor, chunk, room[begin:]) for chunk, begin in enumerate(begins)]
            for job in jobs:
                job.result()
        elif tensor.chunks:
            self._fetch(tensor, 0, room)
        return room[: tensor.bytes].view(self.dtype(name)).view(entry.shape)

    def load(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """See `Checkpoint.load`. What is converted or goes to a device passes through two chunks of memory,
        one being read while the other is used.
        """
        entry, tensor, stored = self.entries[name], self._tensors[name], self.dtype(name)
        if device.type == "cpu" and dtype == stored:
            return self.tensor(name)
        if tensor.chunks < 2 or tensor.chunk % stored.itemsize:
            return self.tensor(name).to(device=device, dtype=dtype)
        target = torch.empty(entry.shape, dtype=dtype, device=device)
        flat, rooms = target.view(-1), [aligned_bytes(self._padded(tensor, tensor.chunk)) for _ in range(2)]
        ahead = self._ahead(tensor, 0, rooms[0])
        for chunk in range(tensor.chunks):
            ahead.result()
            if chunk + 1 < tensor.chunks:
                ahead = self._ahead(tensor, chunk + 1, rooms[(chunk + 1) % 2])
            begin, end = tensor.chunk_range(chunk)
            values = rooms[chunk % 2][: end - begin].view(stored)
            flat[begin // stored.itemsize : end // stored.itemsize].copy_(values)
        return target

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

    def close(self) -> None:
        super().close()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown()

    def _ahead(self, tensor: FtwTensor, chunk: int, room: torch.Tensor) -> Future[None]:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(DENSE_READERS, "dense")
        return self._readers.submit(self._fetch, tensor, chunk, room)

    def _fetch(self, tensor: FtwTensor, chunk: int, room: torch.Tensor) -> None:
        """Bring one chunk to the beginning of `room`, the last one with what fills its last block."""
        begin, end = tensor.chunk_range(chunk)
        size = end - begin
        wanted = size if end < tensor.bytes else min(self._padded(tensor, size, begin), len(room))
        self._read(tensor.at + begin, [room[:wanted]])
        if self.verify:
            self.check(tensor, chunk, [room[:size]])

    def _padded(self, tensor: FtwTensor, size: int, begin: int = 0) -> int:
        """`size` bytes from `begin` up to the end of a block: there is padding, or another tensor."""
        return min(-(-size // BLOCK_BYTES) * BLOCK_BYTES, self.found.bytes - tensor.at - begin)

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
