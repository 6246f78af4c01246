"""Fills all banks with several threads, layer after layer, and registers each with the device behind.

The caller reads the dense weights meanwhile. Knows no model; what an expert is made of is in `loading`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import torch

from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.experts.loading import ExpertNames, PieceReader, fill_expert
from ftagent.engine.experts.pinning import Registrar
from ftagent.engine.experts.stored import RowReader, StoredRows
from ftagent.engine.weights.safetensors import Checkpoint

TASK_BYTES = 8 * 2**20  # small experts go together: a task costs some 50 us to hand over

ProgressCallback = Callable[[int, int], None]
"""Bytes of experts that are in the banks, and of all. Called from the filling threads, one at a time."""

log = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    layer: int
    reason: str


class BankFiller:
    """A running fill. Use as a context manager and call `wait` inside: leaving it early, by an exception,
    drops what has not begun and waits for the rest.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layers: Sequence[tuple[ExpertNames | StoredRows, ExpertBank]],
        threads: int,
        registrar: Registrar | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._layers = layers
        self._registrar = registrar
        self._progress = progress
        self._total = sum(bank.nbytes for _, bank in layers)
        self._done = 0
        self._lock = threading.Lock()
        self._left = [bank.experts for _, bank in layers]
        self._refused: list[_Refusal] = []
        self._local = threading.local()
        self._threads_before = torch.get_num_threads()
        self._workers = ThreadPoolExecutor(threads, "fill", initializer=self._begin_thread)
        self._pinner = ThreadPoolExecutor(1, "pin")
        self._pins: list[Future[None]] = []
        self._tasks = [
            self._workers.submit(self._fill, layer, first, min(first + step, bank.experts))
            for layer, (source, bank) in enumerate(layers)
            for step in (_step(source, bank),)
            for first in range(0, bank.experts, step)
        ]

    def __enter__(self) -> BankFiller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        self._workers.shutdown()
        self._pinner.shutdown()
        torch.set_num_threads(self._threads_before)
        self._checkpoint.close()

    def wait(self) -> None:
        """Return when every expert is in its bank and every bank has been registered, or refused.

        Raises LoadFailed when a file could not be read.
        """
        for task in self._tasks:
            task.result()
        for pin in list(self._pins):
            pin.result()
        if self._refused:
            self._report()

    def _begin_thread(self) -> None:
        # The copies of one expert are too small to share, and as many teams as workers would fight for cores.
        torch.set_num_threads(1)
        self._local.pieces = PieceReader(self._checkpoint)
        self._local.rows = RowReader()

    def _fill(self, layer: int, first: int, last: int) -> None:
        source, bank = self._layers[layer]
        with torch.inference_mode():
            if isinstance(source, StoredRows):
                self._local.rows.fill(source, bank, first)
            else:
                for expert in range(first, last):
                    fill_expert(self._local.pieces, source, bank, expert)
        with self._lock:
            self._left[layer] -= last - first
            self._done += (last - first) * bank.row_bytes
            if not self._left[layer] and self._registrar is not None:
                self._pins.append(self._pinner.submit(self._pin, layer, self._registrar))
            if self._progress is not None:
                self._progress(self._done, self._total)

    def _pin(self, layer: int, registrar: Registrar) -> None:
        reason = self._layers[layer][1].pin(registrar)
        if reason is not None:
            self._refused.append(_Refusal(layer, reason))

    def _report(self) -> None:
        layer, reason = min(self._refused)
        log.warning(
            "%d of %d expert layers are not pinned (first layer %d, %d bytes: %s): what they miss is left to "
            "the CPU, or copied more slowly; raise the limit of locked memory (ulimit -l)",
            len(self._refused),
            len(self._layers),
            layer,
            self._layers[layer][1].nbytes,
            reason,
        )


def _step(source: ExpertNames | StoredRows, bank: ExpertBank) -> int:
    """Experts that one task brings."""
    if isinstance(source, StoredRows):
        return source.rows_per_chunk
    return max(1, TASK_BYTES // bank.row_bytes)
