"""Computes runs of expert records where they lie in host memory: on native threads, or by torch without them.

An expert is `records` [intermediate, 3, hidden] (gate row, up row, down column of a channel), so records
[first, last) are a complete partial expert: y = sum over them of silu(gate . x) * (up . x) * down, float32.
Knows addresses and shapes; which records are computed here is decided elsewhere.

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
import torch.nn.functional as F

from ftagent.engine.machine import cores as machine_cores
from ftagent.engine.machine import native
from ftagent.errors import EngineError

log = logging.getLogger(__name__)

ISAS = ("scalar", "avx2", "avx512", "avx512bf16")
_DTYPES = {torch.bfloat16: 0, torch.float32: 1}
_OK, _TIMEOUT, _BAD_PART = 0, 1, 3


class ExecutorFailed(EngineError):
    """The executor cannot compute any more; the message says which worker did not answer."""


class RecordShape(NamedTuple):
    """Sizes of every expert: records [intermediate, 3, hidden] of dtype, `row_bytes` from one to the next."""

    hidden: int
    intermediate: int
    dtype: torch.dtype
    row_bytes: int


class RecordPart(NamedTuple):
    """Records [first, last) of the expert whose first byte is at `address`, on row `row` of x.

    Parts of one expert with the same records, given next to each other, share one pass over the weights
    (four rows at most; more rows take more passes).
    """

    address: int
    first: int
    last: int
    row: int


class RecordExecutor(Protocol):
    """What both executors do. `failed` says why nothing can be computed any more, None while all is well."""

    shape: RecordShape
    failed: str | None

    @property
    def threads(self) -> int: ...

    @property
    def isa(self) -> str: ...

    def run(
        self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor, timeout_s: float = 2.0
    ) -> None: ...

    def close(self) -> None: ...


def record_executor(shape: RecordShape, threads: int | None = None, isa: str | None = None) -> RecordExecutor:
    """The native executor, or the one in torch on a machine that cannot build it (a warning has said so)."""
    return TorchExecutor(shape) if native.load() is None else NativeExecutor(shape, threads, isa)


def cpu_isas() -> list[str]:
    """The instruction sets that this processor runs and the library was compiled for, worst first."""
    library = native.load()
    if library is None:
        return []
    library.ft_cpu_features.restype = ctypes.c_uint32
    bits = int(library.ft_cpu_features())
    return [name for bit, name in enumerate(ISAS) if bits >> bit & 1]


class _Shape(ctypes.Structure):
    _fields_ = (
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("row_bytes", ctypes.c_int64),
    )


class _Part(ctypes.Structure):
    _fields_ = (
        ("records", ctypes.c_void_p),
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("row", ctypes.c_int32),
        ("y", ctypes.c_void_p),
    )


class NativeExecutor:
    """Persistent pinned threads behind the C interface. `handle` is the address of the ft::Executor.

    `threads` None: one per core, two left free where there are more than four. `isa`: one of `ISAS`, the
    highest to use; None: the best there is. Raises EngineError when the library or the threads cannot be had.
    """

    def __init__(
        self,
        shape: RecordShape,
        threads: int | None = None,
        isa: str | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        library = native.load()
        if library is None:
            raise EngineError("no native library: expert records cannot be computed on native threads")
        _declare(library)
        self.shape = shape
        self.failed: str | None = None
        self._library = library
        where = list(cores) if cores is not None else machine_cores.worker_cores(threads)
        raw = _Shape(shape.hidden, shape.intermediate, _code(shape.dtype), shape.row_bytes)
        limit = -1 if isa is None else ISAS.index(isa)
        places = (ctypes.c_int32 * len(where))(*where)
        self.handle: int = library.ft_executor_new(ctypes.byref(raw), len(where), places, limit) or 0
        if not self.handle:
            raise EngineError(f"cannot start {len(where)} expert threads: no memory, or a limit on threads")

    @property
    def threads(self) -> int:
        return int(self._library.ft_executor_threads(self._open()))

    @property
    def isa(self) -> str:
        """Of the kernel in use, one of `ISAS`."""
        return str(self._library.ft_executor_isa(self._open()).decode())

    def run(
        self, parts: Sequence[RecordPart], x: torch.Tensor, y: torch.Tensor, timeout_s: float = 2.0
    ) -> None:
        """y[i] float32 [hidden] = part i on its row of x [rows, hidden]; y is written, not added to.

        Raises ExecutorFailed when a worker does not answer within `timeout_s`, and at every later call.
        """
        if self.failed is not None:
            raise ExecutorFailed(self.failed)
        _check(self.shape, parts, x, y)
        step = y.stride(0) * y.element_size()
        base = y.data_ptr()
        raw = (_Part * len(parts))()
        for i, part in enumerate(parts):
            raw[i] = _Part(*part, base + i * step)
        nanoseconds = math.ceil(timeout_s * 1e9)
        result = self._library.ft_executor_run(
            self._open(), raw, len(parts), x.data_ptr(), x.shape[0], nanoseconds
        )
        if result == _TIMEOUT:
            self._fail(timeout_s)
        elif result == _BAD_PART:
            raise ValueError(
                f"a part lies outside of {self.shape.intermediate} records and {x.shape[0]} rows"
            )
        elif result != _OK:
            raise EngineError("the expert threads are busy with another job")

    def read_seconds(self, data: torch.Tensor, timeout_s: float = 60.0) -> float:
        """Time of one pass of all workers that only reads `data` (contiguous, 64-byte aligned)."""
        seconds = float(
            self._library.ft_executor_read(self._open(), data.data_ptr(), data.nbytes, int(timeout_s * 1e9))
        )
        if seconds < 0:
            self._fail(timeout_s)
        return seconds

    def stall_for_test(self, seconds: float) -> None:
        """The next job: one worker sleeps first."""
        self._library.ft_executor_stall(self._open(), int(seconds * 1e9))

    def close(self) -> None:
        """Ends and joins the threads; one that hangs is let go of. May be called twice."""
        handle, self.handle = self.handle, 0
        if handle:
            self._library.ft_executor_free(handle)
            self.failed = self.failed or "the expert executor is closed"

    def _open(self) -> int:
        if not self.handle:
            raise ExecutorFailed("the expert executor is closed")
        return self.handle

    def _fail(self, timeout_s: float) -> None:
        worker = int(self._library.ft_executor_stuck(self._open()))
        self.failed = f"expert worker {worker} of {self.threads} did not answer within {timeout_s:g} s"
        log.error("%s; experts are no longer computed on the CPU threads", self.failed)
        raise ExecutorFailed(self.failed)


class TorchExecutor:
    """The same results to rounding, by torch on the caller's threads; nothing in it can hang alone."""

    def __init__(self, shape: RecordShape) -> None:
        _code(shape.dtype)
        self.shape = shape
        self.failed: str | None = None

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

    def close(self) -> None:
        self.failed = self.failed or "the expert executor is closed"

    def _part(self, part: RecordPart, x: torch.Tensor) -> torch.Tensor:
        count, hidden = part.last - part.first, self.shape.hidden
        if count == 0:
            return torch.zeros(hidden)
        size = self.shape.dtype.itemsize
        start = part.address + part.first * 3 * hidden * size
        raw = (ctypes.c_uint8 * (count * 3 * hidden * size)).from_address(start)
        records = torch.frombuffer(raw, dtype=self.shape.dtype).view(count, 3, hidden).float()
        act = F.silu(records[:, 0] @ x) * (records[:, 1] @ x)
        return act @ records[:, 2]


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


def _code(dtype: torch.dtype) -> int:
    if dtype not in _DTYPES:
        raise EngineError(f"expert records of {dtype} have no kernel; use bfloat16 or float32")
    return _DTYPES[dtype]


def _declare(library: ctypes.CDLL) -> None:
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.ft_executor_new.argtypes = (pointer, int32, pointer, int32)
    library.ft_executor_new.restype = pointer
    library.ft_executor_free.argtypes = (pointer,)
    library.ft_executor_free.restype = None
    library.ft_executor_run.argtypes = (pointer, pointer, int32, pointer, int32, int64)
    library.ft_executor_read.argtypes = (pointer, pointer, int64, int64)
    library.ft_executor_read.restype = ctypes.c_double
    library.ft_executor_threads.argtypes = (pointer,)
    library.ft_executor_isa.argtypes = (pointer,)
    library.ft_executor_isa.restype = ctypes.c_char_p
    library.ft_executor_stuck.argtypes = (pointer,)
    library.ft_executor_stall.argtypes = (pointer, int64)
    library.ft_executor_stall.restype = None
