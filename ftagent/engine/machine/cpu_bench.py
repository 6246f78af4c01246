"""How fast the expert threads compute records, beside how fast the same threads read the same memory.

Knows shapes and seconds; fitting a cost model to them and printing them happens elsewhere.
"""

from __future__ import annotations

import mmap
import statistics
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ftagent.engine.machine.record_threads import ExpertSizes, RecordThreads

_ITEM = {"bfloat16": 2, "float32": 4}
_ROUNDS = 3


class RecordBench(NamedTuple):
    """What to measure: jobs of `per_job` experts on `rows` rows, from a pool of at least `pool_bytes` (should
    be several times the last level cache).
    """

    hidden: int
    intermediate: int
    dtype: str = "bfloat16"
    per_job: int = 8
    rows: int = 1
    pool_bytes: int = 2 << 30


class RecordRate(NamedTuple):
    """Medians over alternating passes; GB are 1e9 bytes of weights, each counted once per job."""

    gemv_gbs: float
    read_gbs: float
    job_seconds: float
    passes: int
    threads: int
    isa: str

    @property
    def share(self) -> float:
        """Of the read bandwidth that the kernels reach."""
        return self.gemv_gbs / self.read_gbs


def record_rate(
    bench: RecordBench, seconds: float = 2.0, threads: int | None = None, isa: str | None = None
) -> RecordRate:
    """Measure for about `seconds`, three rounds at least: a pass that only reads the pool, then one that
    computes every expert of it through the executor.

    Raises EngineError without a native library, MemoryError without room for the pool.
    """
    expert_bytes = 3 * bench.hidden * bench.intermediate * _ITEM[bench.dtype]
    row_bytes = -(-expert_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    experts = max(bench.per_job, -(-bench.pool_bytes // row_bytes))
    pool = _pool(experts, row_bytes, bench)
    x = _values(np.random.default_rng(1).standard_normal((bench.rows, bench.hidden)), bench.dtype)
    y = np.empty((bench.per_job * bench.rows, bench.hidden), np.float32)
    team = RecordThreads(ExpertSizes(bench.hidden, bench.intermediate, bench.dtype, row_bytes), threads, isa)
    reads: list[float] = []
    passes: list[float] = []
    end = time.monotonic() + seconds
    try:
        while len(passes) < _ROUNDS or time.monotonic() < end:
            reads.append(team.read_seconds(pool.ctypes.data, pool.nbytes))
            passes.append(
                team.pool_seconds(
                    pool.ctypes.data, experts, bench.per_job, bench.rows, x.ctypes.data, y.ctypes.data
                )
            )
        took = statistics.median(passes)
        return RecordRate(
            gemv_gbs=experts * expert_bytes / took / 1e9,
            read_gbs=pool.nbytes / statistics.median(reads) / 1e9,
            job_seconds=took / (-(-experts // bench.per_job)),
            passes=len(passes),
            threads=team.threads,
            isa=team.isa,
        )
    finally:
        team.close()


def _pool(experts: int, row_bytes: int, bench: RecordBench) -> npt.NDArray[np.uint8]:
    """uint8 [experts, row_bytes] on huge pages where the system gives them, each row the same random expert:
    plain numbers, because zeros and denormals have other speeds.
    """
    memory = mmap.mmap(-1, experts * row_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without transparent huge pages
            pass
    pool = np.frombuffer(memory, np.uint8).reshape(experts, row_bytes)
    size = (bench.intermediate, 3, bench.hidden)
    scale = bench.hidden**-0.5
    expert = _values(np.random.default_rng(0).standard_normal(size) * scale, bench.dtype)
    pool[:, : expert.nbytes] = expert.view(np.uint8).reshape(-1)
    return pool


def _values(numbers: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[np.uint16] | npt.NDArray[np.float32]:
    """As float32, or as the upper halves of it: bf16 by cutting, which is close enough for a bench."""
    wide = numbers.astype(np.float32)
    return wide if dtype == "float32" else (wide.view(np.uint32) >> 16).astype(np.uint16)
