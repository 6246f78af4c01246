"""Stored rows: what headers say of them is what banks are made of, and they fill banks without a copy."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.filling import BankFiller
from ftagent.engine.experts.stored import StoredRows, describe, find_rows
from ftagent.engine.weights.direct import DirectFile
from ftagent.engine.weights.formats import FP8, MXFP4
from ftagent.engine.weights.ftw import FtwTensor, placed
from ftagent.engine.weights.ftw_reader import FtwCheckpoint, digest_of, open_ftw
from ftagent.engine.weights.ftw_writer import SetPlan, ShardWriter
from ftagent.errors import LoadFailed

LAYERS, EXPERTS = 8, 16
SHAPE = ExpertShape(hidden=512, intermediate=340)  # bfloat16: 1 MiB less 4 KiB for each expert
PLAIN = ExpertFormat(torch.bfloat16)
MIB = 2**20


def write_banks(directory: Path, shape: ExpertShape, stored: ExpertFormat, layers: int, experts: int) -> None:
    """Banks of random bytes, as a set."""
    stride = ExpertBank(1, shape, stored).row_bytes
    plan = placed(
        [
            FtwTensor(
                f"experts.{layer}",
                "U8",
                (experts, stride),
                0,
                experts * stride,
                4 * stride,
                bank=describe(layer, shape, stored),
            )
            for layer in range(layers)
        ],
        4096,
    )
    writer = ShardWriter(directory, SetPlan(tuple(plan), 4096, 5 * experts * stride // 2, "a test"))
    writer.open()
    digests = {}
    for tensor in plan:
        content = torch.randint(0, 127, (tensor.bytes,), dtype=torch.uint8)
        writer.write(tensor.at, content)
        spans = [tensor.chunk_range(chunk) for chunk in range(tensor.chunks)]
        digests[tensor.name] = [digest_of([content[begin:end]]) for begin, end in spans]
    writer.finish(digests)
    writer.rename()
    writer.close()


def stored_layers(
    checkpoint: FtwCheckpoint, shape: ExpertShape, experts: int, wanted: ExpertFormat | None = None
) -> list[tuple[StoredRows, ExpertBank]]:
    found = [find_rows(checkpoint, layer, experts, shape) for layer in sorted(checkpoint.banks)]
    return [(rows, ExpertBank(experts, shape, wanted or rows.format)) for rows in found]


@pytest.mark.parametrize(
    "stored", [PLAIN, ExpertFormat(FP8), ExpertFormat(FP8, parts=1), ExpertFormat(MXFP4)]
)
@pytest.mark.parametrize("wanted", [None, ExpertFormat(torch.float32)])
def test_banks_hold_what_was_stored_or_its_plain_values(
    tmp_path: Path, stored: ExpertFormat, wanted: ExpertFormat | None
) -> None:
    shape = ExpertShape(hidden=96, intermediate=32, biased=stored.dtype == MXFP4)
    write_banks(tmp_path, shape, stored, 2, 6)
    checkpoint = open_ftw(tmp_path, verify=True)
    layers = stored_layers(checkpoint, shape, 6, wanted)
    with BankFiller(checkpoint, layers, 3) as filler:
        filler.wait()
    for rows, bank in layers:
        raw = torch.empty(rows.tensor.bytes, dtype=torch.uint8)
        checkpoint.read_bytes(rows.tensor.name, 0, raw)
        expected = ExpertBank(6, shape, rows.format)
        for row, content in zip(expected.rows(0, 6, rows.tensor.shape[1]), raw.view(6, -1), strict=True):
            row.copy_(content)
        for expert in range(6):
            if wanted is None:
                size = bank.row_bytes
                (ours,), (theirs,) = (held.rows(expert, expert + 1, size) for held in (bank, expected))
                assert torch.equal(ours, theirs)
                continue
            plain = ExpertBank(1, shape, wanted)
            expected.decode(expert, plain.weights(0))
            assert torch.equal(bank.records(expert), plain.records(0))
    checkpoint.close()


def test_rows_of_another_making_are_refused(tmp_path: Path) -> None:
    write_banks(tmp_path, SHAPE, PLAIN, 1, 4)
    checkpoint = open_ftw(tmp_path)
    with pytest.raises(LoadFailed, match=r"layer 0 has 4 experts, config\.json says 5"):
        find_rows(checkpoint, 0, 5, SHAPE)
    with pytest.raises(LoadFailed, match="no experts of layer 3"):
        find_rows(checkpoint, 3, 4, SHAPE)
    with pytest.raises(LoadFailed, match=r"not of 512 x 341 as config\.json says"):
        find_rows(checkpoint, 0, 4, SHAPE._replace(intermediate=341))
    tensor = checkpoint.banks[0]
    assert tensor.bank is not None
    for fields in (
        {"dtype": "no"},
        {"dtype": "float32"},
        {"dtype": "float8_e4m3fn", "parts": 0},
        {},
        {"x": 1},
    ):
        checkpoint.banks = {0: tensor._replace(bank=tensor.bank._replace(format=fields))}
        with pytest.raises(LoadFailed, match="laid out as this version does not read them"):
            find_rows(checkpoint, 0, 4, SHAPE)


def test_filling_takes_no_memory_beside_the_banks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight banks of 16 MiB: resident memory, looked at before every read."""
    write_banks(tmp_path, SHAPE, PLAIN, LAYERS, EXPERTS)
    gc.collect()
    process, read = psutil.Process(), DirectFile.read_into
    checkpoint = open_ftw(tmp_path)
    layers = stored_layers(checkpoint, SHAPE, EXPERTS)
    before = process.memory_info().rss
    peaks = [0]

    def watched(self: DirectFile, targets: list[torch.Tensor], offset: int) -> None:
        peaks.append(process.memory_info().rss - before)
        read(self, targets, offset)

    monkeypatch.setattr(DirectFile, "read_into", watched)
    with BankFiller(checkpoint, layers, 4) as filler:
        filler.wait()
    gc.collect()
    total = sum(bank.nbytes for _, bank in layers)
    assert 127 * MIB < total <= 128 * MIB
    assert max(peaks) <= 128 * MIB + 4 * MIB
    assert abs(process.memory_info().rss - before - total) <= 4 * MIB


PROGRAM = """
import resource, sys, threading
from pathlib import Path
import psutil, torch
from ftagent.engine.experts.filling import BankFiller
from ftagent.engine.weights.ftw_reader import open_ftw
from tests.engine.experts.test_stored import EXPERTS, SHAPE, stored_layers
torch.set_num_threads(1)
checkpoint = open_ftw(Path(sys.argv[1]))
threading.stack_size(2**20)
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), resource.RLIM_INFINITY))
layers = stored_layers(checkpoint, SHAPE, EXPERTS)
with BankFiller(checkpoint, layers, 4) as filler:
    filler.wait()
"""


@pytest.mark.parametrize("fits", [True, False])
def test_a_limit_that_ends_what_goes_over_lets_a_fill_pass(tmp_path: Path, fits: bool) -> None:
    """Address space for the banks, the huge page in front of each, and 24 MiB for threads and their heap."""
    write_banks(tmp_path, SHAPE, PLAIN, LAYERS, EXPERTS)
    room = (128 + LAYERS * 2 + 24) * MIB if fits else 100 * MIB
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(room)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (ended.returncode == 0) == fits, ended.stderr
