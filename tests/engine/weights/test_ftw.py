"""FTW sets: what was written comes back, and damage to headers or files is found before data is read."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from ftagent.engine.weights.checkpoint import open_weights
from ftagent.engine.weights.direct import aligned_bytes
from ftagent.engine.weights.ftw import open_set
from ftagent.engine.weights.ftw_reader import FtwCheckpoint, open_ftw
from ftagent.errors import LoadFailed
from tests.engine.weights.sets import (
    BLOCK,
    ROWS,
    STRIDE,
    TENSORS,
    bank_rows,
    raw,
    read_head,
    write_head,
    write_set,
)
from tests.support.ftw_by_the_book import Book


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("align", [BLOCK, 64])
@pytest.mark.parametrize("shard", [BLOCK, 3 * BLOCK, 100 * BLOCK])
def test_what_was_written_comes_back(tmp_path: Path, shard: int, align: int, verify: bool) -> None:
    write_set(tmp_path, shard_bytes=shard, align=align)
    checkpoint = open_ftw(tmp_path, verify)
    assert list(checkpoint.entries) == list(TENSORS)
    for name, tensor in TENSORS.items():
        found = checkpoint.tensor(name)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
        whole = torch.empty(tensor.nbytes, dtype=torch.uint8)
        checkpoint.read_into(name, whole)
        assert torch.equal(whole, raw(tensor))
    (stored,) = checkpoint.banks.values()
    rows = torch.zeros(ROWS, STRIDE, dtype=torch.uint8)
    for chunk in range(3):
        checkpoint.read_rows(stored, chunk, list(rows[2 * chunk : 2 * chunk + 2]))
    assert torch.equal(rows, bank_rows())
    checkpoint.close()
    assert torch.equal(checkpoint.tensor("wide"), TENSORS["wide"])  # opens its files again
    checkpoint.close()
    assert Book(tmp_path).content("codes") == bytes(raw(TENSORS["codes"]).numpy())


def test_names_of_files_do_not_matter(tmp_path: Path) -> None:
    first, second, *_ = write_set(tmp_path)
    first.rename(tmp_path / "z.ftw")
    second.rename(tmp_path / "a.ftw")
    assert torch.equal(open_ftw(tmp_path).tensor("wide"), TENSORS["wide"])


def test_copies_in_sub_folders_do_not_count(tmp_path: Path) -> None:
    files = write_set(tmp_path)
    (tmp_path / "copy").mkdir()
    shutil.copy(files[0], tmp_path / "copy")
    assert open_weights(tmp_path).identity == open_set(tmp_path).digest


@pytest.fixture
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("data was read or mapped")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr(os, "preadv", refuse)


def cut(size: int) -> Callable[[list[Path]], None]:
    return lambda files: os.truncate(files[1], files[1].stat().st_size - size)


def longer(files: list[Path]) -> None:
    with files[1].open("ab") as opened:
        opened.write(b"\0" * 5)


def stub(size: int) -> Callable[[list[Path]], None]:
    return lambda files: os.truncate(files[1], size)


def patched(at: int, data: bytes) -> Callable[[list[Path]], None]:
    def patch(files: list[Path]) -> None:
        with files[1].open("rb+") as opened:
            opened.seek(at)
            opened.write(data)

    return patch


def missing(files: list[Path]) -> None:
    files[1].unlink()


def last_missing(files: list[Path]) -> None:
    files[-1].unlink()


def twice(files: list[Path]) -> None:
    shutil.copy(files[1], files[1].with_name("copy.ftw"))


def foreign(files: list[Path]) -> None:
    """The second shard of a set of the same shape and other contents."""
    other = files[0].parent / "other"
    theirs = write_set(other, {name: tensor + 1 for name, tensor in TENSORS.items()})
    shutil.move(theirs[1], files[1])
    shutil.rmtree(other)


def foreign_too(files: list[Path]) -> None:
    other = files[0].parent / "other"
    theirs = write_set(other, {name: tensor + 1 for name, tensor in TENSORS.items()})
    shutil.move(theirs[1], files[0].with_name("zz.ftw"))
    shutil.rmtree(other)


def other_dtype(files: list[Path]) -> None:
    """In every shard that describes the tensor, with checksums that are right."""
    for file in files:
        head = read_head(file)
        for item in head["tensors"]:
            if item["name"] == "norm":
                item["dtype"] = "F16"
        write_head(file, head)


def other_dtype_of_a_bank(files: list[Path]) -> None:
    for file in files:
        head = read_head(file)
        for item in head["tensors"]:
            if "bank" in item:
                item["bank"]["format"]["dtype"] = "float16"
        write_head(file, head)


def other_shape(files: list[Path]) -> None:
    for file in files:
        head = read_head(file)
        for item in head["tensors"]:
            if item["name"] == "wide":
                item["shape"].reverse()
        write_head(file, head)


def other_place(files: list[Path]) -> None:
    """Two tensors of the same size change places."""
    for file in files:
        head = read_head(file)
        for item in head["tensors"]:
            if item["name"] == "norm":
                item["at"] += BLOCK
        write_head(file, head)


def forgotten(files: list[Path]) -> None:
    for file in files:
        head = read_head(file)
        head["tensors"] = [item for item in head["tensors"] if item["name"] != "norm"]
        write_head(file, head)


@pytest.mark.usefixtures("nothing_read")
@pytest.mark.parametrize(
    ("damage", "words", "named"),
    [
        (cut(1), "cut short, 1 bytes missing", 1),
        (cut(2 * BLOCK), f"cut short, {2 * BLOCK} bytes missing", 1),
        (cut(3 * BLOCK + 5), f"cut short, {3 * BLOCK + 5} bytes missing", 1),
        (stub(60), r"cut short in the header, \d+ bytes missing", 1),
        (stub(10), "38 bytes missing from the header", 1),
        (stub(0), "48 bytes missing from the header", 1),
        (longer, "5 bytes too many", 1),
        (patched(0, b"\0" * 8), "not an FTW shard, or one that was not finished", 1),
        (patched(8, struct.pack("<I", 2)), "FTW version 2, this reads version 1", 1),
        (patched(12, struct.pack("<I", 2**32 - 1)), r"cut short in the header, \d+ bytes missing", 1),
        (patched(12, struct.pack("<I", 20)), "its checksum is wrong", 1),
        (patched(60, b"~"), "its checksum is wrong", 1),
        (missing, "shard 2 of 10 is missing", 1),
        (last_missing, "shard 10 of 10 is missing", 9),
        (twice, "shard 2 is also in", 1),
        (foreign, "belongs to another set", 1),
        (foreign_too, "belongs to another set", None),
        (other_dtype, "do not make up the set", 0),
        (other_dtype_of_a_bank, "do not make up the set", 0),
        (other_shape, "do not make up the set", 0),
        (other_place, "damaged|described twice|do not make up|lies in another|not lie in", None),
        (forgotten, "do not make up the set", 0),
    ],
)
def test_damage_is_found_before_data_is_read(
    tmp_path: Path, damage: Callable[[list[Path]], None], words: str, named: int | None
) -> None:
    files = list(write_set(tmp_path))
    assert len(files) == 10
    damage(files)
    with pytest.raises(LoadFailed, match=words) as refusal:
        open_weights(tmp_path)
    assert "\n" not in str(refusal.value)
    if named is not None:
        assert str(files[named]) in str(refusal.value)


@pytest.mark.parametrize("name", ["wide", "norm", "codes", "experts.3"])
def test_a_changed_bit_is_found_by_digests(tmp_path: Path, name: str) -> None:
    files = write_set(tmp_path)
    book = Book(tmp_path)
    at = book.tensors[name]["at"] + book.tensors[name]["bytes"] - 1
    head = next(head for head in book.heads if head["begin"] <= at < head["end"])
    file = files[head["shard"]]
    with file.open("rb+") as opened:
        opened.seek(at - head["end"], os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 16]))
    for verify in (False, True):
        checkpoint = open_ftw(tmp_path, verify)
        if verify:
            with pytest.raises(
                LoadFailed, match=rf"\.ftw: tensor {name} is damaged, within \d+ bytes from byte"
            ):
                read(checkpoint, name)
        else:
            read(checkpoint, name)
        checkpoint.close()


def read(checkpoint: FtwCheckpoint, name: str) -> None:
    if name in checkpoint:
        checkpoint.tensor(name)
        return
    rows = torch.zeros(ROWS, STRIDE, dtype=torch.uint8)
    for chunk in range(3):
        checkpoint.read_rows(checkpoint.banks[3], chunk, list(rows[2 * chunk : 2 * chunk + 2]))


@pytest.mark.parametrize("how", ["shorter", "gone"])
def test_files_that_change_after_they_were_opened_are_named(tmp_path: Path, how: str) -> None:
    files = write_set(tmp_path)
    checkpoint = open_ftw(tmp_path)
    if how == "gone":
        files[0].unlink()
        words = f"{files[0].name}: cannot be opened"
    else:
        os.truncate(files[0], files[0].stat().st_size - BLOCK)
        words = rf"{files[0].name}: cut short while it was read: \d+ bytes missing"
    with pytest.raises(LoadFailed, match=words):
        checkpoint.tensor("wide")
    checkpoint.close()


@pytest.mark.parametrize("chunk", [4096, 5000, 5002, 2**23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_are_loaded_in_any_type_into_memory_of_their_own(
    tmp_path: Path, chunk: int, dtype: torch.dtype
) -> None:
    write_set(tmp_path, chunk=chunk)
    checkpoint = open_ftw(tmp_path, verify=True)
    for name in ("wide", "norm", "scalar", "codes"):
        first, second = (checkpoint.load(name, dtype, torch.device("cpu")) for _ in range(2))
        assert torch.equal(first, TENSORS[name].to(dtype))
        assert first.data_ptr() != second.data_ptr()
    assert checkpoint.load("codes", dtype, torch.device("meta")).shape == (9, 1000)
    checkpoint.close()


def test_what_is_converted_passes_through_two_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(size: int) -> torch.Tensor:
        sizes.append(size)
        return aligned_bytes(size)

    write_set(tmp_path, chunk=BLOCK)
    checkpoint = open_ftw(tmp_path)
    monkeypatch.setattr("ftagent.engine.weights.ftw_reader.aligned_bytes", counted)
    assert torch.equal(checkpoint.load("wide", torch.float64, torch.device("cpu")), TENSORS["wide"].double())
    assert sizes == [BLOCK, BLOCK]
    checkpoint.close()
