"""A pool of expert records in host memory, larger than the caches, and passes over it: reading, computing.

Computing uses the engine's native threads, or torch where the library cannot be built. Knows no model.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ftagent.engine.machine import native
from ftagent.engine.machine.profile import Way
from ftagent.engine.machine.record_threads import ExpertSizes, RecordThreads

ITEM_BYTES = {"bfloat16": 2, "float32": 4}
MOST_JOB = 8  # experts of one job
MOST_ROWS = 4  # rows of one job
MOST_JOBS = 64  # jobs of one pass


def expert_sizes(hidden: int, intermediate: int, dtype: str) -> ExpertSizes:
    """With rows as the banks have them: whole pages of 4096 bytes. `dtype` is bfloat16 or float32."""
    size = 3 * hidden * intermediate * ITEM_BYTES[dtype]
    return ExpertSizes(hidden, intermediate, dtype, -(-size // 4096) * 4096)


def expert_bytes(sizes: ExpertSizes) -> int:
    """Weights of one expert, in bytes, without the padding of its row."""
    return 3 * sizes.hidden * sizes.intermediate * ITEM_BYTES[sizes.dtype]


class RecordPool:
    """uint8 [experts, row_bytes] on huge pages where the system gives them; each row the same random expert.

    Plain numbers, because zeros and denormals have other speeds. A multiple of MOST_JOB experts, of
    `pool_bytes` at least. `x` is [MOST_ROWS, hidden], `y` float32 [MOST_JOB * MOST_ROWS, hidden].
    Raises MemoryError without room.
    """

    def __init__(self, sizes: ExpertSizes, pool_bytes: int) -> None:
        self.sizes = sizes
        self.experts = MOST_JOB * math.ceil(pool_bytes / (MOST_JOB * sizes.row_bytes))
        try:
            memory = mmap.mmap(-1, self.experts * sizes.row_bytes)
        except OSError as error:
            raise MemoryError(f"no room for a pool of {self.experts * sizes.row_bytes} bytes") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        rng = np.random.default_rng()
        shape = (sizes.intermediate, 3, sizes.hidden)
        expert = _values(rng.standard_normal(shape, np.float32) * sizes.hidden**-0.5, sizes.dtype)
        self.rows: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8).reshape(self.experts, -1)
        self.rows[:, : expert.nbytes] = expert.view(np.uint8).reshape(-1)
        self.x = _values(rng.standard_normal((MOST_ROWS, sizes.hidden), np.float32), sizes.dtype)
        self.y = np.empty((MOST_JOB * MOST_ROWS, sizes.hidden), np.float32)

        self._next = 0

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def stretch(self, per_job: int) -> tuple[int, int]:
        """First and number of the experts of a pass: whole jobs, MOST_JOBS at most, round and round the pool
        so that no cache holds the next ones.
        """
        count = min(self.experts, per_job * MOST_JOBS)
        if self._next + count > self.experts:
            self._next = 0
        first = self._next
        self._next += -(-count // MOST_JOB) * MOST_JOB
        return first, count


class Passes(Protocol):
    """Passes over a pool. `way` and `isa` say what computes, `threads` on how many."""

    way: Way
    isa: str
    threads: int

    def read(self) -> float:
        """Seconds to read every byte of the pool once."""
        ...

    def compute(self, per_job: int, rows: int) -> float:
        """Seconds of one job of `per_job` experts for `rows` rows each: the mean over a stretch of the pool,
        another one at every call.
        """
        ...

    def close(self) -> None: ...


def usual_way() -> Way:
    """What computes experts here. Without the native library a warning has said so."""
    return "torch" if native.load() is None else "native"


def open_passes(pool: RecordPool, threads: int | None) -> Passes:
    """By the native threads (None: as many as the engine would take), else by torch."""
    return NativePasses(pool, threads) if usual_way() == "native" else TorchPasses(pool, threads)


class NativePasses:
    """By the threads that compute experts in the engine."""

    way: Way = "native"

    def __init__(self, pool: RecordPool, threads: int | None) -> None:
        self._pool = pool
        self._team = RecordThreads(pool.sizes, threads)
        self.isa = self._team.isa
        self.threads = self._team.threads

    def read(self) -> float:
        return self._team.read_seconds(self._pool.rows.ctypes.data, self._pool.nbytes)

    def compute(self, per_job: int, rows: int) -> float:
        pool = self._pool
        first, count = pool.stretch(per_job)
        at, x, y = (array.ctypes.data for array in (pool.rows[first:], pool.x, pool.y))
        return self._team.pool_seconds(at, count, per_job, rows, x, y) * per_job / count

    def close(self) -> None:
        self._team.close()


class TorchPasses:
    """By torch: what computes experts on a machine without a C++ compiler."""

    way: Way = "torch"
    isa = "torch"

    def __init__(self, pool: RecordPool, threads: int | None) -> None:
        import torch

        self._pool = pool
        self._before = torch.get_num_threads()
        if threads is not None:
            torch.set_num_threads(threads)
        self._set: Callable[[int], None] = torch.set_num_threads
        self.threads = torch.get_num_threads()
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[pool.sizes.dtype]
        sizes = pool.sizes
        self._bytes = torch.from_numpy(pool.rows.reshape(-1)).view(torch.int64)
        used = torch.from_numpy(pool.rows[:, : expert_bytes(sizes)])
        self._experts = [row.view(dtype).view(sizes.intermediate, 3, sizes.hidden) for row in used]
        self._x = torch.from_numpy(pool.x.view(np.uint8)).view(dtype).view(MOST_ROWS, sizes.hidden).float()
        self._y = torch.from_numpy(pool.y)

    def read(self) -> float:
        began = time.perf_counter()
        self._bytes.sum()
        return time.perf_counter() - began

    def compute(self, per_job: int, rows: int) -> float:
        from torch.nn.functional import silu

        first, _ = self._pool.stretch(1)
        first = min(first, len(self._experts) - per_job)
        x = self._x[:rows].T
        began = time.perf_counter()
        for place in range(per_job):
            records = self._experts[first + place].float()
            act = silu(records[:, 0] @ x) * (records[:, 1] @ x)
            at = place * rows
            self._y[at : at + rows] = act.T @ records[:, 2]
        return time.perf_counter() - began

    def close(self) -> None:
        self._set(self._before)


def _values(numbers: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.uint16] | npt.NDArray[np.float32]:
    """As they are, or as the upper halves of them: bfloat16 by cutting, which is close enough for a bench."""
    return numbers if dtype == "float32" else (numbers.view(np.uint32) >> 16).astype(np.uint16)
