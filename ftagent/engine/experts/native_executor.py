"""Computes runs of expert records where they lie in host memory: on native threads, or by torch without them.

An expert is `records` [intermediate, 3, hidden] (gate row, up row, down column of a channel), so records
[first, last) are a complete partial expert: y = sum over them of silu(gate . x) * (up . x) * down, float32.
Biases of gate and up [2 * intermediate] may lie behind the records, and `kernels.swiglu` says how the two
become one. The bias of down is left to who adds the parts: it counts once. Knows addresses and shapes; which
records are computed here is decided elsewhere.

Determinism: the same parts on the same number of threads with the same instruction set give the same bits.
"""

from __future__ import annotations

import ctypes
import logging
import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ftagent.engine.kernels.experts import SILU, swiglu_
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.machine import native
from ftagent.engine.machine.handles import Handle
from ftagent.engine.machine.record_threads import ExecutorFailed, ExpertSizes, RecordPart, RecordThreads
from ftagent.errors import EngineError

log = logging.getLogger(__name__)

_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


class RecordShape(NamedTuple):
    """Sizes of every expert: records [intermediate, 3, hidden] of dtype, `row_bytes` from one to the next;
    `biased`: biases of gate and up behind the records.
    """

    hidden: int
    intermediate: int
    dtype: torch.dtype
    row_bytes: int
    biased: bool = False
    swiglu: Swiglu = SILU

    def sizes(self) -> ExpertSizes:
        """The same for the native threads."""
        alpha, limit, offset = self.swiglu
        return ExpertSizes(
            self.hidden,
            self.intermediate,
            _name(self.dtype),
            self.row_bytes,
            self.biased,
            alpha,
            math.inf if limit is None else limit,
            offset,
        )


class RecordExecutor(Protocol):
    """What both executors do. `failed` says why nothing can be computed any more, None while all is well."""

    @property
    def shape(self) -> RecordShape: ...

    @property
    def failed(self) -> str | None: ...

    @property
    def threads(self) -> int: ...

    @property
    def isa(self) -> str: ...

    def run(
        self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor, timeout_s: float = 2.0
    ) -> None: ...

    def start(self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor) -> None:
        """Begin what `run` does. x and y must live until `wait` has returned."""
        ...

    def wait(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


def record_executor(shape: RecordShape, threads: int | None = None, isa: str | None = None) -> RecordExecutor:
    """The native executor, or the one in torch on a machine that cannot build it (a warning has said so)."""
    return TorchExecutor(shape) if native.load() is None else NativeExecutor(shape, threads, isa)


class NativeExecutor:
    """Persistent pinned threads; see RecordThreads for the arguments and for what is raised."""

    def __init__(
        self,
        shape: RecordShape,
        threads: int | None = None,
        isa: str | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        self.shape = shape
        self._team = RecordThreads(shape.sizes(), threads, isa, cores)

    @property
    def handle(self) -> int:
        """Address of the ft::Executor, for the conductor; 0 once closed."""
        return self._team.handle

    @property
    def native(self) -> Handle:
        return self._team.native

    @property
    def failed(self) -> str | None:
        return self._team.failed

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def isa(self) -> str:
        """Instruction set of the kernel in use."""
        return self._team.isa

    def run(
        self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor, timeout_s: float = 2.0
    ) -> None:
        """y[i] float32 [hidden] = part i on its row of x [rows, hidden]; y is written, not added to.

        Raises ValueError for tensors or parts that do not fit, and ExecutorFailed when a worker does not
        answer within `timeout_s`, then and at every later call.
        """
        self.start(parts, x, y)
        self.wait(timeout_s)

    def start(self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor) -> None:
        """Begin what `run` does, and return. Raises as `run` does, but for the time-out."""
        if self.failed is not None:
            raise ExecutorFailed(self.failed)
        _check(self.shape, parts, x, y)
        step, base = y.stride(0) * y.element_size(), y.data_ptr()
        targets = [base + step * i for i in range(len(parts))]
        self._team.start(parts, targets, x.data_ptr(), x.shape[0])

    def wait(self, timeout_s: float) -> None:
        """Until what was started is done. Raises ExecutorFailed when a worker does not answer in time."""
        try:
            self._team.wait(timeout_s)
        except ExecutorFailed as error:
            log.error("%s; the CPU threads compute no more experts", error)
            raise

    def stall_for_test(self, seconds: float) -> None:
        """The next job: one worker sleeps first."""
        self._team.stall_for_test(seconds)

    def close(self) -> None:
        """Ends and joins the threads; one that hangs is let go of. May be called twice."""
        self._team.close()


class TorchExecutor:
    """The same results to rounding, by torch on the caller's threads; nothing in it can hang alone."""

    def __init__(self, shape: RecordShape) -> None:
        _name(shape.dtype)
        self.shape = shape
        self.failed: str | None = None
        self._started: tuple[Sequence[RecordPart], torch.Tensor, torch.Tensor] | None = None

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def isa(self) -> str:
        return "torch"

    def run(
        self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor, timeout_s: float = 2.0
    ) -> None:
        """As NativeExecutor.run. The time-out is looked at between parts."""
        if self.failed is not None:
            raise ExecutorFailed(self.failed)
        _check(self.shape, parts, x, y)
        end = time.monotonic() + timeout_s
        for part, out in zip(parts, y, strict=True):
            out.copy_(self._part(part, x[part.row].float()))
            if time.monotonic() > end:
                self.failed = f"torch did not compute the experts within {timeout_s:g} s"
                raise ExecutorFailed(self.failed)

    def start(self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor) -> None:
        """There are no threads of its own: the work is done in `wait`."""
        self._started = parts, x, y

    def wait(self, timeout_s: float) -> None:
        started, self._started = self._started, None
        if started is not None:
            self.run(*started, timeout_s)

    def close(self) -> None:
        self.failed = self.failed or "the expert executor is closed"

    def _part(self, part: RecordPart, x: torch.Tensor) -> torch.Tensor:
        count, hidden, inner = part.last - part.first, self.shape.hidden, self.shape.intermediate
        if count == 0:
            return torch.zeros(hidden)
        records = self._values(part.address, 3 * hidden * part.first, 3 * hidden * count).view(
            count, 3, hidden
        )
        gate, up = records[:, 0] @ x, records[:, 1] @ x
        if self.shape.biased:
            behind = 3 * hidden * inner + part.first
            gate += self._values(part.address, behind, count)
            up += self._values(part.address, behind + inner, count)
        return swiglu_(gate, up, self.shape.swiglu) @ records[:, 2]

    def _values(self, address: int, first: int, count: int) -> torch.Tensor:
        """float32 [count] from element `first` behind `address` on."""
        size = self.shape.dtype.itemsize
        raw = (ctypes.c_uint8 * (count * size)).from_address(address + first * size)
        return torch.frombuffer(raw, dtype=self.shape.dtype).float()


def _check(shape: RecordShape, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor) -> None:
    """Raises ValueError for what would be read or written out of bounds."""
    rows = (x.ndim, x.shape[-1], x.dtype, x.is_contiguous(), x.is_cpu)
    if rows != (2, shape.hidden, shape.dtype, True, True):
        raise ValueError(f"x must be a contiguous CPU tensor [rows, {shape.hidden}] of {shape.dtype}")
    if y.shape != (len(parts), shape.hidden) or y.dtype != torch.float32 or y.stride(1) != 1 or not y.is_cpu:
        raise ValueError(f"y must be a float32 CPU tensor [{len(parts)}, {shape.hidden}] with dense rows")
    for part in parts:
        if not (0 <= part.first <= part.last <= shape.intermediate and 0 <= part.row < x.shape[0]):
            raise ValueError(f"{part} lies outside of {shape.intermediate} records and {x.shape[0]} rows")


def _name(dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        raise EngineError(f"expert records of {dtype} have no kernel; use bfloat16 or float32")
    return _DTYPES[dtype]
