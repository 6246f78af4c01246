"""Small FTW sets without a model, and headers to be meddled with."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ftagent.engine.weights.ftw import Bank, FtwTensor, Piece, placed
from ftagent.engine.weights.ftw_reader import digest_of
from ftagent.engine.weights.ftw_writer import SetPlan, ShardWriter

BLOCK = 4096
TENSORS = {
    "wide": torch.arange(3 * BLOCK, dtype=torch.int64).to(torch.float32).view(3, BLOCK),
    "norm": torch.arange(100).to(torch.bfloat16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.empty(0, 4),
    "codes": torch.arange(9000).to(torch.uint8).view(9, 1000),
}
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
ROWS, STRIDE = 6, 2 * BLOCK


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def bank_rows() -> torch.Tensor:
    return torch.randint(0, 256, (ROWS, STRIDE), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def write_set(
    directory: Path,
    tensors: Mapping[str, torch.Tensor] = TENSORS,
    *,
    shard_bytes: int = 3 * BLOCK,
    align: int = BLOCK,
    chunk: int = 5000,
    with_bank: bool = True,
) -> Sequence[Path]:
    """Write a set, unless told otherwise with a bank of rows of layer 3. Returns its shards in order."""
    contents = {name: raw(tensor) for name, tensor in tensors.items()}
    plan = [
        FtwTensor(name, NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes, chunk)
        for name, tensor in tensors.items()
    ]
    if with_bank:
        bank = Bank(3, {"dtype": "bfloat16", "parts": 2}, (Piece("values", "BF16", (STRIDE // 2,), 0),))
        plan.append(FtwTensor("experts.3", "U8", (ROWS, STRIDE), 0, ROWS * STRIDE, 2 * STRIDE, bank=bank))
        contents["experts.3"] = bank_rows().view(-1)
    found = SetPlan(tuple(placed(plan, align)), align, shard_bytes, "a test")
    directory.mkdir(exist_ok=True)
    writer = ShardWriter(directory, found)
    writer.open()
    digests = {}
    for tensor in found.tensors:
        content = contents[tensor.name]
        writer.write(tensor.at, content)
        spans = [tensor.chunk_range(index) for index in range(tensor.chunks)]
        digests[tensor.name] = [digest_of([content[begin:end]]) for begin, end in spans]
    writer.finish(digests)
    writer.rename()
    writer.close()
    return writer.finals


def read_head(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    (length,) = struct.unpack("<I", data[12:16])
    found: dict[str, Any] = json.loads(data[48 : 48 + length])
    return found


def write_head(file: Path, head: Any) -> None:
    """Replace a header by one whose checksum is right. The data stays."""
    data = file.read_bytes()
    (length,) = struct.unpack("<I", data[12:16])
    start = -(-(48 + length) // BLOCK) * BLOCK
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    prefix = struct.pack("<8sII32s", b"FTWSHARD", 1, len(text), hashlib.sha256(text).digest())
    whole = (prefix + text).ljust(-(-(48 + len(text)) // BLOCK) * BLOCK, b"\0")
    file.write_bytes(whole + data[start:])
