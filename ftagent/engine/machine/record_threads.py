"""The native executor of expert records, by addresses and integers: the ctypes face of `native/executor.h`.

Knows no tensors. Whoever calls sees to it that the addresses are valid until the call ends.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

from ftagent.engine.machine import cores as machine_cores
from ftagent.engine.machine import native
from ftagent.engine.machine.handles import Handle
from ftagent.errors import EngineError

ISAS = ("scalar", "avx2", "avx512", "avx512bf16")
DTYPES = ("bfloat16", "float32")
_OK, _BAD_PART = 0, 3


class ExecutorFailed(EngineError):
    """The executor cannot compute any more; the message says which worker did not answer."""


class RecordPart(NamedTuple):
    """Records [first, last) of the expert whose first byte is at `address`, on row `row` of x.

    Parts of one expert with the same records, given next to each other, share one pass over the weights
    (four rows at most; more rows take more passes).
    """

    address: int
    first: int
    last: int
    row: int


class ExpertSizes(NamedTuple):
    """Sizes of every expert: records [intermediate, 3, hidden] of dtype (one of `DTYPES`), `row_bytes` from
    one expert to the next; `biased`: behind the records biases of gate and up [2 * intermediate]. What stands
    below says how the two become one, as `kernels.swiglu` has it.
    """

    hidden: int
    intermediate: int
    dtype: str
    row_bytes: int
    biased: bool = False
    alpha: float = 1.0
    limit: float = math.inf
    offset: float = 0.0


def cpu_isas() -> list[str]:
    """The instruction sets that this processor runs, worst first; empty without the native library."""
    library = native.load()
    if library is None:
        return []
    library.ft_cpu_features.restype = ctypes.c_uint32
    bits = int(library.ft_cpu_features())
    return [name for bit, name in enumerate(ISAS) if bits >> bit & 1]


def read_bandwidth(nbytes: int, threads: int, seconds: float) -> float:
    """GB/s (1e9 bytes) that `threads` pinned threads read from `nbytes` of huge pages of their own.

    The median of the passes that fit into `seconds`. Raises EngineError without a native library or memory.
    """
    library = native.load()
    if library is None:
        raise EngineError("no native library: the read bandwidth cannot be measured")
    library.ft_read_bandwidth.argtypes = (ctypes.c_int64, ctypes.c_int32, ctypes.c_double)
    library.ft_read_bandwidth.restype = ctypes.c_double
    rate = float(library.ft_read_bandwidth(nbytes, threads, seconds))
    if rate < 0:
        raise EngineError(f"cannot read {nbytes} bytes on {threads} threads: no memory, or no threads")
    return rate


class _Shape(ctypes.Structure):
    _fields_ = (
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("row_bytes", ctypes.c_int64),
        ("biased", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("limit", ctypes.c_float),
        ("offset", ctypes.c_float),
    )


class _Part(ctypes.Structure):
    _fields_ = (
        ("records", ctypes.c_void_p),
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("row", ctypes.c_int32),
        ("y", ctypes.c_void_p),
    )


class _Pool(ctypes.Structure):
    _fields_ = (
        ("records", ctypes.c_void_p),
        ("experts", ctypes.c_int32),
        ("per_job", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
    )


class RecordThreads:
    """Persistent pinned threads. `handle` is the address of the ft::Executor, 0 once closed.

    `threads` None: one per core, two left free where there are more than four. `isa`: one of `ISAS`, the
    highest to use; None: the best there is. `failed` says why nothing can be computed any more.
    Raises EngineError when the library or the threads cannot be had.
    """

    def __init__(
        self,
        sizes: ExpertSizes,
        threads: int | None = None,
        isa: str | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        library = native.load()
        if library is None:
            raise EngineError("no native library: expert records cannot be computed on native threads")
        _declare(library)
        self.sizes = sizes
        self._failed: str | None = None
        self._library = library
        where = list(cores) if cores is not None else machine_cores.worker_cores(threads)
        shape = _Shape(
            sizes.hidden,
            sizes.intermediate,
            DTYPES.index(sizes.dtype),
            sizes.row_bytes,
            sizes.biased,
            sizes.alpha,
            sizes.limit,
            sizes.offset,
        )
        limit = -1 if isa is None else ISAS.index(isa)
        places = (ctypes.c_int32 * len(where))(*where)
        address = library.ft_executor_new(ctypes.byref(shape), len(where), places, limit) or 0
        self.native = Handle(address, library.ft_executor_free)
        if not address:
            raise EngineError(f"cannot start {len(where)} expert threads: no memory, or a limit on threads")

    @property
    def failed(self) -> str | None:
        """Also when the conductor, which waits by itself, has given a worker up."""
        if self._failed is None and self.handle:
            worker = int(self._library.ft_executor_stuck(self.handle))
            if worker >= 0:
                self._failed = f"expert worker {worker} of {self.threads} does not answer"
        return self._failed

    @property
    def handle(self) -> int:
        return self.native.address

    @property
    def threads(self) -> int:
        return int(self._library.ft_executor_threads(self._open()))

    @property
    def isa(self) -> str:
        """Of the kernel in use, one of `ISAS`."""
        return str(self._library.ft_executor_isa(self._open()).decode())

    def run(
        self, parts: Sequence[RecordPart], targets: Sequence[int], x: int, rows: int, timeout_s: float
    ) -> None:
        """float32 [hidden] at targets[i] = part i on its row of the [rows, hidden] at address x.

        Raises ExecutorFailed when a worker does not answer within `timeout_s`, and at every later call.
        """
        self.start(parts, targets, x, rows)
        self.wait(timeout_s)

    def start(
        self,
        parts: Sequence[RecordPart],
        targets: Sequence[int],
        x: int,
        rows: int,
        done: tuple[int, int] = (0, 0),
    ) -> None:
        """Begin what `run` does and return. The last worker stores the second of `done` as uint32 at the
        address that is its first (0: nowhere). One job at a time; what it is given must stay valid till then.
        """
        if self.failed is not None:
            raise ExecutorFailed(self.failed)
        raw = (_Part * len(parts))()
        for i, (part, target) in enumerate(zip(parts, targets, strict=True)):
            raw[i] = _Part(*part, target)
        result = self._library.ft_executor_start(self._open(), raw, len(parts), x, rows, *done)
        if result == _BAD_PART:
            raise ValueError(f"a part lies outside of {self.sizes.intermediate} records and {rows} rows")
        if result != _OK:
            raise EngineError("the expert threads are busy with another job")

    def wait(self, timeout_s: float) -> None:
        """Until the job is done. Raises ExecutorFailed when it is not within `timeout_s`."""
        if self._library.ft_executor_wait(self._open(), math.ceil(timeout_s * 1e9)) != _OK:
            self._fail(timeout_s)

    def read_seconds(self, address: int, nbytes: int, timeout_s: float = 60.0) -> float:
        """Time of one pass of all threads that only reads `nbytes` at `address` (64-byte aligned)."""
        limit = math.ceil(timeout_s * 1e9)
        seconds = float(self._library.ft_executor_read(self._open(), address, nbytes, limit))
        if seconds < 0:
            self._fail(timeout_s)
        return seconds

    def pool_seconds(
        self, address: int, experts: int, per_job: int, rows: int, x: int, y: int, timeout_s: float = 60.0
    ) -> float:
        """Time to compute every expert of a pool at `address` once: `per_job` at a time, on all `rows` of x.

        x: [rows, hidden] of the dtype; y: float32 [per_job * rows, hidden], written over by every job.
        """
        pool = _Pool(address, experts, per_job, rows, x, y)
        limit = math.ceil(timeout_s * 1e9)
        seconds = float(self._library.ft_executor_gemv(self._open(), ctypes.byref(pool), limit))
        if seconds < 0:
            self._fail(timeout_s)
        return seconds

    def wake(self) -> None:
        """A job is near: threads that sleep get up and spin for 2 ms."""
        self._library.ft_executor_wake(self._open())

    def stall_for_test(self, seconds: float) -> None:
        """The next job: one worker sleeps first."""
        self._library.ft_executor_stall(self._open(), int(seconds * 1e9))

    def close(self) -> None:
        """Ends and joins the threads; one that hangs is let go of. May be called twice."""
        if self.handle:
            self.native.close()
            self._failed = self._failed or "the expert executor is closed"

    def _open(self) -> int:
        if not self.handle:
            raise ExecutorFailed(self.failed or "the expert executor is closed")
        return self.handle

    def _fail(self, timeout_s: float) -> None:
        worker = int(self._library.ft_executor_stuck(self._open()))
        self._failed = f"expert worker {worker} of {self.threads} did not answer within {timeout_s:g} s"
        raise ExecutorFailed(self._failed)


def _declare(library: ctypes.CDLL) -> None:
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.ft_executor_new.argtypes = (pointer, int32, pointer, int32)
    library.ft_executor_new.restype = pointer
    library.ft_executor_free.argtypes = (pointer,)
    library.ft_executor_free.restype = None
    library.ft_executor_start.argtypes = (pointer, pointer, int32, pointer, int32, pointer, ctypes.c_uint32)
    library.ft_executor_wait.argtypes = (pointer, int64)
    library.ft_executor_read.argtypes = (pointer, pointer, int64, int64)
    library.ft_executor_read.restype = ctypes.c_double
    library.ft_executor_gemv.argtypes = (pointer, pointer, int64)
    library.ft_executor_gemv.restype = ctypes.c_double
    library.ft_executor_threads.argtypes = (pointer,)
    library.ft_executor_isa.argtypes = (pointer,)
    library.ft_executor_isa.restype = ctypes.c_char_p
    library.ft_executor_stuck.argtypes = (pointer,)
    library.ft_executor_wake.argtypes = (pointer,)
    library.ft_executor_wake.restype = None
    library.ft_executor_stall.argtypes = (pointer, int64)
    library.ft_executor_stall.restype = None
