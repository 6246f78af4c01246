"""FTW, the format in which weights lie as they are used: headers, checks, and where each tensor is.

`docs/ftw.md` specifies it. A set of shards holds one region of bytes; each shard begins with a header that
describes what its part of the region holds. Opening a set reads headers only and checks all of them. Knows no
model: what the rows of a bank mean is `experts.stored`'s.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ftagent.engine.weights.direct import BLOCK_BYTES
from ftagent.engine.weights.headers import MAX_HEADER_BYTES, are_counts, is_count, parse_object
from ftagent.engine.weights.safetensors import DTYPES
from ftagent.errors import LoadFailed

SUFFIX = ".ftw"
PARTIAL = ".partial"  # behind the suffix, until the whole set is written and checked
MAGIC = b"FTWSHARD"
VERSION = 1
PREFIX = struct.Struct("<8sII32s")  # magic, version, bytes of JSON, their SHA-256
CHUNK_BYTES = 8 * 2**20  # of a tensor's bytes to one digest, about
PACKED_ALIGN = 64
NO_DIGEST = "0" * 64

_DAMAGED = "the header is damaged; copy or convert the file again"


class Piece(NamedTuple):
    """A tensor inside each row of a bank, from byte `at` of the row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int

    @property
    def end(self) -> int:
        return self.at + prod(self.shape) * DTYPES[self.dtype].itemsize


class Bank(NamedTuple):
    """All routed experts of one layer: a row for each, made of the same pieces."""

    layer: int
    format: Mapping[str, Any]  # the fields of an ExpertFormat
    pieces: tuple[Piece, ...]


class FtwTensor(NamedTuple):
    """Bytes [at, at + bytes) of the region. A bank is a U8 tensor [experts, bytes of a row]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    bytes: int
    chunk: int  # bytes to a digest; whole rows of a bank
    digests: tuple[str, ...] = ()  # SHA-256 of each chunk, 64 hexadecimal digits
    bank: Bank | None = None

    @property
    def end(self) -> int:
        return self.at + self.bytes

    @property
    def chunks(self) -> int:
        return -(-self.bytes // self.chunk)

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Where a chunk begins and ends, counted from the tensor's start."""
        return index * self.chunk, min((index + 1) * self.chunk, self.bytes)


class Shard(NamedTuple):
    """Bytes [begin, end) of the region, in `file` from byte `data` on."""

    file: Path
    data: int
    number: int  # from 0
    begin: int
    end: int
    head: Mapping[str, Any]
    tensors: tuple[FtwTensor, ...]


class FtwSet(NamedTuple):
    """A checked set: shards in order, tensors in the order of the region."""

    directory: Path
    digest: str  # of all tensors: the same weights have the same
    source: str  # fingerprint of what it was made from
    shards: tuple[Shard, ...]
    tensors: tuple[FtwTensor, ...]

    @property
    def bytes(self) -> int:
        return self.shards[-1].end

    def extents(self, at: int, size: int) -> Iterator[tuple[int, int, int]]:
        """(shard, byte of its file, bytes) of the pieces in which a range of the region lies."""
        for index, shard in enumerate(self.shards):
            begin, end = max(at, shard.begin), min(at + size, shard.end)
            if begin < end:
                yield index, shard.data + begin - shard.begin, end - begin


def is_ftw(directory: Path) -> bool:
    """Whether a directory holds shards, finished or not."""
    return any(directory.glob(f"*{SUFFIX}")) or any(directory.glob(f"*{SUFFIX}{PARTIAL}"))


def shard_name(index: int, count: int) -> str:
    return f"model-{index + 1:05d}-of-{count:05d}{SUFFIX}"


def align_of(tensors: Iterable[FtwTensor], rows: Iterable[int]) -> int:
    """The alignment of a set: blocks for direct reads, or cache lines where blocks would add more than a
    sixty-fourth to it. `rows` are the bytes of all rows of banks.
    """
    sizes = [tensor.bytes for tensor in tensors if tensor.bank is None] + list(rows)
    padding = sum(-size % BLOCK_BYTES for size in sizes)
    return BLOCK_BYTES if padding * 64 <= sum(sizes) else PACKED_ALIGN


def placed(tensors: Iterable[FtwTensor], align: int) -> list[FtwTensor]:
    """The tensors one after the other in the region, each on a multiple of `align`."""
    found: list[FtwTensor] = []
    at = 0
    for tensor in tensors:
        found.append(tensor._replace(at=at))
        at += -(-tensor.bytes // align) * align
    return found


def ranges(tensors: Sequence[FtwTensor], shard_bytes: int) -> list[tuple[int, int]]:
    """The parts of the region that shards of `shard_bytes` (a multiple of a block) hold."""
    size = -(-max((tensor.end for tensor in tensors), default=0) // BLOCK_BYTES) * BLOCK_BYTES
    return [(begin, min(begin + shard_bytes, size)) for begin in range(0, max(size, 1), shard_bytes)]


def set_digest(tensors: Iterable[FtwTensor]) -> str:
    """SHA-256 over the descriptions, and thereby the contents, of all tensors in the order of the region."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(_compact(_described(tensor)) + b"\n")
    return digest.hexdigest()


def encode_header(head: Mapping[str, Any], tensors: Iterable[FtwTensor]) -> bytes:
    """A header padded to whole blocks: its length depends on neither digests nor the set's digest."""
    blank = [tensor._replace(digests=tensor.digests or (NO_DIGEST,) * tensor.chunks) for tensor in tensors]
    text = _compact({**head, "tensors": [_described(tensor) for tensor in blank]})
    prefix = PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    return (prefix + text).ljust(-(-(PREFIX.size + len(text)) // BLOCK_BYTES) * BLOCK_BYTES, b"\0")


def open_set(directory: Path, suffix: str = SUFFIX) -> FtwSet:
    """Read and check the headers of all shards. Tensor data is neither read nor mapped.

    Raises LoadFailed naming the file, and missing bytes where there are any, for shards that are cut short,
    damaged, missing, there twice, or of different sets.
    """
    files = sorted(directory.glob(f"*{suffix}"))
    shards = sorted((read_shard(file) for file in files), key=lambda shard: shard.number)
    if not shards:
        raise LoadFailed(f"{directory}: the conversion to FTW was not finished; run ftagent convert again")
    first = shards[0]
    for shard, other in zip(shards[1:], shards, strict=False):
        for key in ("set", "shards", "align", "bytes", "source"):
            if shard.head[key] != first.head[key]:
                raise LoadFailed(
                    f"{shard.file}: belongs to another set than {first.file.name}; remove one of them"
                )
        if shard.number == other.number:
            raise LoadFailed(
                f"{shard.file}: shard {shard.number + 1} is also in {other.file.name}; remove one of them"
            )
    _all_there(directory, shards)
    tensors = _merged(shards)
    if set_digest(tensors) != first.head["set"]:
        raise LoadFailed(f"{first.file}: the headers do not make up the set that they name; convert again")
    return FtwSet(directory, first.head["set"], first.head["source"], tuple(shards), tensors)


def read_shard(file: Path) -> Shard:
    """The header of one shard, checked by itself. Raises LoadFailed."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            prefix = opened.read(PREFIX.size)
            if len(prefix) < PREFIX.size:
                raise LoadFailed(f"{file}: {PREFIX.size - len(prefix)} bytes missing from the header")
            magic, version, length, digest = PREFIX.unpack(prefix)
            if magic != MAGIC:
                raise LoadFailed(f"{file}: not an FTW shard, or one that was not finished; convert again")
            if version != VERSION:
                raise LoadFailed(
                    f"{file}: FTW version {version}, this reads version {VERSION}; convert again"
                )
            if length > size - PREFIX.size:
                missing = length - (size - PREFIX.size)
                raise LoadFailed(f"{file}: cut short in the header, {missing} bytes missing; copy it again")
            if length > MAX_HEADER_BYTES:
                raise LoadFailed(f"{file}: header of {length} bytes is over the limit of {MAX_HEADER_BYTES}")
            text = opened.read(length)
    except OSError as error:
        raise LoadFailed(f"{file}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(text).digest() != digest:
        raise LoadFailed(f"{file}: {_DAMAGED} (its checksum is wrong)")
    shard = _shard(file, -(-(PREFIX.size + length) // BLOCK_BYTES) * BLOCK_BYTES, parse_object(file, text))
    need = shard.data + shard.end - shard.begin
    if size < need:
        raise LoadFailed(f"{file}: cut short, {need - size} bytes missing; copy it again")
    if size > need:
        raise LoadFailed(f"{file}: {size - need} bytes too many; copy it again")
    return shard


def _shard(file: Path, data: int, head: dict[str, Any]) -> Shard:
    number, count, begin, end, whole = (
        _count(file, head, key) for key in ("shard", "shards", "begin", "end", "bytes")
    )
    align, items = _count(file, head, "align"), head.get("tensors")
    texts = all(isinstance(head.get(key), str) for key in ("set", "source"))
    if not texts or not isinstance(items, list) or align not in (PACKED_ALIGN, BLOCK_BYTES):
        raise LoadFailed(f"{file}: {_DAMAGED}")
    if not (number < count and begin <= end <= whole) or begin % BLOCK_BYTES:
        raise LoadFailed(f"{file}: {_DAMAGED}")
    tensors = tuple(_tensor(file, item) for item in items)
    for tensor in tensors:
        here = (begin < tensor.end and tensor.at < end) or not tensor.bytes
        if tensor.at % align or tensor.end > whole or not here:
            raise LoadFailed(f"{file}: tensor {tensor.name} does not lie in this shard; {_DAMAGED}")
    return Shard(file, data, number, begin, end, head, tensors)


def _count(file: Path, head: Mapping[str, Any], key: str) -> int:
    value = head.get(key)
    if not is_count(value):
        raise LoadFailed(f"{file}: {_DAMAGED}")
    return value


def _tensor(file: Path, item: Any) -> FtwTensor:
    try:
        bank = item.get("bank")
        tensor = FtwTensor(
            item["name"],
            item["dtype"],
            tuple(item["shape"]),
            item["at"],
            item["bytes"],
            item["chunk"],
            tuple(item["sha256"]),
            None if bank is None else _bank(bank),
        )
        good = _is_sound(tensor)
    except (AttributeError, KeyError, TypeError, ValueError):
        good = False
    if not good:
        name = item.get("name") if isinstance(item, dict) else None
        raise LoadFailed(f"{file}: what it says of tensor {str(name)[:200]} is wrong; {_DAMAGED}")
    return tensor


def _bank(item: Any) -> Bank:
    pieces = tuple(
        Piece(piece["name"], piece["dtype"], tuple(piece["shape"]), piece["at"]) for piece in item["pieces"]
    )
    return Bank(item["layer"], dict(item["format"]), pieces)


def _is_sound(tensor: FtwTensor) -> bool:
    """Whether sizes, shapes and the number of digests fit together."""
    texts = (tensor.name, tensor.dtype, *tensor.digests)
    numbers = [*tensor.shape, tensor.at, tensor.bytes, tensor.chunk]
    if not all(isinstance(text, str) for text in texts) or not are_counts(numbers) or not tensor.chunk:
        return False
    size = prod(tensor.shape) * DTYPES[tensor.dtype].itemsize if tensor.dtype in DTYPES else tensor.bytes
    whole = size == tensor.bytes and len(tensor.digests) == tensor.chunks
    if not whole or any(len(digest) != 64 for digest in tensor.digests):
        return False
    return tensor.bank is None or _is_sound_bank(tensor, tensor.bank)


def _is_sound_bank(tensor: FtwTensor, bank: Bank) -> bool:
    if tensor.dtype != "U8" or len(tensor.shape) != 2 or not is_count(bank.layer) or not tensor.bytes:
        return False
    stride = tensor.shape[1]
    return tensor.chunk % stride == 0 and all(
        isinstance(piece.name, str)
        and piece.dtype in DTYPES
        and are_counts([*piece.shape, piece.at])
        and piece.end <= stride
        for piece in bank.pieces
    )


def _all_there(directory: Path, shards: Sequence[Shard]) -> None:
    count, end = shards[0].head["shards"], 0
    there = {shard.number for shard in shards}
    if len(shards) != count:
        missing = next(number for number in range(count) if number not in there)
        where = directory / shard_name(missing, count)
        raise LoadFailed(f"{where}: shard {missing + 1} of {count} is missing; copy it again")
    for shard in shards:
        if shard.begin != end:
            raise LoadFailed(f"{shard.file}: does not begin where shard {shard.number} ends; {_DAMAGED}")
        end = shard.end
    if end != shards[0].head["bytes"]:
        raise LoadFailed(f"{shards[-1].file}: does not end where the set ends; {_DAMAGED}")


def _merged(shards: Sequence[Shard]) -> tuple[FtwTensor, ...]:
    """All tensors in the order of the region. One that crosses a border is described by both shards."""
    found: dict[str, FtwTensor] = {}
    end = 0
    for shard in shards:
        for tensor in shard.tensors:
            known = found.get(tensor.name)
            if known is None:
                if tensor.at < end:
                    raise LoadFailed(f"{shard.file}: tensor {tensor.name} lies in another; {_DAMAGED}")
                found[tensor.name] = tensor
                end = tensor.end
            elif known != tensor:
                raise LoadFailed(f"{shard.file}: tensor {tensor.name} is described twice; {_DAMAGED}")
    layers = [tensor.bank.layer for tensor in found.values() if tensor.bank]
    if len(set(layers)) != len(layers):
        raise LoadFailed(f"{shards[0].file}: one layer's experts are there twice; {_DAMAGED}")
    return tuple(found.values())


def _described(tensor: FtwTensor) -> dict[str, Any]:
    item = tensor._asdict()
    item["sha256"] = item.pop("digests")
    if tensor.bank is None:
        del item["bank"]
    else:
        pieces = [piece._asdict() for piece in tensor.bank.pieces]
        item["bank"] = {**tensor.bank._asdict(), "pieces": pieces}
    return item


def _compact(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
