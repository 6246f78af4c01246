"""The bandwidth bench: its figures on made-up sides with known speeds, and a real short run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from ftagent.engine.machine import bandwidth as module
from ftagent.engine.machine.bandwidth import (
    GAIN,
    LEAST_POOL,
    MOST_POOL,
    BandwidthOptions,
    BandwidthResult,
    bench_bandwidth,
    pool_size,
    thread_candidates,
)
from ftagent.engine.machine.gpus import Gpu
from ftagent.engine.machine.probe import Machine, probe
from ftagent.engine.machine.profile import Way
from ftagent.engine.machine.record_pool import RecordPool, expert_bytes, expert_sizes
from ftagent.errors import ConfigError, EngineError

SIZES = expert_sizes(64, 32, "bfloat16")
SIZE = expert_bytes(SIZES)
CARD = Gpu("Card", "GPU-1", driver="1")


class MadeUpPasses:
    """8 us + bytes at 10 GB/s by each thread, half that while the link is busy; 3 us a further row."""

    way: Way = "native"
    isa = "made up"
    busy = False
    best = 4

    def __init__(self, pool: RecordPool, threads: int | None) -> None:
        self.pool = pool
        self.threads = threads or 3
        self.closed = False

    def read(self) -> float:
        return self.pool.nbytes / 40e9

    def compute(self, per_job: int, rows: int) -> float:
        rate = 1e10 * (self.threads if self.threads <= self.best else 1) / (2 if MadeUpPasses.busy else 1)
        return 8e-6 + per_job * (SIZE / rate + (rows - 1) * 3e-6)

    def close(self) -> None:
        self.closed = True


class MadeUpLink:
    """9 us + bytes at 50 GB/s, 45 while the processor computes."""

    def __init__(self, pool: RecordPool, index: int) -> None:
        self.pool = pool
        self.rate = 0.0

    def linear(self) -> float:
        return self.pool.nbytes / 55e9

    def device_read(self) -> float:
        return self.pool.nbytes / 900e9

    def experts(self, count: int) -> float:
        return 9e-6 + count * SIZE / 50e9

    def busy(self) -> MadeUpLink:
        return self

    def __enter__(self) -> MadeUpLink:
        MadeUpPasses.busy = True
        return self

    def __exit__(self, *_: object) -> None:
        MadeUpPasses.busy = False
        self.rate = 45e9

    def close(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """This machine with a made-up card, four cores and made-up speeds."""
    found = probe()
    made_up = replace(found, cpu=replace(found.cpu, cores=4), gpus=(CARD,), no_gpu=None)
    monkeypatch.setattr(module, "probe", lambda: made_up)
    monkeypatch.setattr(module, "device_gpu", lambda index, gpus: CARD if index == 0 else None)
    monkeypatch.setattr(module, "open_passes", MadeUpPasses)
    monkeypatch.setattr(module, "LinkBench", MadeUpLink)
    yield made_up
    assert not MadeUpPasses.busy


def bench(**changes: object) -> BandwidthResult:
    options = BandwidthOptions(SIZES, seconds=0.01, pool_bytes=1)
    return bench_bandwidth(replace(options, **changes))  # type: ignore[arg-type]


def test_rates_and_lines_are_those_of_both_sides(machine: Machine) -> None:
    result = bench(threads=3)
    assert result.no_link is None
    found = result.bandwidths
    assert found.read.median == pytest.approx(40)
    assert found.cpu_one.median == pytest.approx(SIZE / (8e-6 + SIZE / 3e10) / 1e9)
    assert found.cpu_queued.median == pytest.approx(8 * SIZE / (8e-6 + 8 * SIZE / 3e10) / 1e9)
    assert found.link_linear is not None
    assert found.link_linear.median == pytest.approx(55)
    assert found.device_read is not None
    assert found.device_read.median == pytest.approx(900)
    assert found.link_one is not None
    assert found.link_one.median == pytest.approx(SIZE / (9e-6 + SIZE / 50e9) / 1e9)
    assert found.both_link is not None
    assert found.both_link.median == pytest.approx(45)
    assert found.both_cpu is not None
    assert found.both_cpu.median == pytest.approx(8 * SIZE / (8e-6 + 8 * SIZE / 1.5e10) / 1e9)
    profile = result.profile
    profile.check_integrity()
    assert (profile.threads, profile.fingerprint.uuid) == (3, "GPU-1")
    assert profile.device_bytes_per_s == pytest.approx(900e9, rel=1e-6)
    (link,) = profile.link
    assert link.piece_bytes == SIZE
    assert link.beside is not None
    assert link.alone.bytes_per_s == pytest.approx(50e9, rel=1e-3)
    assert link.alone.fixed_ns == pytest.approx(9000, abs=5)
    assert (link.beside.bytes_per_s, link.beside.fixed_ns) == (45_000_000_000, link.alone.fixed_ns)
    (cpu,) = profile.cpu
    assert cpu.beside is not None
    assert cpu.alone.bytes_per_s == pytest.approx(3e10, rel=1e-3)
    assert cpu.beside.bytes_per_s == pytest.approx(1.5e10, rel=1e-3)
    assert cpu.alone.fixed_ns == pytest.approx(8000, abs=5)
    assert cpu.row_ns == pytest.approx(3000, abs=5)


@pytest.mark.parametrize(("best", "chosen"), [(3, 3), (2, 2)])
def test_the_number_of_threads_is_the_fastest(best: int, chosen: int, machine: Machine) -> None:
    MadeUpPasses.best = best
    try:
        result = bench()
    finally:
        MadeUpPasses.best = 4
    assert result.profile.threads == chosen
    assert [count for count, _ in result.bandwidths.threads_tried] == [3, 2]


def test_the_usual_number_of_threads_stays_unless_another_is_clearly_faster() -> None:
    assert module._choose(((3, 100.0), (4, 100.0 * GAIN - 1))) == 3
    assert module._choose(((3, 100.0), (4, 100.0 * GAIN + 1))) == 4
    assert module._choose(()) is None


def test_without_a_link_its_figures_are_none_and_the_reason_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pool: RecordPool, index: int) -> MadeUpLink:
        raise EngineError("the driver refuses to pin")

    assert bench(device=None).no_link == "the processor alone was asked for"
    assert "cuda:1" in (bench(device=1).no_link or "")
    monkeypatch.setattr(module, "LinkBench", refused)
    result = bench()
    assert result.no_link == "the driver refuses to pin"
    found = result.bandwidths
    assert (found.link_linear, found.link_one, found.link_queued, found.both_cpu, found.both_link) == (
        None,
    ) * 5
    assert (result.profile.link, result.profile.cpu[0].beside) == ((), None)
    assert result.profile.fingerprint.uuid == "GPU-1"


def test_what_is_required_and_missing_is_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot measure cuda:7"):
        bench(device=7, required=True)
    full = replace(machine, memory=replace(machine.memory, available=SIZE))
    monkeypatch.setattr(module, "probe", lambda: full)
    with pytest.raises(ConfigError, match="no memory"):
        bench()


def test_a_pool_is_larger_than_the_caches_and_leaves_memory_to_others() -> None:
    found = probe()

    def size(cache: int, available: int, expert: int = 10**6) -> int:
        cpu = replace(found.cpu, cache_bytes=cache)
        memory = replace(found.memory, available=available)
        return pool_size(replace(found, cpu=cpu, memory=memory), expert)

    assert size(2**25, 2**40) == LEAST_POOL
    assert size(300 * 2**20, 2**40) == 1200 * 2**20
    assert size(2**40, 2**40) == MOST_POOL
    assert size(2**25, 2**29) == 2**27
    assert size(2**25, 2**20) == 8 * 10**6
    assert size(2**25, 2**40, 10**8) == 8 * 10**8


@pytest.mark.parametrize("usual", [1, 2, 6, 14])
def test_threads_worth_trying_start_with_the_usual_and_leave_the_others_their_cores(usual: int) -> None:
    found = thread_candidates(usual)
    assert found[0] == usual
    assert len(set(found)) == len(found)
    assert all(1 <= count <= usual for count in found)


def test_a_short_run_on_this_processor() -> None:
    result = bench_bandwidth(BandwidthOptions(SIZES, seconds=0.1, threads=1, device=None, pool_bytes=2**20))
    assert result.pool_bytes >= 2**20
    for found in (result.bandwidths.read, result.bandwidths.cpu_one, result.bandwidths.cpu_rows):
        assert 0 < found.low <= found.median <= found.high
        assert found.runs >= 3
    assert result.profile.threads == 1
    assert result.profile.fingerprint.gpu is None


@pytest.mark.gpu
def test_the_link_is_measured_alone_and_beside_the_processor() -> None:
    sizes = expert_sizes(1024, 512, "bfloat16")
    result = bench_bandwidth(BandwidthOptions(sizes, seconds=1.0, pool_bytes=2**28, required=True))
    found = result.bandwidths
    assert result.no_link is None
    assert result.gpu is not None
    assert found.link_linear is not None
    assert found.link_queued is not None
    assert found.both_link is not None
    assert found.both_cpu is not None
    assert found.device_read is not None
    assert found.device_read.median > 2 * found.link_linear.high
    assert found.link_queued.median < 1.2 * found.link_linear.high
    assert 0 < found.both_link.median < 1.2 * found.link_linear.high
    (link,) = result.profile.link
    assert link.beside is not None
    assert result.profile.cpu[0].beside is not None


@pytest.mark.gpu
def test_the_link_brings_the_experts() -> None:
    from ftagent.engine.machine.link_bench import LinkBench

    pool = RecordPool(expert_sizes(96, 40, "bfloat16"), 2**18)
    link = LinkBench(pool, 0)
    try:
        link._target.fill_(7)
        torch.cuda.synchronize()  # the link's stream does not wait for this one
        assert link.linear() > 0
        assert torch.equal(link._target.cpu(), torch.from_numpy(pool.rows.reshape(-1)))
        link._target.fill_(7)
        torch.cuda.synchronize()  # the link's stream does not wait for this one
        assert link.experts(pool.experts) > 0
        assert torch.equal(link._slots.cpu(), torch.from_numpy(pool.rows)[:, : expert_bytes(pool.sizes)])
        with link.busy() as busy:
            pass
        assert busy.rate >= 0
    finally:
        link.close()
