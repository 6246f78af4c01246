"""A Hugging Face checkpoint directory, checked from its headers before tensors are read. Nothing is mapped: a
file that is cut short meanwhile is then an error, not the end of the process.

Format: https://github.com/huggingface/safetensors (eight bytes header length, JSON header, data). Only files
in the directory itself count; copies of shards in sub-folders are ignored. Knows no model and no tensor's
meaning.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ftagent.engine.weights.direct import DirectFile
from ftagent.engine.weights.headers import MAX_HEADER_BYTES, are_counts, parse_object
from ftagent.errors import LoadFailed

if TYPE_CHECKING:
    from ftagent.engine.weights.ftw import FtwTensor

INDEX_NAME = "model.safetensors.index.json"
PIECE_BYTES = 8 * 2**20  # of a tensor that is converted on its way

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class TensorEntry(NamedTuple):
    """Where a tensor lies: bytes [begin, end) of `file`, counted from the start of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Checkpoint:
    """All tensors of a directory by name. Files are opened when the first of their tensors is read."""

    banks: Mapping[int, FtwTensor] = {}  # experts that are stored as rows of banks, by layer
    identity: str | None = None  # of the contents, where the format has one

    def __init__(self, directory: Path, entries: Mapping[str, TensorEntry]) -> None:
        self.directory = directory
        self.entries = entries
        self._files: dict[Path, DirectFile] = {}
        self._opening = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype. Raises LoadFailed for one that is not read here."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise LoadFailed(f"{entry.file}: tensor {name} has dtype {entry.dtype}, which is not supported")
        return DTYPES[entry.dtype]

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype, in memory of its own. Raises LoadFailed as `read_into` does."""
        found = torch.empty(self.entries[name].shape, dtype=self.dtype(name))
        self.read_bytes(name, 0, found.view(-1).view(torch.uint8))
        return found

    def load(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The values of a tensor as `dtype`, in memory of their own on `device`. What is converted or goes to
        a device passes through one piece of memory.
        """
        stored = self.dtype(name)
        if device.type == "cpu" and dtype == stored:
            return self.tensor(name)
        target = torch.empty(self.entries[name].shape, dtype=dtype, device=device)
        pieces = torch.split(target.view(-1), PIECE_BYTES // stored.itemsize)
        buffer = torch.empty(len(pieces[0]), dtype=stored)
        begin = 0
        for piece in pieces:
            part = buffer[: len(piece)]
            self.read_bytes(name, begin, part.view(torch.uint8))
            piece.copy_(part)
            begin += part.nbytes
        return target

    def read_into(self, name: str, target: torch.Tensor, part: int = 0, parts: int = 1) -> None:
        """Read `part` of `parts` equal parts of a tensor's bytes into `target` (uint8, of exactly that size).

        Safe to call from several threads. Raises LoadFailed when the file has
        become shorter or cannot be read.
        """
        entry = self.entries[name]
        size = (entry.end - entry.begin) // parts
        assert target.shape == (size,), f"{name}: {tuple(target.shape)} bytes for {size}"
        self.read_bytes(name, part * size, target)

    def read_bytes(self, name: str, begin: int, target: torch.Tensor) -> None:
        """Fill `target` (uint8) with a tensor's bytes from `begin` on. Otherwise as `read_into`."""
        entry = self.entries[name]
        self._file(entry.file).read_into([target], entry.begin + begin)

    def close(self) -> None:
        """Close the files that reading has opened. They are opened again when needed."""
        with self._opening:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, file: Path) -> DirectFile:
        with self._opening:
            if file not in self._files:  # a second opening would leak the first
                # Tensors do not lie on blocks here, and what the page cache keeps makes the next start quick.
                self._files[file] = DirectFile(file, direct=False)
            return self._files[file]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and check all headers of `directory`. No tensor data is read or mapped.

    Raises LoadFailed naming the file (and the missing bytes) for a missing or damaged index, shard or header.
    """
    index = directory / INDEX_NAME
    if index.is_file():
        return Checkpoint(directory, _entries_of_index(directory, index))
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise LoadFailed(f"{directory}: no *.safetensors file and no {INDEX_NAME}; give a model directory")
    entries: dict[str, TensorEntry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in entries:
                raise LoadFailed(
                    f"{file}: tensor {name} is also in {entries[name].file.name}; remove one file"
                )
            entries[name] = entry
    return Checkpoint(directory, entries)


def _entries_of_index(directory: Path, index: Path) -> dict[str, TensorEntry]:
    parsed = parse_object(index, index.read_bytes())
    weight_map = parsed.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(value, str) for value in weight_map.values()):
        raise LoadFailed(f"{index}: no usable weight_map; download the file again")
    headers: dict[str, dict[str, TensorEntry]] = {}
    for shard in sorted(set(weight_map.values())):
        file = directory / shard
        if Path(shard).name != shard:
            raise LoadFailed(f"{index}: names {shard!r}, which is not a plain file name")
        if not file.is_file():
            raise LoadFailed(f"{file}: shard is missing (named by {INDEX_NAME}); download it again")
        headers[shard] = read_header(file)
    entries: dict[str, TensorEntry] = {}
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise LoadFailed(f"{directory / shard}: tensor {name} is missing (named by {INDEX_NAME})")
        entries[name] = headers[shard][name]
    return entries


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Tensor entries of one safetensors file. Raises LoadFailed naming the file and what is wrong with it."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise LoadFailed(
                f"{file}: {8 - len(start)} bytes missing from the header length; download it again"
            )
        (length,) = struct.unpack("<Q", start)
        if length == 0:
            raise LoadFailed(f"{file}: header length is zero; download the file again")
        if length > size - 8:
            raise LoadFailed(
                f"{file}: header of {length} bytes reaches beyond the file: "
                f"{length - (size - 8)} bytes missing; download it again"
            )
        if length > MAX_HEADER_BYTES:
            raise LoadFailed(f"{file}: header of {length} bytes is over the limit of {MAX_HEADER_BYTES}")
        header = parse_object(file, opened.read(length))
    data = 8 + length
    entries = {
        name: _entry(file, name, value, data) for name, value in header.items() if name != "__metadata__"
    }
    last = max((entry.end for entry in entries.values()), default=data)
    if last > size:
        raise LoadFailed(f"{file}: cut short, {last - size} bytes missing; download it again")
    end = data
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:  # as the reference implementation demands
            wrong = "overlaps another" if entry.begin < end else "leaves a hole before it"
            raise LoadFailed(f"{file}: tensor {name} {wrong}; download the file again")
        end = entry.end
    if end != size:
        raise LoadFailed(f"{file}: {size - end} bytes too many; download it again")
    return entries


def _entry(file: Path, name: str, value: Any, data: int) -> TensorEntry:
    """Check one header item {"dtype", "shape", "data_offsets"}; offsets count from `data`."""
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise LoadFailed(f"{file}: header item {name} is damaged; download the file again") from error
    if not are_counts([*shape, begin, end]) or not isinstance(dtype, str) or begin > end:
        raise LoadFailed(f"{file}: header item {name} is damaged; download the file again")
    if dtype in DTYPES and end - begin != prod(shape) * DTYPES[dtype].itemsize:
        need = prod(shape) * DTYPES[dtype].itemsize
        raise LoadFailed(f"{file}: tensor {name} {list(shape)} {dtype} needs {need} bytes, has {end - begin}")
    return TensorEntry(file, dtype, shape, data + begin, data + end)
