"""What this machine is: processor, memory and their limits, compiler, GPUs. Reads; changes nothing.

Limits of the process count: cores of its affinity mask and of its control group, memory of its control group,
memory it may lock. None means unknown, never zero. Knows neither models nor speeds: those are measured by
`bandwidth` and kept by `profile`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ftagent.engine.machine import native
from ftagent.engine.machine.gpus import Gpu, find_gpus

FEATURES = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)
"""The vector features that decide which kernels can run, as Linux names them."""

_CAP_IPC_LOCK = 1 << 14  # linux/capability.h: locks memory whatever the limit
_UNLIMITED = 1 << 60  # version 1 control groups write "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` is what this process may keep busy: affinity mask and quota together, at least 1.

    `affinity` counts logical processors in the mask, `physical` the cores behind them, `quota` is in cores.
    `features` are those of FEATURES that it has, empty where the system does not tell. `cache_bytes` is the
    last-level cache that one core sees.
    """

    name: str
    cores: int
    affinity: int
    physical: int | None
    quota: float | None
    features: tuple[str, ...]
    cache_bytes: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `total` is the machine's, `limit` the control group's; `available` respects both.

    `lockable` is what this process may lock (RLIMIT_MEMLOCK; all of it with CAP_IPC_LOCK or no limit).
    `huge_pages` is the mode of transparent huge pages: always, madvise or never.
    """

    total: int
    limit: int | None
    available: int
    lockable: int | None
    huge_pages: str | None


@dataclass(frozen=True, slots=True)
class Compiler:
    """The C++ compiler that kernels are built with."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it. `gpus` is empty where there is none, and then `no_gpu` says how that was found."""

    cpu: Cpu
    memory: Memory
    compiler: Compiler | None
    gpus: tuple[Gpu, ...]
    no_gpu: str | None


def probe(root: Path = Path("/")) -> Machine:
    """This machine. Imports torch only where the system shows an NVIDIA device and NVML cannot be asked.

    `root` stands for the file system's root in tests of the parts that read /proc and /sys.
    """
    gpus, no_gpu = find_gpus(root)
    return Machine(probe_cpu(root), probe_memory(root), probe_compiler(), gpus, no_gpu)


def probe_cpu(root: Path = Path("/")) -> Cpu:
    """The processor, from /proc/cpuinfo, /sys, the affinity mask and the control group."""
    name, flags = _cpuinfo(root)
    mask = _affinity()
    quota = _cpu_quota(root)
    usable = len(mask) if quota is None else min(len(mask), int(quota))
    return Cpu(
        name=name,
        cores=max(usable, 1),
        affinity=len(mask),
        physical=_physical_cores(root, mask),
        quota=quota,
        features=tuple(feature for feature in FEATURES if feature in flags),
        cache_bytes=_cache_bytes(root, min(mask, default=0)),
    )


def probe_memory(root: Path = Path("/")) -> Memory:
    """Host memory as this process sees it."""
    found = psutil.virtual_memory()
    limits = [(limit, used) for limit, used in _memory_limits(root) if limit < min(found.total, _UNLIMITED)]
    free_in_group = [max(limit - used, 0) for limit, used in limits]
    limit = min((limit for limit, _ in limits), default=None)
    return Memory(
        total=found.total,
        limit=limit,
        available=min([found.available, *free_in_group]),
        lockable=_lockable(root, limit or found.total),
        huge_pages=_huge_pages(root),
    )


def probe_compiler() -> Compiler | None:
    """The C++ compiler that `native` would take; None when there is none, or it does not run."""
    path = native.find_compiler()
    if path is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            (path, "--version"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == 0 and done.stdout.strip():
            return Compiler(path, done.stdout.strip().splitlines()[0])
    return None


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def _cpuinfo(root: Path) -> tuple[str, frozenset[str]]:
    """Name of the processor and its flags."""
    name, flags = "", frozenset[str]()
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = name or value.strip()
        elif key.strip() in ("flags", "Features"):
            flags |= frozenset(value.split())
    return name or platform.processor() or platform.machine(), flags


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _physical_cores(root: Path, mask: frozenset[int]) -> int | None:
    """Cores behind the logical processors of `mask`: siblings share one list."""
    lists = {
        _read(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list") for number in mask
    }
    return None if None in lists or not lists else len(lists)


def _cache_bytes(root: Path, cpu: int) -> int | None:
    """Size of the highest cache level of processor `cpu`; sysfs writes it like 32768K."""
    found: dict[int, int] = {}
    for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = _read(index / "level"), _read(index / "size")
        if level and size and level.isdigit() and size[:-1].isdigit():
            found[int(level)] = int(size[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
    return found[max(found)] if found else None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's control group with `controller` and of the groups above it.

    Both hierarchies: version 2 (`0::/path`) and version 1 (`4:memory:/path`). Inside a container the path
    may not exist below the mount; the mount itself is then the group.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if names else "")
        group = mount / path.lstrip("/")
        while group != mount and mount in group.parents:
            yield group
            group = group.parent
        yield mount


def _cpu_quota(root: Path) -> float | None:
    """Cores' worth of time that the tightest control group allows; None without a quota."""
    quotas = []
    for group in _groups(root, "cpu"):
        pair = (_read(group / "cpu.max") or "").split()
        if len(pair) != 2:
            pair = [_read(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if all(part.isdigit() and int(part) for part in pair):
            quotas.append(int(pair[0]) / int(pair[1]))
    return min(quotas, default=None)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that limits memory, in bytes."""
    for group in _groups(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(group / limit_name) or "", _read(group / used_name) or ""
            if limit.isdigit():
                yield int(limit), int(used) if used.isdigit() else 0


def _lockable(root: Path, everything: int) -> int | None:
    status = _read(root / "proc/self/status") or ""
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "CapEff" and int(value, 16) & _CAP_IPC_LOCK:
            return everything
    if not hasattr(resource, "RLIMIT_MEMLOCK"):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return everything if soft == resource.RLIM_INFINITY else min(soft, everything)


def _huge_pages(root: Path) -> str | None:
    """The word in brackets of `always [madvise] never`."""
    words = (_read(root / "sys/kernel/mm/transparent_hugepage/enabled") or "").split()
    return next((word[1:-1] for word in words if word.startswith("[")), None)
