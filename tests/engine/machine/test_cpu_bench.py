"""The bench of the expert threads gives figures that belong together; nothing here asserts a speed."""

from __future__ import annotations

import pytest

from ftagent.engine.machine import native
from ftagent.engine.machine.cpu_bench import RecordBench, record_rate
from ftagent.engine.machine.record_threads import cpu_isas, read_bandwidth
from ftagent.errors import EngineError


@pytest.fixture(autouse=True)
def _library() -> None:
    if native.load() is None:
        pytest.skip("no native library")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_figures_belong_together(dtype: str) -> None:
    bench = RecordBench(hidden=256, intermediate=40, dtype=dtype, per_job=3, rows=2, pool_bytes=1 << 20)
    rate = record_rate(bench, seconds=0.0, threads=2, isa="scalar")
    assert (rate.threads, rate.isa, rate.passes) == (2, "scalar", 3)
    assert 0 < rate.gemv_gbs < 10_000
    assert 0 < rate.read_gbs < 10_000
    assert rate.share == pytest.approx(rate.gemv_gbs / rate.read_gbs)
    bytes_per_job = 3 * 3 * 256 * 40 * {"bfloat16": 2, "float32": 4}[dtype]
    # The last job of a pass may be smaller, never larger.
    assert rate.job_seconds * rate.gemv_gbs * 1e9 <= bytes_per_job * 1.001


def test_the_best_instruction_set_is_the_default() -> None:
    rate = record_rate(RecordBench(64, 8, per_job=1, pool_bytes=1 << 16), seconds=0.0, threads=1)
    assert rate.isa == cpu_isas()[-1]


def test_read_bandwidth() -> None:
    assert 0 < read_bandwidth(1 << 20, 2, 0.0) < 10_000


def test_no_memory_is_an_error() -> None:
    with pytest.raises(EngineError, match="cannot read"):
        read_bandwidth(1 << 60, 1, 0.0)


def test_no_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    assert cpu_isas() == []
    with pytest.raises(EngineError, match="no native library"):
        record_rate(RecordBench(64, 8, pool_bytes=1 << 16))
    with pytest.raises(EngineError, match="no native library"):
        read_bandwidth(1 << 20, 1, 0.0)
