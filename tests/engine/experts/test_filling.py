"""Filling banks with threads: every value arrives, memory holds each expert once, a fault ends all."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.filling import BankFiller
from ftagent.engine.experts.loading import ExpertNames, find_names, stored_format
from ftagent.engine.weights.safetensors import Checkpoint, open_checkpoint
from ftagent.errors import LoadFailed
from tests.engine.experts.test_host_memory import Ledger

LAYERS, EXPERTS = 8, 16
SHAPE = ExpertShape(hidden=512, intermediate=340)  # bfloat16: 1 MiB less 4 KiB for each expert
MIB = 2**20


def stacked(layers: int, experts: int, shape: ExpertShape, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(layers):
        stem = f"model.layers.{layer}.mlp.experts"
        tensors[f"{stem}.gate_up_proj"] = torch.randn(experts, 2 * shape.intermediate, shape.hidden).to(dtype)
        tensors[f"{stem}.down_proj"] = torch.randn(experts, shape.hidden, shape.intermediate).to(dtype)
    return tensors


def apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same experts, one matrix each."""
    found = {}
    for name, tensor in tensors.items():
        stem, kind = name.rsplit(".", 1)
        for expert, matrix in enumerate(tensor):
            parts = (
                {"down": matrix}
                if kind == "down_proj"
                else dict(zip(("gate", "up"), matrix.chunk(2), strict=True))
            )
            for part, values in parts.items():
                found[f"{stem}.{expert}.{part}_proj.weight"] = values.clone()
    return found


def layers_of(
    directory: Path, count: int, experts: int, shape: ExpertShape, dtype: torch.dtype | None = None
) -> tuple[Checkpoint, list[tuple[ExpertNames, ExpertBank]]]:
    checkpoint = open_checkpoint(directory)
    layers = []
    for layer in range(count):
        names = find_names(checkpoint, "model.", layer)
        stored = stored_format(checkpoint, names, experts)
        layers.append((names, ExpertBank(experts, shape, ExpertFormat(dtype) if dtype else stored)))
    return checkpoint, layers


@pytest.mark.parametrize("form", ["stacked", "apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_every_value_arrives(form: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Stored as bfloat16; banks in the compute dtype (converted), or as stored. Experts are smaller and
    larger than a task, and no size is a multiple of a block.
    """
    shape = ExpertShape(hidden=97, intermediate=35)
    tensors = stacked(3, 5, shape, torch.bfloat16)
    save_file(tensors if form == "stacked" else apart(tensors), tmp_path / "model.safetensors")
    checkpoint, layers = layers_of(tmp_path, 3, 5, shape, dtype)
    seen: list[tuple[int, int]] = []
    with BankFiller(checkpoint, layers, 3, progress=lambda done, total: seen.append((done, total))) as filler:
        filler.wait()
    for layer, (_, bank) in enumerate(layers):
        stem = f"model.layers.{layer}.mlp.experts"
        for expert in range(5):
            gate, up = tensors[f"{stem}.gate_up_proj"][expert].chunk(2)
            expected = torch.stack((gate, up, tensors[f"{stem}.down_proj"][expert].t()), dim=1)
            assert torch.equal(bank.records(expert), expected.to(bank.format.dtype))
    total = sum(bank.nbytes for _, bank in layers)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_the_thread_count_of_torch_is_left_as_it_was(tmp_path: Path) -> None:
    shape = ExpertShape(hidden=64, intermediate=16)
    save_file(stacked(1, 2, shape, torch.float32), tmp_path / "model.safetensors")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        checkpoint, layers = layers_of(tmp_path, 1, 2, shape)
        with BankFiller(checkpoint, layers, 2) as filler:
            filler.wait()
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), found) == (2, [2])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", ["stacked", "apart"])
def test_filling_holds_each_expert_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight banks of 16 MiB: never more than 128 MiB and what two workers read into, and 128 MiB afterwards.

    Measured is the resident memory of the process, looked at before every read. A worker's buffer holds one
    expert (1 MiB); 4 MiB more are allowed for threads and whatever else the process does.
    """
    whole = stacked(LAYERS, EXPERTS, SHAPE, torch.bfloat16)
    save_file(whole if form == "stacked" else apart(whole), tmp_path / "model.safetensors")
    del whole
    gc.collect()
    process, read = psutil.Process(), Checkpoint.read_into
    checkpoint, layers = layers_of(tmp_path, LAYERS, EXPERTS, SHAPE)
    before = process.memory_info().rss
    peaks = [0]

    def watched(self: Checkpoint, name: str, target: torch.Tensor, part: int = 0, parts: int = 1) -> None:
        peaks.append(process.memory_info().rss - before)
        read(self, name, target, part, parts)

    monkeypatch.setattr(Checkpoint, "read_into", watched)
    with BankFiller(checkpoint, layers, 2) as filler:
        filler.wait()
    gc.collect()
    total = sum(bank.nbytes for _, bank in layers)
    assert 127 * MIB < total <= 128 * MIB
    assert max(peaks) <= 128 * MIB + 6 * MIB
    assert abs(process.memory_info().rss - before - total) <= 4 * MIB


def test_layers_are_pinned_once_filled_and_a_refusal_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shape = ExpertShape(hidden=64, intermediate=16)
    save_file(stacked(4, 3, shape, torch.bfloat16), tmp_path / "model.safetensors")
    checkpoint, layers = layers_of(tmp_path, 4, 3, shape)
    size = layers[0][1].nbytes
    ledger = Ledger(quota=2 * size)
    full: list[bool] = []
    register = ledger.register

    def looking(address: int, length: int) -> str | None:
        bank = next(bank for _, bank in layers if bank.address(0) == address)
        full.append(all(bool(bank.records(expert).any()) for expert in range(3)))
        return register(address, length)

    ledger.register = looking  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING), BankFiller(checkpoint, layers, 2, ledger) as filler:
        filler.wait()
    assert full == [True] * 4
    assert sorted(bank.pinned for _, bank in layers) == [False, False, True, True]
    (record,) = caplog.records
    assert "2 of 4 expert layers are not pinned" in record.getMessage()
    assert f"{size} bytes: out of memory" in record.getMessage()
    for _, bank in layers:
        bank.close()
    assert not ledger.held


def test_a_file_that_shrinks_ends_the_fill_and_nothing_stays_registered(tmp_path: Path) -> None:
    shape = ExpertShape(hidden=64, intermediate=16)
    file = tmp_path / "model.safetensors"
    save_file(stacked(4, 3, shape, torch.bfloat16), file)
    checkpoint, layers = layers_of(tmp_path, 4, 3, shape)
    with file.open("rb+") as opened:
        opened.truncate(file.stat().st_size * 3 // 4)
    ledger = Ledger()
    with (
        pytest.raises(LoadFailed, match="cut short while it was read"),
        BankFiller(checkpoint, layers, 2, ledger) as filler,
    ):
        filler.wait()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("fill", "pin"))]
    for _, bank in layers:
        bank.close()
    assert not ledger.held


def test_leaving_early_drops_what_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(stacked(LAYERS, EXPERTS, SHAPE, torch.bfloat16), tmp_path / "model.safetensors")
    checkpoint, layers = layers_of(tmp_path, LAYERS, EXPERTS, SHAPE)
    gate = threading.Event()
    read = Checkpoint.read_into
    reads: list[str] = []

    def held(self: Checkpoint, name: str, target: torch.Tensor, part: int = 0, parts: int = 1) -> None:
        assert gate.wait(60)
        reads.append(name)
        read(self, name, target, part, parts)

    monkeypatch.setattr(Checkpoint, "read_into", held)

    def stumble() -> None:
        with BankFiller(checkpoint, layers, 1) as filler:
            filler._tasks[-1].add_done_callback(lambda _: gate.set())
            raise RuntimeError("the dense weights did not fit")

    with pytest.raises(RuntimeError, match="did not fit"):
        stumble()
    assert len(reads) < LAYERS * EXPERTS, "the first task at most"
