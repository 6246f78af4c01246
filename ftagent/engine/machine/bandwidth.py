"""`ftagent bench bandwidth`: how fast link and processor deal with a model's experts, alone and at once.

On the deployed shapes and through the engine's own threads. All quantities are measured in turn, round after
round, because memory bandwidth drifts; medians count. The figures become a profile that later runs start
from. Knows no command line and no cost model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from ftagent.engine.machine.gpus import Gpu, device_gpu
from ftagent.engine.machine.link_bench import LinkBench
from ftagent.engine.machine.probe import Machine, probe
from ftagent.engine.machine.profile import (
    CpuFigures,
    Dtype,
    Fingerprint,
    Line,
    LinkFigures,
    Profile,
    fingerprint,
)
from ftagent.engine.machine.record_pool import (
    MOST_JOB,
    MOST_JOBS,
    MOST_ROWS,
    Passes,
    RecordPool,
    expert_bytes,
    open_passes,
)
from ftagent.engine.machine.record_threads import ExpertSizes
from ftagent.engine.machine.rounds import Spread, alternate, fit_line, spread
from ftagent.errors import ConfigError, EngineError

JOBS = (1, 2, 4, MOST_JOB)  # experts of one job, and of one batch on the link
LEAST_POOL, MOST_POOL = 256 * 2**20, 2 * 2**30
CACHES = 4  # the pool is at least this many times the last-level cache
GAIN = 1.03  # another number of threads must be faster by this to be taken
THREADS_SHARE = 0.2  # of the time, to choose the number of threads


@dataclass(frozen=True, slots=True)
class BandwidthOptions:
    """What to measure. `device` is an index of CUDA's, or None for the processor alone.

    `threads` None: the bench chooses. `pool_bytes` None: several times the last-level cache. `required`: a
    missing device is an error, not a reason to leave its figures out.
    """

    sizes: ExpertSizes
    seconds: float = 10.0
    threads: int | None = None
    device: int | None = 0
    pool_bytes: int | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """GB/s (1e9 bytes of weights), or None where it could not be measured, for the reason in `no_link`.

    `read`: host memory by all threads. `cpu_one`, `cpu_queued`: computing experts for one row, one at a time
    and MOST_JOB at a time; `cpu_rows`: MOST_ROWS rows, weights counted once. `link_linear`: one long copy;
    `link_one`, `link_queued`: experts by the copy engine, waited for one by one and MOST_JOB together.
    `both_cpu` and `both_link`: both at once. `device_read`: the device's own memory. `threads_tried`: GB/s by
    number of threads.
    """

    read: Spread
    cpu_one: Spread
    cpu_queued: Spread
    cpu_rows: Spread
    link_linear: Spread | None
    link_one: Spread | None
    link_queued: Spread | None
    both_cpu: Spread | None
    both_link: Spread | None
    device_read: Spread | None
    threads_tried: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class BandwidthResult:
    """Everything measured. `way` and `isa` say what computed the experts."""

    machine: Machine
    gpu: Gpu | None
    no_link: str | None
    sizes: ExpertSizes
    expert_bytes: int
    pool_bytes: int
    way: str
    isa: str
    bandwidths: Bandwidths
    profile: Profile


def bench_bandwidth(options: BandwidthOptions) -> BandwidthResult:
    """Measure for about `options.seconds`, three rounds at least.

    Raises ConfigError when a required device or the memory for the pool is missing, EngineError when the
    threads fail.
    """
    machine = probe()
    gpu, no_link = _gpu(machine, options.device)
    if options.required and gpu is None:
        raise ConfigError(f"cannot measure cuda:{options.device}: {no_link}; use --device cpu")
    sizes = options.sizes
    wanted = options.pool_bytes or pool_size(machine, expert_bytes(sizes))
    if max(wanted, MOST_JOB * sizes.row_bytes) > machine.memory.available:
        raise ConfigError(f"no memory for {MOST_JOB} experts of {sizes.row_bytes} bytes; free some")
    pool = RecordPool(sizes, wanted)
    tried = _try_threads(pool, machine, options)
    passes = open_passes(pool, options.threads or _choose(tried))
    link = None
    try:
        if gpu is not None and options.device is not None:
            try:
                link = LinkBench(pool, options.device)
            except EngineError as error:
                no_link = str(error)
        bench = _Bench(pool, passes, link)
        samples = alternate(bench.probes(), options.seconds * (1 - THREADS_SHARE if tried else 1))
        figures = _Figures(bench, samples)
        mark = fingerprint(machine, gpu)
        return BandwidthResult(
            machine=machine,
            gpu=gpu,
            no_link=no_link,
            sizes=sizes,
            expert_bytes=bench.size,
            pool_bytes=pool.nbytes,
            way=passes.way,
            isa=passes.isa,
            bandwidths=figures.bandwidths(tried),
            profile=figures.profile(mark, passes),
        )
    finally:
        if link is not None:
            link.close()
        passes.close()


def pool_size(machine: Machine, size: int) -> int:
    """Bytes of a pool that no cache holds.

    MOST_JOB experts of `size` at least, else a quarter of free memory at most.
    """
    cache = CACHES * (machine.cpu.cache_bytes or 64 * 2**20)
    wanted = min(max(cache, LEAST_POOL, MOST_JOB * size), MOST_POOL)
    return max(min(wanted, machine.memory.available // 4), MOST_JOB * size)


def thread_candidates(usual: int) -> tuple[int, ...]:
    """Numbers of threads worth trying, the usual one first. None above it: alone they may be faster, but the
    thread that serves a step and the one that waits for it need cores of their own.
    """
    others = {math.ceil(usual * 0.75), usual - 1} - {usual}
    return (usual, *sorted(count for count in others if count >= 1))


def _gpu(machine: Machine, device: int | None) -> tuple[Gpu | None, str | None]:
    """The GPU to measure, or why there is none."""
    if device is None:
        return None, "the processor alone was asked for"
    if not machine.gpus:
        return None, machine.no_gpu
    found = device_gpu(device, machine.gpus)
    return found, None if found else f"torch finds no device cuda:{device}"


def _try_threads(
    pool: RecordPool, machine: Machine, options: BandwidthOptions
) -> tuple[tuple[int, float], ...]:
    """GB/s by number of threads, the usual number first; empty when the number is given or torch computes."""
    if options.threads is not None:
        return ()
    usual = open_passes(pool, None)
    teams: dict[int, Passes] = {usual.threads: usual}
    try:
        if usual.way != "native":
            return ()
        for count in thread_candidates(usual.threads)[1:]:
            teams[count] = open_passes(pool, count)
        probes = {str(count): _computing(team, MOST_JOB, 1) for count, team in teams.items()}
        samples = alternate(probes, options.seconds * THREADS_SHARE)
        nbytes = MOST_JOB * expert_bytes(pool.sizes)
        return tuple((int(name), nbytes / spread(each).median / 1e9) for name, each in samples.items())
    finally:
        for team in teams.values():
            team.close()


def _choose(tried: tuple[tuple[int, float], ...]) -> int | None:
    """The usual number of threads unless another is clearly faster; None where none was tried."""
    if not tried:
        return None
    best = max(tried, key=lambda pair: pair[1])
    return best[0] if best[1] > GAIN * tried[0][1] else tried[0][0]


def _computing(passes: Passes, per_job: int, rows: int) -> Callable[[], float]:
    return lambda: passes.compute(per_job, rows)


class _Bench:
    """The probes: each gives seconds of a pass, of a job or of a batch."""

    def __init__(self, pool: RecordPool, passes: Passes, link: LinkBench | None) -> None:
        self.size = expert_bytes(pool.sizes)
        self.pool = pool
        self.passes = passes
        self.link = link
        self.link_rates: dict[str, list[float]] = {}

    def probes(self) -> dict[str, Callable[[], float]]:
        """By name; the number behind a name is of experts per job or batch."""
        found: dict[str, Callable[[], float]] = {"read": self.passes.read}
        for count in JOBS:
            found[f"cpu{count}"] = _computing(self.passes, count, 1)
        found["rows"] = _computing(self.passes, MOST_JOB, MOST_ROWS)
        if self.link is not None:
            found["linear"] = self.link.linear
            found["device"] = self.link.device_read
            for count in JOBS:
                found[f"link{count}"] = self._copying(self.link, count)
            for count in JOBS:
                found[f"both{count}"] = self._both(self.link, count)
        return found

    def _copying(self, link: LinkBench, count: int) -> Callable[[], float]:
        """Seconds of one batch of `count`, the mean over some."""
        batches = max(min(self.pool.experts, MOST_JOBS) // count, 1)
        return lambda: sum(link.experts(count) for _ in range(batches)) / batches

    def _both(self, link: LinkBench, count: int) -> Callable[[], float]:
        name = f"both{count}"

        def run() -> float:
            with link.busy() as busy:
                took = self.passes.compute(count, 1)
            self.link_rates.setdefault(name, []).append(busy.rate)
            return took

        return run


class _Figures:
    """From samples to rates and lines."""

    def __init__(self, bench: _Bench, samples: dict[str, list[float]]) -> None:
        self._bench = bench
        self._samples = samples
        # The first round, which does not count, is in these too.
        self._link_rates = {name: rates[1:] for name, rates in bench.link_rates.items()}

    def bandwidths(self, tried: tuple[tuple[int, float], ...]) -> Bandwidths:
        has_link = self._bench.link is not None
        size, queued = self._bench.size, f"both{MOST_JOB}"
        return Bandwidths(
            read=self._rate("read", self._bench.pool.nbytes),
            cpu_one=self._rate("cpu1", size),
            cpu_queued=self._rate(f"cpu{MOST_JOB}", MOST_JOB * size),
            cpu_rows=self._rate("rows", MOST_JOB * size),
            link_linear=self._rate("linear", self._bench.pool.nbytes) if has_link else None,
            link_one=self._rate("link1", size) if has_link else None,
            link_queued=self._rate(f"link{MOST_JOB}", MOST_JOB * size) if has_link else None,
            both_cpu=self._rate(queued, MOST_JOB * size) if has_link else None,
            both_link=spread([rate / 1e9 for rate in self._link_rates[queued]]) if has_link else None,
            device_read=self._device() if has_link else None,
            threads_tried=tried,
        )

    def profile(self, mark: Fingerprint, passes: Passes) -> Profile:
        size = self._bench.size
        cpu = self._cpu_line("cpu")
        row_s = self._median("rows") - self._median(f"cpu{MOST_JOB}")
        figures = CpuFigures(
            dtype=cast("Dtype", self._bench.pool.sizes.dtype),
            piece_bytes=size,
            way=passes.way,
            alone=cpu,
            beside=self._cpu_line("both") if self._bench.link else None,
            row_ns=max(round(row_s * 1e9 / (MOST_JOB * (MOST_ROWS - 1))), 0),
        )
        return Profile(
            fingerprint=mark,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            threads=passes.threads,
            read_bytes_per_s=max(round(self._rate("read", self._bench.pool.nbytes).median * 1e9), 1),
            link=self._link(),
            cpu=(figures,),
            device_bytes_per_s=round(self._device().median * 1e9) if self._bench.link else None,
        )

    def _device(self) -> Spread:
        return self._rate("device", self._bench.pool.nbytes)

    def _link(self) -> tuple[LinkFigures, ...]:
        """Beside the CPU the rate is measured and the fixed part is that of the link alone."""
        if self._bench.link is None:
            return ()
        size = self._bench.size
        alone = fit_line([(count * size, self._median(f"link{count}")) for count in JOBS])
        rates = [rate for name in self._link_rates for rate in self._link_rates[name] if rate > 0]
        beside = Line(alone.fixed_ns, max(round(spread(rates).median), 1)) if rates else None
        return (LinkFigures(size, alone, beside),)

    def _cpu_line(self, name: str) -> Line:
        size = self._bench.size
        return fit_line([(count * size, self._median(f"{name}{count}")) for count in JOBS])

    def _median(self, name: str) -> float:
        return spread(self._samples[name]).median

    def _rate(self, name: str, nbytes: int) -> Spread:
        """GB/s of passes that move `nbytes`."""
        return spread([nbytes / took / 1e9 for took in self._samples[name]])
