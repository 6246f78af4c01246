"""Reads FTW as docs/ftw.md says, and shares no code with the product: the oracle of its tests."""

from __future__ import annotations

import hashlib
import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 4096
WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8}


class Book:
    """`tensors` as described, `content` by name."""

    def __init__(self, directory: Path) -> None:
        heads = []
        for file in directory.glob("*.ftw"):
            data = file.read_bytes()
            magic, version, length = struct.unpack("<8sII", data[:16])
            assert (magic, version) == (b"FTWSHARD", 1)
            text = data[48 : 48 + length]
            assert hashlib.sha256(text).digest() == data[16:48]
            start = -(-(48 + length) // BLOCK) * BLOCK
            assert not any(data[48 + length : start])
            heads.append((json.loads(text), data[start:]))
        heads.sort(key=lambda item: item[0]["shard"])
        self.heads = [head for head, _ in heads]
        assert [head["shard"] for head in self.heads] == list(range(self.heads[0]["shards"]))
        self.region = b"".join(part for _, part in heads)
        assert len(self.region) == self.heads[0]["bytes"]
        self.tensors: dict[str, dict[str, Any]] = {}
        for head, part in heads:
            assert head["end"] - head["begin"] == len(part)
            for item in head["tensors"]:
                assert self.tensors.setdefault(item["name"], item) == item
        self._check()

    def _check(self) -> None:
        digest, end = hashlib.sha256(), 0
        for item in self.tensors.values():
            assert item["at"] % self.heads[0]["align"] == 0
            assert item["at"] >= end
            assert not any(self.region[end : item["at"]])
            end = item["at"] + item["bytes"]
            content = self.content(item["name"])
            chunks = [content[at : at + item["chunk"]] for at in range(0, len(content), item["chunk"])]
            assert [hashlib.sha256(chunk).hexdigest() for chunk in chunks] == item["sha256"]
            digest.update(json.dumps(item, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        assert not any(self.region[end:])
        assert {head["set"] for head in self.heads} == {digest.hexdigest()}

    def content(self, name: str) -> bytes:
        item = self.tensors[name]
        return self.region[item["at"] : item["at"] + item["bytes"]]

    def pieces(self, layer: int, expert: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """Name to dtype, shape and bytes, of one expert."""
        item = self.tensors[f"experts.{layer}"]
        rows, stride = item["shape"]
        assert item["bytes"] == rows * stride
        assert item["chunk"] % stride == 0
        row = self.content(item["name"])[expert * stride : (expert + 1) * stride]
        found, end = {}, 0
        for piece in item["bank"]["pieces"]:
            at, size = piece["at"], prod(piece["shape"]) * WIDTH[piece["dtype"]]
            assert at % 64 == 0
            assert not any(row[end:at])
            end = at + size
            found[piece["name"]] = (piece["dtype"], tuple(piece["shape"]), row[at:end])
        assert not any(row[end:])
        return found


def values(dtype: str, shape: tuple[int, ...], content: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """As float32, or as uint8 where that is stored."""
    if dtype == "BF16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    kind = {"F16": np.float16, "F32": np.float32}.get(dtype, np.uint8)
    found = np.frombuffer(content, kind).reshape(shape)
    return found if kind is np.uint8 else found.astype(np.float32)
