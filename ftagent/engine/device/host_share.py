"""The CPU's share of a short prefill: missing experts with few rows are computed where they lie.

Joins the cost model and the executor for rows that live on the device. Knows no slots and no ring.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ftagent.engine.experts.costs import SMOOTHING, choose_fetches
from ftagent.engine.experts.native_executor import RecordExecutor
from ftagent.engine.machine.record_threads import RecordPart
from ftagent.errors import EngineError

if TYPE_CHECKING:
    from ftagent.engine.device.prefill import Sorted
    from ftagent.engine.device.tables import ExpertTables

WAITED_NS = 50_000  # a wait this long means that the CPU's end was seen
MOST_PAIRS = 4096  # (row, expert) pairs of one layer on the CPU: bounds the buffers


class HostJob(NamedTuple):
    """What the CPU computes of one layer. `pairs` int32 [P'] are the device's ids, in the order of `out`."""

    experts: int
    pairs: torch.Tensor
    x: torch.Tensor  # T [rows, H], pinned; kept while the CPU reads it
    out: torch.Tensor  # float32 [P', H], pinned
    started_ns: int


class HostShare:
    """Computes experts on the CPU beside the device's own, and adds their part behind it."""

    def __init__(self, tables: ExpertTables, executor: RecordExecutor, timeout_s: float = 20.0) -> None:
        self._tables = tables
        self._executor = executor
        self._timeout_s = timeout_s
        self._row_ns: int | None = None  # one more row of an expert, as measured; None: as the model says

    @property
    def failed(self) -> str | None:
        """Why the CPU computes nothing any more."""
        return self._executor.failed

    def share(self, missing: Sequence[int], rows: Sequence[int]) -> frozenset[int]:
        """Which of `missing` the CPU should compute, so that it ends when the link does."""
        if self._executor.failed is not None:
            return frozenset()
        order = sorted(missing, key=lambda expert: (-rows[expert], expert))
        costs = self._tables.costs
        if self._row_ns is not None:
            costs = replace(costs, cpu_row=self._row_ns)
        fetched = choose_fetches(costs, [rows[expert] for expert in order])
        kept: list[int] = []
        pairs = 0
        for expert in reversed(order[fetched:]):  # fewest rows first
            pairs += rows[expert]
            if pairs > MOST_PAIRS:
                break
            kept.append(expert)
        return frozenset(kept)

    def start(self, layer: int, x: torch.Tensor, pairs: Sorted, experts: frozenset[int]) -> HostJob:
        """Bring the rows to the host and begin. Waits for the copy: a few hundred rows, some microseconds."""
        order = sorted(experts)
        begin = pairs.starts[order[0]]  # the CPU's experts stand behind all others
        mine = pairs.pairs[begin:]
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        host.copy_(x, non_blocking=True)
        flat: list[int] = mine.tolist()
        ends = [pairs.starts[expert] - begin for expert in order[1:]] + [len(flat)]
        bank, intermediate, per_token = (
            self._tables.banks[layer],
            self._tables.intermediate,
            self._tables.per_token,
        )
        parts: list[RecordPart] = []
        for expert, end in zip(order, ends, strict=True):
            address = bank.address(expert)
            rows = flat[len(parts) : end]
            parts += [RecordPart(address, 0, intermediate, pair // per_token) for pair in rows]
        out = torch.empty(len(flat), x.shape[1], dtype=torch.float32, pin_memory=x.is_cuda)
        self._executor.start(parts, host, out)
        return HostJob(len(order), mine, host, out, time.perf_counter_ns())

    def finish(self, job: HostJob, weights: torch.Tensor, y: torch.Tensor) -> None:
        """Wait, and add weights [n, k] times the outputs to y float32 [n, H].

        Raises ExecutorFailed when a worker hangs.
        """
        waiting = time.perf_counter_ns()
        self._executor.wait(self._timeout_s)
        if time.perf_counter_ns() - waiting > WAITED_NS:  # else it may have ended long before
            self._learn(job, time.perf_counter_ns() - job.started_ns)
        pairs = job.pairs.long()
        planes = y.new_zeros(weights.numel(), y.shape[1])
        scale = weights.flatten()[pairs].float().unsqueeze(1)
        planes[pairs] = job.out.to(y.device, non_blocking=True) * scale
        y += planes.view(*weights.shape, -1).sum(1)

    def close(self) -> None:
        """End the CPU's threads."""
        self._executor.close()

    def abandon(self) -> None:
        """Wait until the threads have let go of a job whose result nobody wants."""
        with suppress(EngineError):
            self._executor.wait(self._timeout_s)

    def _learn(self, job: HostJob, measured_ns: int) -> None:
        """Correct what a row costs: processors differ most in that."""
        costs, rows = self._tables.costs, len(job.pairs)
        sample = max(measured_ns - costs.cpu_fixed - job.experts * costs.cpu_expert, 0) // rows
        before = costs.cpu_row if self._row_ns is None else self._row_ns
        self._row_ns = before + (sample - before) // SMOOTHING
