"""Filling banks from a file: every value arrives, and memory holds each expert once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from ftagent.engine.experts.bank import ExpertBank, ExpertShape
from ftagent.engine.experts.loading import fill_bank, find_names, stored_format
from ftagent.engine.weights.safetensors import Checkpoint, open_checkpoint

LAYERS, EXPERTS = 8, 16
SHAPE = ExpertShape(hidden=512, intermediate=340)  # bfloat16: 1 MiB less 4 KiB for each expert
MIB = 2**20


def write_stacked(directory: Path) -> None:
    tensors = {}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.mlp.experts"
        tensors[f"{stem}.gate_up_proj"] = numbers(EXPERTS, 2 * SHAPE.intermediate, SHAPE.hidden) + layer
        tensors[f"{stem}.down_proj"] = numbers(EXPERTS, SHAPE.hidden, SHAPE.intermediate) + layer
    save_file(tensors, directory / "model.safetensors")


def write_apart(directory: Path) -> None:
    hidden, inner = SHAPE
    tensors = {}
    for layer in range(LAYERS):
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            whole = numbers(EXPERTS, rows, columns) + layer
            for expert in range(EXPERTS):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                tensors[name] = whole[expert].clone()
    save_file(tensors, directory / "model.safetensors")


def numbers(experts: int, rows: int, columns: int) -> torch.Tensor:
    """bfloat16 [experts, rows, columns]: the number of the expert."""
    return torch.arange(experts, dtype=torch.bfloat16).view(-1, 1, 1).repeat(1, rows, columns)


@pytest.mark.parametrize("write", [write_stacked, write_apart])
def test_loading_holds_each_expert_once(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight banks of 16 MiB: never more than 128 MiB and one read buffer, and 128 MiB afterwards.

    Measured is the resident memory of the process, looked at on every read of a tensor and after each bank.
    The buffer is one expert (1 MiB) and what the kernel maps around it (2 MiB at each side); 3 MiB more are
    allowed for whatever else the process does.
    """
    write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    gc.collect()
    process, read = psutil.Process(), Checkpoint.tensor
    before = process.memory_info().rss
    peak = 0

    def look() -> int:
        nonlocal peak
        now: int = process.memory_info().rss - before
        peak = max(peak, now)
        return now

    def watched(self: Checkpoint, name: str) -> torch.Tensor:
        look()
        return read(self, name)

    monkeypatch.setattr(Checkpoint, "tensor", watched)
    banks = []
    for layer in range(LAYERS):
        names = find_names(checkpoint, "model.", layer)
        bank = ExpertBank(EXPERTS, SHAPE, stored_format(checkpoint, names, EXPERTS))
        fill_bank(checkpoint, names, bank)
        banks.append(bank)
        look()
    del checkpoint
    gc.collect()
    total = sum(bank.nbytes for bank in banks)
    assert 127 * MIB < total <= 128 * MIB
    assert peak <= 128 * MIB + 8 * MIB
    assert abs(look() - total) <= 3 * MIB
    for layer, bank in enumerate(banks):
        for expert in range(EXPERTS):
            row = bank.row(expert)
            assert bool((row.gate_up == expert + layer).all())
            assert bool((row.down == expert + layer).all())
