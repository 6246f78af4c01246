"""Random damage to headers, indexes and files of both formats: refused with LoadFailed, or read right.

Nothing else may happen: no other error, no memory taken because a header says so, no tensor that was never
there. What is right is said by safetensors' own reader, and for FTW by the bytes that were written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save_file

from ftagent.engine.experts.bank import ExpertShape
from ftagent.engine.experts.stored import find_rows
from ftagent.engine.weights.checkpoint import open_weights
from ftagent.engine.weights.ftw_reader import FtwCheckpoint, open_ftw
from ftagent.engine.weights.safetensors import DTYPES, INDEX_NAME, open_checkpoint
from ftagent.errors import LoadFailed
from tests.engine.weights.sets import ROWS, STRIDE, TENSORS, bank_rows, raw, read_head, write_head, write_set

SLACK = 4 * 2**20  # of memory: parsers, messages, this test
PLAIN = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5).to(torch.bfloat16),
    "c": torch.tensor([1, 255], dtype=torch.uint8),
    "empty": torch.empty(0, 4),
}
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from(
        [2**31, 2**32, 2**63 - 1, 2**64, 10**30, -1, 0.5, 1e308, "", "x", "F32", "BF16", "U8", "F64"]
    ),
    st.lists(st.one_of(st.integers(-1, 9000), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.sampled_from(["dtype", "shape", "at", "x"]), st.integers(0, 9), max_size=3),
)
quick = settings(deadline=None, max_examples=300)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def meddled(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value of which one to three places were replaced, removed, repeated or renamed."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(value))
        if not found:
            break
        *path, key = draw(st.sampled_from(found))
        inner = value
        for step in path:
            inner = inner[step]
        how = draw(st.sampled_from(["replace", "shift", "remove", "repeat", "rename"]))
        if how == "shift" and type(inner.get(key) if isinstance(inner, dict) else inner[key]) is int:
            inner[key] += draw(st.sampled_from([-4096, -64, -8, -1, 1, 8, 64, 4096]))
        elif how == "remove":
            del inner[key]
        elif how == "repeat" and isinstance(inner, list):
            inner.append(inner[key])
        elif how == "rename" and isinstance(inner, dict):
            inner[draw(st.sampled_from(["name", "dtype", "x", "a", "norm"]))] = inner.pop(key)
        else:
            inner[key] = draw(odd)
    return value


@contextmanager
def little_memory(directory: Path) -> Iterator[None]:
    size = sum(file.stat().st_size for file in directory.iterdir())
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= 8 * size + SLACK
    finally:
        tracemalloc.stop()


@functools.cache
def written(shard_bytes: int, align: int) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as name:
        files = write_set(Path(name), shard_bytes=shard_bytes, align=align)
        return [(file.name, file.read_bytes()) for file in files]


def fresh_set(directory: str, shard_bytes: int = 3 * 4096, align: int = 4096) -> list[Path]:
    files = []
    for name, content in written(shard_bytes, align):
        files.append(Path(directory) / name)
        files[-1].write_bytes(content)
    return files


def ftw_is_refused_or_right(directory: Path) -> None:
    with little_memory(directory):
        try:
            checkpoint = open_weights(directory)
        except LoadFailed:
            return
    assert isinstance(checkpoint, FtwCheckpoint)
    checkpoint.verify = True
    try:
        for name in checkpoint.entries:
            assert torch.equal(checkpoint.tensor(name), TENSORS[name])
        assert set(checkpoint.entries) == set(TENSORS)
        for chunk in range(3):
            rows = torch.zeros(2, STRIDE, dtype=torch.uint8)
            checkpoint.read_rows(checkpoint.banks[3], chunk, list(rows))
            assert torch.equal(rows, bank_rows()[2 * chunk : 2 * chunk + 2])
        assert ROWS == 6
    except LoadFailed:  # damage to the data itself, found by its digest
        pass
    finally:
        checkpoint.close()


@given(data=st.data(), align=st.sampled_from([64, 4096]))
@quick
def test_ftw_headers_with_checksums_that_are_right(data: st.DataObject, align: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        files = fresh_set(name, align=align)
        which = data.draw(st.integers(0, len(files) - 1))
        write_head(files[which], data.draw(meddled(read_head(files[which]))))
        ftw_is_refused_or_right(Path(name))


@given(data=st.data())
@quick
def test_ftw_headers_changed_in_all_shards_alike(data: st.DataObject) -> None:
    """As somebody would who makes such files: the same mistake everywhere."""
    with tempfile.TemporaryDirectory() as name:
        (file,) = fresh_set(name, shard_bytes=2**30)
        write_head(file, data.draw(meddled(read_head(file))))
        ftw_is_refused_or_right(Path(name))


@given(data=st.data())
@quick
def test_ftw_headers_whose_set_digest_was_made_anew(data: st.DataObject) -> None:
    """As another writer's mistake would look. What is opened is what the header says, byte for byte."""
    with tempfile.TemporaryDirectory() as name:
        (file,) = fresh_set(name, shard_bytes=2**30)
        head = data.draw(meddled(read_head(file)))
        if isinstance(head.get("tensors"), list):
            digest = hashlib.sha256()
            for item in head["tensors"]:
                digest.update(json.dumps(item, sort_keys=True, separators=(",", ":")).encode() + b"\n")
            head["set"] = digest.hexdigest()
        write_head(file, head)
        with little_memory(Path(name)):
            try:
                checkpoint = open_ftw(Path(name))
            except LoadFailed:
                return
        region = file.read_bytes()[-head["bytes"] :]
        said = {item["name"]: item for item in head["tensors"]}
        assert set(checkpoint.entries) | {item.name for item in checkpoint.banks.values()} == set(said)
        for tensor in checkpoint.entries:
            if checkpoint.entries[tensor].dtype not in DTYPES:
                continue
            item, found = said[tensor], checkpoint.tensor(tensor)
            assert list(found.shape) == item["shape"]
            assert bytes(raw(found).numpy()) == region[item["at"] : item["at"] + item["bytes"]]
        for layer in checkpoint.banks:
            try:
                rows = find_rows(checkpoint, layer, ROWS, ExpertShape(hidden=64, intermediate=21))
            except LoadFailed:
                continue
            assert rows.tensor.shape == (ROWS, STRIDE)
        checkpoint.close()


@given(text=st.one_of(st.binary(max_size=200), odd.map(lambda value: json.dumps(value).encode())))
@example(text=b"[" * 100_000)
@example(text=b'{"a":' * 50_000)
@example(text=b"9" * 5000)
@example(text=b'{"tensors":[],"tensors":[]}')
@example(text=b'{"shard":NaN}')
@quick
def test_any_text_as_a_header(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (file,) = fresh_set(name, shard_bytes=2**30)
        write_head(file, text)
        ftw_is_refused_or_right(Path(name))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
        safetensors_are_refused_or_right(Path(name))
    with tempfile.TemporaryDirectory() as name:
        save_file(PLAIN, Path(name) / "model.safetensors")
        (Path(name) / INDEX_NAME).write_bytes(text)
        safetensors_are_refused_or_right(Path(name))


@st.composite
def damage(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes changed, cut off, added, or moved."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.one_of(st.integers(0, min(len(found), 400)), st.integers(0, len(found))))
        how = draw(st.sampled_from(["change", "cut", "insert", "double"]))
        if how == "change":
            found[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif how == "cut":
            del found[at : at + draw(st.sampled_from([1, 8, 4096, len(found)]))]
        elif how == "insert":
            found[at:at] = draw(st.binary(max_size=9))
        else:
            found[at:at] = found[at : at + 4096]
    return bytes(found)


@given(data=st.data())
@quick
def test_ftw_files_with_any_damage(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        files = fresh_set(name)
        file = files[data.draw(st.integers(0, len(files) - 1))]
        file.write_bytes(data.draw(damage(file.read_bytes())))
        ftw_is_refused_or_right(Path(name))


def safetensors_are_refused_or_right(directory: Path) -> None:
    """What is opened, the reference implementation opens too, and finds the same in it."""
    with little_memory(directory):
        try:
            checkpoint = open_checkpoint(directory)
        except LoadFailed:
            return
    theirs: dict[str, Any] = {}
    for file in {entry.file for entry in checkpoint.entries.values()}:
        try:
            theirs.update(deserialize(file.read_bytes()))  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            if all(entry.dtype in DTYPES for entry in checkpoint.entries.values()):
                raise AssertionError(f"opened what the reference refuses: {error}") from error
            return  # a type that neither knows, which is refused here when it is read
    for name, entry in checkpoint.entries.items():
        try:
            ours = checkpoint.tensor(name)
        except LoadFailed:  # a dtype that is not read here
            continue
        assert (entry.dtype, list(entry.shape)) == (theirs[name]["dtype"], list(theirs[name]["shape"]))
        assert bytes(raw(ours).numpy()) == bytes(theirs[name]["data"])


def with_header(content: bytes, head: Any) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


@given(data=st.data(), damaged=st.booleans())
@quick
def test_safetensors_with_any_damage(data: st.DataObject, damaged: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.safetensors"
        save_file(PLAIN, file)
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        if damaged:
            content = data.draw(damage(content))
        else:
            content = with_header(content, data.draw(meddled(json.loads(content[8 : 8 + length]))))
        file.write_bytes(content)
        safetensors_are_refused_or_right(Path(name))


@given(data=st.data())
@quick
def test_indexes_with_any_damage(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        save_file({"a": PLAIN["a"]}, directory / "one.safetensors")
        save_file({"b": PLAIN["b"], "c": PLAIN["c"]}, directory / "two.safetensors")
        weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
        index = {"metadata": {"total_size": 36}, "weight_map": weight_map}
        if data.draw(st.booleans()):
            text = json.dumps(data.draw(meddled(index))).encode()
        else:
            text = data.draw(damage(json.dumps(index).encode()))
        (directory / INDEX_NAME).write_bytes(text)
        safetensors_are_refused_or_right(directory)
