"""A pool's experts and what both ways compute on them, against numpy in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ftagent.engine.machine import native
from ftagent.engine.machine.record_pool import (
    MOST_JOB,
    MOST_ROWS,
    NativePasses,
    RecordPool,
    TorchPasses,
    expert_bytes,
    expert_sizes,
    open_passes,
)

DTYPES = ("bfloat16", "float32")


def small_pool(dtype: str) -> RecordPool:
    return RecordPool(expert_sizes(96, 40, dtype), 1)


def wide(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float64]:
    if dtype == "float32":
        return raw.view(np.float32).astype(np.float64)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def expected(pool: RecordPool) -> npt.NDArray[np.float64]:
    """[MOST_ROWS, hidden]: the expert's output, the same for all."""
    sizes = pool.sizes
    first = np.ascontiguousarray(pool.rows[0, : expert_bytes(sizes)])
    gate, up, down = np.moveaxis(wide(first, sizes.dtype).reshape(sizes.intermediate, 3, sizes.hidden), 1, 0)
    x = wide(pool.x.view(np.uint8).reshape(-1), sizes.dtype).reshape(MOST_ROWS, sizes.hidden)
    gates = x @ gate.T
    out: npt.NDArray[np.float64] = ((gates / (1 + np.exp(-gates))) * (x @ up.T)) @ down
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_whole_pages_and_all_the_same(dtype: str) -> None:
    pool = RecordPool(expert_sizes(96, 40, dtype), 500_000)
    assert pool.sizes.row_bytes % 4096 == 0
    assert pool.experts % MOST_JOB == 0
    assert pool.nbytes >= 500_000
    assert (pool.rows == pool.rows[0]).all()
    assert np.abs(expected(pool)).max() > 0.01


def test_stretches_go_round_the_pool() -> None:
    pool = RecordPool(expert_sizes(8, 4, "float32"), 4096 * 200)
    seen = np.zeros(pool.experts, bool)
    for _ in range(2 * pool.experts // 64 + 2):
        first, count = pool.stretch(1)
        assert (first % MOST_JOB, count) == (0, 64)
        assert first + count <= pool.experts
        seen[first : first + count] = True
    assert seen[: pool.experts // 64 * 64].all()
    assert pool.stretch(MOST_JOB) == (0, pool.experts)


@pytest.mark.parametrize("rows", [1, MOST_ROWS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_computes_the_experts(dtype: str, rows: int) -> None:
    pool = small_pool(dtype)
    passes = TorchPasses(pool, 1)
    pool.y.fill(np.nan)
    assert passes.compute(3, rows) > 0
    want = expected(pool)[:rows]
    for job in range(3):
        np.testing.assert_allclose(pool.y[job * rows : (job + 1) * rows], want, rtol=2e-3, atol=2e-3)
    assert np.isnan(pool.y[3 * rows :]).all()
    assert passes.read() > 0
    passes.close()


@pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("rows", [1, MOST_ROWS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_engines_threads_compute_the_experts(dtype: str, rows: int) -> None:
    pool = small_pool(dtype)
    passes = NativePasses(pool, 1)
    try:
        pool.y.fill(np.nan)
        assert passes.compute(2, rows) > 0
        assert passes.read() > 0
        assert (passes.way, passes.threads) == ("native", 1)
    finally:
        passes.close()
    want = np.concatenate([expected(pool)[:rows]] * 2)
    np.testing.assert_allclose(pool.y[: 2 * rows], want, rtol=2e-2, atol=2e-2)
    assert np.isnan(pool.y[2 * rows :]).all()


def test_without_the_library_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    before = torch.get_num_threads()
    passes = open_passes(small_pool("bfloat16"), 1)
    assert (passes.way, passes.isa, passes.threads) == ("torch", "torch", 1)
    passes.close()
    assert torch.get_num_threads() == before


def test_no_room_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no room"):
        RecordPool(expert_sizes(8, 4, "float32"), 1 << 60)
