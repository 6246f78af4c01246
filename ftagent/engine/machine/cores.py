"""Which cores the expert workers are pinned to. Knows the system's tables, not what the workers do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

# Measured: with every core taken by a worker, the thread that issues copies and the one that waits for the
# step each take a core from a worker, and the step is slower than with two workers less.
FREE_CORES = 2
FEW_CORES = 4
_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPUINFO = Path("/proc/cpuinfo")


def worker_cores(threads: int | None = None) -> list[int]:
    """One core for each of `threads` workers (None: as many as this process should take).

    More threads than cores share cores in turn.
    """
    allowed = sorted(os.sched_getaffinity(0))
    return choose(allowed, _physical(allowed), _quota(), threads)


def spare_core(workers: list[int]) -> int | None:
    """A core that no worker is pinned to, for the thread that serves a step; None when they have them all."""
    spare = [core for core in sorted(os.sched_getaffinity(0)) if core not in workers]
    return spare[0] if len(spare) > 1 else None  # one more must stay for everybody else


def choose(
    allowed: list[int], physical: Mapping[int, object], quota: float | None, threads: int | None
) -> list[int]:
    """The decision: `allowed` cores in order, `physical[core]` equal for two that share an execution unit,
    `quota` the processors' time that the process may take (None: no limit).
    """
    seen: set[object] = set()
    firsts: list[int] = []
    for core in allowed:
        unit = physical.get(core, core)
        if unit not in seen:
            seen.add(unit)
            firsts.append(core)
    order = firsts + [core for core in allowed if core not in firsts]
    if threads is None:
        usable = len(firsts) if quota is None else max(1, min(len(firsts), int(quota)))
        threads = usable - FREE_CORES if usable > FEW_CORES else usable
    return [order[worker % len(order)] for worker in range(threads)]


def _physical(cores: Iterable[int]) -> dict[int, object]:
    """The execution unit of each core; empty in a virtual machine, which is told whatever its host likes."""
    if _virtual():
        return {}
    found: dict[int, object] = {}
    for core in cores:
        try:
            found[core] = (_CPUS / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            continue
    return found


def _virtual() -> bool:
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return False
    return any("hypervisor" in line.split() for line in lines if line.startswith("flags"))


def _quota() -> float | None:
    """Processors that the control group grants, e.g. 2.5; None without a limit."""
    try:
        granted, period = _QUOTA.read_text().split()
        return None if granted == "max" else int(granted) / int(period)
    except (OSError, ValueError):
        return None
