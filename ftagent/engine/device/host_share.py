"""The CPU's share of a short prefill: missing experts with few rows are computed where they lie.

Joins the cost model and the executor for rows that live on the device. Knows no slots and no ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from ftagent.engine.experts.costs import choose_fetches
from ftagent.engine.experts.native_executor import RecordExecutor
from ftagent.engine.machine.record_threads import RecordPart

if TYPE_CHECKING:
    from ftagent.engine.device.prefill import Sorted
    from ftagent.engine.device.tables import ExpertTables

MOST_PAIRS = 4096  # (row, expert) pairs of one layer on the CPU: bounds the buffers


class HostJob(NamedTuple):
    """Work that the CPU is to do for one layer. `pairs` are the device's pair ids, in the order of y."""

    layer: int
    experts: list[int]
    rows: list[list[int]]  # per expert
    pairs: torch.Tensor  # int32 [P']
    x: torch.Tensor  # T [rows, H], pinned


class HostShare:
    """Computes experts on the CPU beside the device's own, and adds their part behind it."""

    def __init__(self, tables: ExpertTables, executor: RecordExecutor, timeout_s: float = 20.0) -> None:
        self._tables = tables
        self._executor = executor
        self._timeout_s = timeout_s

    def share(self, missing: Sequence[int], rows: Sequence[int], tokens: int) -> frozenset[int]:
        """Which of `missing` the CPU should compute, so that it ends when the link does."""
        order = sorted(missing, key=lambda expert: (-rows[expert], expert))
        fetched = choose_fetches(self._tables.costs, [rows[expert] for expert in order])
        kept: list[int] = []
        pairs = 0
        for expert in reversed(order[fetched:]):  # fewest rows first
            pairs += rows[expert]
            if pairs > MOST_PAIRS:
                break
            kept.append(expert)
        return frozenset(kept)

    def prepare(self, layer: int, x: torch.Tensor, pairs: Sorted, experts: frozenset[int]) -> HostJob:
        """Bring the rows to the host while the device goes on."""
        order = sorted(experts)
        begin = pairs.starts[order[0]]  # the CPU's experts stand behind all others
        mine = pairs.pairs[begin:]
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        host.copy_(x, non_blocking=True)
        flat = mine.tolist()  # waits for the copy as well: a few hundred rows, some microseconds
        starts = [pairs.starts[expert] - begin for expert in order] + [len(flat)]
        rows = [
            [pair // self._tables.per_token for pair in flat[first:last]] for first, last in pairwise(starts)
        ]
        return HostJob(layer, order, rows, mine, host)

    def finish(self, job: HostJob, weights: torch.Tensor, y: torch.Tensor) -> None:
        """Compute, and add weights [n, k] times the outputs to y float32 [n, H].

        Raises EngineError when a worker hangs.
        """
        total = sum(len(rows) for rows in job.rows)
        out = torch.empty(total, y.shape[1], dtype=torch.float32, pin_memory=y.is_cuda)
        bank = self._tables.banks[job.layer]
        parts = [
            RecordPart(bank.address(expert), 0, self._tables.intermediate, row)
            for expert, rows in zip(job.experts, job.rows, strict=True)
            for row in rows
        ]
        self._executor.run(parts, job.x, out, self._timeout_s)
        pairs = job.pairs.long()
        planes = y.new_zeros(weights.numel(), y.shape[1])
        planes[pairs] = out.to(y.device, non_blocking=True) * weights.flatten()[pairs].float().unsqueeze(1)
        y += planes.view(*weights.shape, -1).sum(1)
