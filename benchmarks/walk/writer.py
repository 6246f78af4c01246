"""Writes a checkpoint directory: safetensors shards in the published layout, by several threads.

Format: https://github.com/huggingface/safetensors. A shard's header is written first, from names and shapes,
so tensors can be put in any order while later ones are still being drawn. Knows no meaning of a tensor.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

PIECE = 16 * 2**20  # bytes of one write
STAGING = 8  # pinned buffers between device and file: as many tensors are written at once
DTYPE = "BF16"


class Part(NamedTuple):
    """A tensor of the file as bytes of one that is put: `length` bytes from `start`."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int


def whole(name: str, shape: Sequence[int]) -> list[Part]:
    """A tensor that is put as it is stored."""
    return [Part(name, tuple(shape), 0, 2 * prod(shape))]


def by_expert(stem: str, matrices: Mapping[str, int], shape: Sequence[int]) -> list[Part]:
    """One tensor per expert and matrix, from a stack [experts, rows of all matrices, columns]."""
    experts, _, columns = shape
    parts, start = [], 0
    for expert in range(experts):
        for matrix, rows in matrices.items():
            length = 2 * rows * columns
            parts.append(Part(f"{stem}.{expert}.{matrix}.weight", (rows, columns), start, length))
            start += length
    return parts


class Shard:
    """One file under way."""

    def __init__(self, path: Path, parts: Iterable[Part]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self.places: dict[str, int] = {}
        end = 0
        for part in parts:
            offsets = [end, end + part.length]
            header[part.name] = {"dtype": DTYPE, "shape": list(part.shape), "data_offsets": offsets}
            self.places[part.name] = end
            end += part.length
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        data = 8 + len(text)
        self.places = {name: data + place for name, place in self.places.items()}
        self.bytes = end
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        _write(self.file, memoryview(struct.pack("<Q", len(text)) + text), 0)
        os.ftruncate(self.file, data + end)


class Buffer:
    """Pinned memory and the write that may still read from it."""

    def __init__(self, size: int) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.write: Future[None] | None = None


class CheckpointWriter:
    """Files of one directory. A context manager: leaving it waits for all writes and writes the index."""

    def __init__(self, directory: Path, shards: int, threads: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._shards = shards
        self._pool = ThreadPoolExecutor(threads)
        self._index: dict[str, str] = {}
        self._open: list[Shard] = []
        self._writes: list[Future[None]] = []
        self._buffers: list[Buffer] = []
        self.bytes = 0

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for write in self._writes:
                write.result()
        finally:
            self._pool.shutdown()
            for shard in self._open:
                os.close(shard.file)
        if error[0] is None:
            index = {"metadata": {"total_size": self.bytes}, "weight_map": self._index}
            path = self._directory / "model.safetensors.index.json"
            path.write_text(json.dumps(index), encoding="utf-8")

    def shard(self, parts: Sequence[Part]) -> Shard:
        """Begin the next file, which will hold `parts`."""
        name = f"model-{len(self._open) + 1:05d}-of-{self._shards:05d}.safetensors"
        shard = Shard(self._directory / name, parts)
        self._open.append(shard)
        self._index |= dict.fromkeys(shard.places, name)
        self.bytes += shard.bytes
        return shard

    def put(self, shard: Shard, tensor: torch.Tensor, parts: Sequence[Part]) -> None:
        """Write a BF16 tensor as `parts`. It must not be changed afterwards."""
        assert tensor.dtype == torch.bfloat16
        assert tensor.is_contiguous()
        raw = tensor.view(-1).view(torch.uint8)
        buffer = self._buffer(raw.numel()) if raw.is_cuda and raw.numel() >= PIECE else None
        if buffer is None:
            view = memoryview(raw.cpu().numpy().data)
        else:
            buffer.bytes[: raw.numel()].copy_(raw)
            view = memoryview(buffer.bytes.numpy().data)
        # One thread for a tensor: a file takes one write at a time, so threads are of use on different files.
        pieces = [piece for part in parts for piece in _pieces(part, shard.places[part.name])]
        write = self._pool.submit(_write_all, shard.file, view, pieces)
        if buffer is not None:
            buffer.write = write
        self._writes.append(write)

    def wait(self) -> None:
        """Until everything that was put is written."""
        for write in self._writes:
            write.result()
        self._writes.clear()

    def _buffer(self, size: int) -> Buffer:
        """A pinned buffer that no write reads from any more; the oldest one when all are in use."""
        while len(self._buffers) >= STAGING:
            oldest = self._buffers.pop(0)
            if oldest.write is not None:
                oldest.write.result()
            if oldest.bytes.numel() >= size:
                self._buffers.append(oldest)
                return oldest
        fresh = Buffer(max(size, PIECE))
        self._buffers.append(fresh)
        return fresh


def _pieces(part: Part, place: int) -> list[tuple[int, int, int]]:
    """(begin, end, place in the file) of each write."""
    return [
        (part.start + at, part.start + min(at + PIECE, part.length), place + at)
        for at in range(0, part.length, PIECE)
    ]


def _write_all(file: int, view: memoryview, pieces: Sequence[tuple[int, int, int]]) -> None:
    for begin, end, place in pieces:
        _write(file, view[begin:end], place)


def _write(file: int, data: memoryview, place: int) -> None:
    while len(data):
        count = os.pwrite(file, data, place)
        data, place = data[count:], place + count
