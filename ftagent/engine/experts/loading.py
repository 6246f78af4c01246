"""Where a checkpoint keeps its routed experts, and how one of them gets into its row of a bank.

Two layouts here (Qwen3 MoE and Qwen3.5 MoE releases): stacked, `mlp.experts.gate_up_proj` [E, 2I, H] with
gate rows first and `mlp.experts.down_proj` [E, H, I]; or one matrix each,
`mlp.experts.N.{gate,up,down}_proj.weight` (Mixtral: `block_sparse_moe.experts.N.{w1,w3,w2}.weight`). That of
gpt-oss is in `interleaved`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape, QuantisedRow
from ftagent.engine.experts.interleaved import check_interleaved, fill_interleaved
from ftagent.engine.kernels.experts import write_down
from ftagent.engine.weights.formats import FP8, MXFP4, dequantise
from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.engine.weights.source import Checker, scale_name
from ftagent.errors import LoadFailed

Parts = tuple[str, str, str]
PARTS: Parts = ("gate_proj", "up_proj", "down_proj")


class ExpertNames(NamedTuple):
    """Full names of one layer's expert tensors, in any layout; `packed`: interleaved ones in MXFP4."""

    stem: str  # "model.layers.3.mlp.experts"
    stacked: bool
    parts: Parts = PARTS
    interleaved: bool = False
    packed: bool = False

    def matrices(self, expert: int) -> tuple[str, ...]:
        if self.packed:
            return f"{self.stem}.gate_up_proj_blocks", f"{self.stem}.down_proj_blocks"
        if self.stacked:
            return f"{self.stem}.gate_up_proj", f"{self.stem}.down_proj"
        return tuple(f"{self.stem}.{expert}.{part}.weight" for part in self.parts)


def find_names(
    checkpoint: Checkpoint,
    prefix: str,
    layer: int,
    block: str = "mlp.",
    parts: Parts = PARTS,
    *,
    interleaved: bool = False,
) -> ExpertNames:
    """Which layout a layer has; `block` and `parts` are the names that its family uses, and `interleaved`
    says that it keeps experts as gpt-oss does.
    """
    stem = f"{prefix}layers.{layer}.{block}experts"
    if interleaved:
        packed = f"{stem}.gate_up_proj_blocks" in checkpoint
        return ExpertNames(stem, stacked=True, interleaved=True, packed=packed)
    return ExpertNames(stem, stacked=f"{stem}.gate_up_proj" in checkpoint, parts=parts)


def check_experts(checker: Checker, names: ExpertNames, experts: int, shape: ExpertShape) -> None:
    """Note every missing or misshapen expert tensor of a layer."""
    if names.interleaved:
        check_interleaved(checker, names, experts, shape)
        return
    hidden, inner = shape.hidden, shape.intermediate
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
    if names.packed:
        return ExpertFormat(MXFP4)
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
    if names.interleaved and FP8 in dtypes:
        raise LoadFailed(
            f"{checkpoint.directory}: experts of {names.stem} are stored in FP8, which is not read of this "
            "family; use its release in MXFP4, or one in BF16"
        )
    return ExpertFormat(dtypes.pop(), parts=1 if names.stacked else 2)


def fill_expert(pieces: PieceReader, names: ExpertNames, bank: ExpertBank, expert: int) -> None:
    """Bring one expert from the checkpoint's files into its row. Safe from several threads, each with its own
    `pieces`.
    """
    if names.interleaved:
        fill_interleaved(pieces, names, bank, expert)
        return
    part = (expert, bank.experts) if names.stacked else (0, 1)
    pieces.reset()
    if bank.quantised:
        _fill_quantised(pieces, names.matrices(expert), part, bank.quantised_row(expert))
        return
    records = bank.records(expert)
    *sides, down = names.matrices(expert)
    if names.stacked:
        both = pieces.plain(sides[0], part, records.dtype)
        records[:, :2].copy_(both.view(2, -1, bank.shape.hidden).transpose(0, 1))
    else:
        for side, name in enumerate(sides):
            records[:, side].copy_(pieces.plain(name, part, records.dtype))
            pieces.reset()
    pieces.reset()
    write_down(records, pieces.plain(down, part, records.dtype))


def _fill_quantised(
    pieces: PieceReader, matrices: tuple[str, ...], part: tuple[int, int], row: QuantisedRow
) -> None:
    *sides, down = matrices
    targets = (*row.gate_up.chunk(len(sides)), row.down)
    grids = (*row.gate_up_scales.unbind(0), row.down_scales)
    for name, target, grid in zip((*sides, down), targets, grids, strict=True):
        pieces.into(name, part, target)
        grid.copy_(pieces.piece(scale_name(name), part))


class PieceReader:
    """Reads tensors, or equal parts of them, into one buffer that is used again and again. For one thread."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def reset(self) -> None:
        """What was read before may be overwritten."""
        self._used = 0

    def piece(self, name: str, part: tuple[int, int]) -> torch.Tensor:
        """Part (index, of how many along the first dimension) of a tensor in its stored dtype; part (0, 1) is
        the whole. Valid until the next `reset`.
        """
        entry = self._checkpoint.entries[name]
        index, count = part
        size = (entry.end - entry.begin) // count
        begin = -(-self._used // 64) * 64
        if begin + size > len(self._buffer):
            # Views of the old buffer keep it alive for as long as they are used.
            self._buffer, begin = torch.empty(begin + size, dtype=torch.uint8), 0
        self._used = begin + size
        raw = self._buffer[begin : begin + size]
        self._checkpoint.read_into(name, raw, index, count)
        shape = entry.shape if count == 1 else entry.shape[1:]
        return raw.view(self._checkpoint.dtype(name)).view(shape)

    def into(self, name: str, part: tuple[int, int], target: torch.Tensor) -> None:
        """Read straight into a contiguous `target` of the stored dtype."""
        self._checkpoint.read_into(name, target.view(torch.uint8).view(-1), *part)

    def plain(self, name: str, part: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """The values of a part: FP8 dequantised to `dtype`, others as stored (a copy converts them)."""
        stored = self.piece(name, part)
        if stored.dtype != FP8:
            return stored
        return dequantise(stored, self.piece(scale_name(name), part), dtype)
