"""Routed experts as gpt-oss releases keep them: stacked, gate and up channels by turns, each product biased.

Below "mlp.experts.": `gate_up_proj_bias` [E, 2I] and `down_proj_bias` [E, H], and the matrices either in
MXFP4, `gate_up_proj_blocks` [E, 2I, H/32, 16] and `down_proj_blocks` [E, H, I/32, 16] of bytes with
`..._scales` [E, 2I, H/32] and [E, H, I/32], or plain and turned, `gate_up_proj` [E, H, 2I] and `down_proj`
[E, I, H]. Channel i has its gate at 2i and its up at 2i + 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertShape
from ftagent.engine.kernels.experts import write_down
from ftagent.engine.weights import mxfp4
from ftagent.engine.weights.source import Checker

if TYPE_CHECKING:
    from ftagent.engine.experts.loading import ExpertNames, PieceReader


def check_interleaved(checker: Checker, names: ExpertNames, experts: int, shape: ExpertShape) -> None:
    """Note every missing or misshapen expert tensor of a layer."""
    hidden, inner = shape.hidden, shape.intermediate
    for part, rows, columns in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
        name = f"{names.stem}.{part}_proj"
        checker.expect(f"{name}_bias", (experts, rows))
        if not names.packed:
            checker.expect(name, (experts, columns, rows))
            continue
        if columns % mxfp4.BLOCK:
            checker.problems.append(f"{name}: {columns} columns do not divide into blocks of {mxfp4.BLOCK}")
        blocks = columns // mxfp4.BLOCK
        checker.expect_bytes(f"{name}_blocks", (experts, rows, blocks, mxfp4.BLOCK // 2))
        checker.expect_bytes(f"{name}_scales", (experts, rows, blocks))


def fill_interleaved(pieces: PieceReader, names: ExpertNames, bank: ExpertBank, expert: int) -> None:
    """Bring one expert from the checkpoint's files into its row, gate rows before up rows."""
    part = (expert, bank.experts)
    gate_up, down = f"{names.stem}.gate_up_proj", f"{names.stem}.down_proj"
    if bank.quantised:
        row = bank.quantised_row(expert)
        targets = {"blocks": (row.gate_up, row.down), "scales": (row.gate_up_scales, row.down_scales)}
        for kind, (sides, columns) in targets.items():
            pieces.reset()
            _apart(pieces.piece(f"{gate_up}_{kind}", part).flatten(1), sides)
            pieces.into(f"{down}_{kind}", part, columns)
        biases = row.biases
    else:
        fill = _fill_widened if names.packed else _fill_turned
        fill(pieces, (gate_up, down), part, bank.records(expert))
        found = bank.weights(expert).biases
        assert found is not None, "these experts have biases"
        biases = found.all
    pieces.reset()
    border = 2 * bank.shape.intermediate
    _apart(pieces.piece(f"{gate_up}_bias", part), biases[:border])
    biases[border:].copy_(pieces.piece(f"{down}_bias", part))


def _fill_widened(
    pieces: PieceReader, names: tuple[str, str], part: tuple[int, int], records: torch.Tensor
) -> None:
    """Records [I, 3, H], whose gate and up rows alternate as the stored ones do."""
    values = []
    for name in names:
        pieces.reset()
        blocks, scales = pieces.piece(f"{name}_blocks", part), pieces.piece(f"{name}_scales", part)
        values.append(mxfp4.widen(blocks.flatten(1), scales, records.dtype))
    records[:, :2].copy_(values[0].view(len(records), 2, -1))
    write_down(records, values[1])


def _fill_turned(
    pieces: PieceReader, names: tuple[str, str], part: tuple[int, int], records: torch.Tensor
) -> None:
    """The same from [H, 2I] and [I, H]."""
    pieces.reset()
    sides = pieces.piece(names[0], part).t()
    records[:, :2].copy_(sides.reshape(len(records), 2, -1))
    pieces.reset()
    records[:, 2].copy_(pieces.piece(names[1], part))


def _apart(stored: torch.Tensor, target: torch.Tensor) -> None:
    """Rows 0, 2, 4, ... of `stored` and then rows 1, 3, 5, ... into `target`."""
    half = len(stored) // 2
    target[:half].copy_(stored[0::2])
    target[half:].copy_(stored[1::2])
