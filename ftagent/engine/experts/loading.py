"""Where a checkpoint keeps its routed experts, and how they get into a bank.

Two layouts (Qwen3 MoE and Qwen3.5 MoE releases): stacked, `mlp.experts.gate_up_proj` [E, 2I, H] with gate
rows first and `mlp.experts.down_proj` [E, H, I]; or one matrix each,
`mlp.experts.N.{gate,up,down}_proj.weight`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.weights.formats import FP8
from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.engine.weights.source import Checker, scale_name
from ftagent.errors import LoadFailed


class ExpertNames(NamedTuple):
    """Full names of one layer's expert tensors, in either layout."""

    stem: str  # "model.layers.3.mlp.experts"
    stacked: bool

    def matrices(self, expert: int) -> tuple[str, ...]:
        if self.stacked:
            return f"{self.stem}.gate_up_proj", f"{self.stem}.down_proj"
        return tuple(f"{self.stem}.{expert}.{part}_proj.weight" for part in ("gate", "up", "down"))


def find_names(checkpoint: Checkpoint, prefix: str, layer: int) -> ExpertNames:
    stem = f"{prefix}layers.{layer}.mlp.experts"
    return ExpertNames(stem, stacked=f"{stem}.gate_up_proj" in checkpoint)


def check_experts(checker: Checker, names: ExpertNames, experts: int, shape: ExpertShape) -> None:
    """Note every missing or misshapen expert tensor of a layer."""
    hidden, inner = shape
    if names.stacked:
        gate_up, down = names.matrices(0)
        checker.expect(gate_up, (experts, 2 * inner, hidden))
        checker.expect(down, (experts, hidden, inner))
        return
    for expert in range(experts):
        gate, up, down = names.matrices(expert)
        checker.expect(gate, (inner, hidden))
        checker.expect(up, (inner, hidden))
        checker.expect(down, (hidden, inner))


def stored_format(checkpoint: Checkpoint, names: ExpertNames, experts: int) -> ExpertFormat:
    """The one format of a layer's experts. Raises LoadFailed when they differ."""
    dtypes = {
        checkpoint.dtype(name)
        for expert in (range(1) if names.stacked else range(experts))
        for name in names.matrices(expert)
    }
    if len(dtypes) > 1:
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise LoadFailed(
            f"{checkpoint.directory}: experts of {names.stem} are stored in several formats: {found}"
        )
    return ExpertFormat(dtypes.pop(), parts=1 if names.stacked else 2)


def fill_bank(checkpoint: Checkpoint, names: ExpertNames, bank: ExpertBank) -> None:
    """Copy all experts of a layer from the file's mapping into `bank`, one at a time."""
    for expert in range(bank.experts):
        row = bank.row(expert)
        weights, scales = _read(checkpoint, names, expert)
        inner = bank.shape.intermediate
        if names.stacked:
            row.gate_up.copy_(weights[0])
        else:
            row.gate_up[:inner].copy_(weights[0])
            row.gate_up[inner:].copy_(weights[1])
        row.down.copy_(weights[-1])
        if row.gate_up_scales is not None and row.down_scales is not None:
            for part, grid in enumerate(scales[:-1]):
                row.gate_up_scales[part].copy_(grid)
            row.down_scales.copy_(scales[-1])
        for name in names.matrices(expert):
            checkpoint.forget(name, *((expert, bank.experts) if names.stacked else (0, 1)))


def _read(
    checkpoint: Checkpoint, names: ExpertNames, expert: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    weights, scales = [], []
    for name in names.matrices(expert):
        stored = checkpoint.tensor(name)
        weights.append(stored[expert] if names.stacked else stored)
        if stored.dtype == FP8:
            grid = checkpoint.tensor(scale_name(name))
            scales.append(grid[expert] if names.stacked else grid)
    return weights, scales
