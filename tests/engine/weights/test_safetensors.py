"""Damaged checkpoints are refused from their headers, naming the file and what is missing."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import save_file

from ftagent.engine.weights.safetensors import INDEX_NAME, open_checkpoint
from ftagent.errors import LoadFailed

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5).to(torch.bfloat16),
    "c": torch.tensor([1, 255], dtype=torch.uint8),
    "empty": torch.empty(0, 4),
}


@pytest.fixture
def no_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a damaged file was mapped, or its tensors read")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr(os, "preadv", refuse)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": TENSORS["a"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": TENSORS["b"]}, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def test_reads_what_the_reference_wrote(single: Path) -> None:
    checkpoint = open_checkpoint(single)
    assert set(checkpoint.entries) == set(TENSORS)
    for name, tensor in TENSORS.items():
        found = checkpoint.tensor(name)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_tensors_have_memory_of_their_own(single: Path) -> None:
    checkpoint = open_checkpoint(single)
    first, second = checkpoint.tensor("a"), checkpoint.tensor("a")
    first.zero_()
    assert torch.equal(second, TENSORS["a"])
    checkpoint.close()
    assert torch.equal(checkpoint.tensor("a"), TENSORS["a"])


@pytest.mark.parametrize("piece", [8, 16, 2**23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_are_loaded_in_any_type(
    single: Path, piece: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftagent.engine.weights.safetensors.PIECE_BYTES", piece)
    checkpoint = open_checkpoint(single)
    for name, tensor in TENSORS.items():
        found = checkpoint.load(name, dtype, torch.device("cpu"))
        assert found.dtype == dtype
        assert torch.equal(found, tensor.to(dtype))
    assert checkpoint.load("a", dtype, torch.device("meta")).shape == (2, 3)


def test_a_file_that_became_shorter_ends_no_process(single: Path) -> None:
    """As a mapping would, with SIGBUS."""
    checkpoint = open_checkpoint(single)
    with (single / "model.safetensors").open("rb+") as opened:
        opened.truncate(9)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(LoadFailed, match="24 bytes missing at byte"):
            checkpoint.load("a", dtype, torch.device("cpu"))


def test_reads_parts_into_memory_of_the_caller(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    for name in ("a", "b"):
        whole = TENSORS[name]
        target = torch.empty_like(whole)
        checkpoint.read_into(name, target.view(torch.uint8).view(-1))
        assert torch.equal(target, whole)
        for part, expected in enumerate(whole):
            piece = torch.empty(expected.nbytes, dtype=torch.uint8)
            checkpoint.read_into(name, piece, part, len(whole))
            assert torch.equal(piece.view(whole.dtype), expected.reshape(-1))
        checkpoint.close()


def test_a_file_that_became_shorter_is_named(single: Path) -> None:
    checkpoint = open_checkpoint(single)
    file = single / "model.safetensors"
    with file.open("rb+") as opened:
        opened.truncate(9)
    entry = checkpoint.entries["a"]
    with pytest.raises(
        LoadFailed, match=r"model\.safetensors: cut short while it was read: \d+ bytes missing at byte"
    ):
        checkpoint.read_into("a", torch.empty(entry.end - entry.begin, dtype=torch.uint8))
    checkpoint.close()
    file.unlink()
    with pytest.raises(LoadFailed, match=r"model\.safetensors: cannot be opened"):
        checkpoint.read_into("a", torch.empty(entry.end - entry.begin, dtype=torch.uint8))


def test_reads_tensors_at_odd_addresses(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode() + b" "
    header += b" " * (1 - len(header) % 2)  # an odd length
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2.0))
    assert (8 + len(header)) % 4
    assert open_checkpoint(tmp_path).tensor("x").tolist() == [1.5, -2.0]


def cut_last_byte(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def zero_header(file: Path) -> None:
    file.write_bytes(struct.pack("<Q", 0) + file.read_bytes()[8:])


def long_header(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(struct.pack("<Q", len(content) - 8 + 37) + content[8:])


def seven_bytes(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:7])


def broken_json(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[8] = ord("[")
    file.write_bytes(bytes(content))


@pytest.mark.usefixtures("no_mapping")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_last_byte, "1 bytes missing"),
        (zero_header, "header length is zero"),
        (long_header, "37 bytes missing"),
        (seven_bytes, "1 bytes missing"),
        (broken_json, "not valid JSON"),
    ],
)
def test_a_damaged_file_is_refused_before_mapping(
    single: Path, damage: Callable[[Path], None], words: str
) -> None:
    file = single / "model.safetensors"
    damage(file)
    with pytest.raises(LoadFailed, match=words) as refusal:
        open_checkpoint(single)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("no_mapping")
def test_a_wrong_size_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(LoadFailed, match=r"tensor x \[3\] F32 needs 12 bytes, has 8"):
        open_checkpoint(tmp_path)


@pytest.mark.usefixtures("no_mapping")
def test_an_absent_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadFailed, match=r"model-00002-of-00002\.safetensors: shard is missing"):
        open_checkpoint(sharded)


@pytest.mark.usefixtures("no_mapping")
def test_a_tensor_absent_from_its_shard_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_NAME).read_text())
    index["weight_map"]["z"] = "model-00001-of-00002.safetensors"
    (sharded / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(LoadFailed, match=r"model-00001-of-00002\.safetensors: tensor z is missing"):
        open_checkpoint(sharded)


@pytest.mark.usefixtures("no_mapping")
def test_an_index_cannot_name_files_elsewhere(sharded: Path) -> None:
    (sharded / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(LoadFailed, match="not a plain file name"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_second_copy_in_a_sub_folder_is_ignored(sharded: Path, with_index: bool) -> None:
    copy = sharded / "original"
    copy.mkdir()
    for file in list(sharded.glob("*.safetensors")):
        shutil.copy(file, copy)
    (copy / "model-00001-of-00002.safetensors").write_bytes(b"damaged")
    if not with_index:
        (sharded / INDEX_NAME).unlink()
    checkpoint = open_checkpoint(sharded)
    assert torch.equal(checkpoint.tensor("a"), TENSORS["a"])
    assert torch.equal(checkpoint.tensor("b"), TENSORS["b"])


def test_the_same_tensor_in_two_files_is_refused(single: Path) -> None:
    shutil.copy(single / "model.safetensors", single / "second.safetensors")
    with pytest.raises(LoadFailed, match="is also in"):
        open_checkpoint(single)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"no \*\.safetensors file"):
        open_checkpoint(tmp_path)
