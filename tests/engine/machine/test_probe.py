"""The probe, against what the kernel and other programs say, and on machines made of files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ftagent.engine.machine.probe import (
    FEATURES,
    Memory,
    probe,
    probe_compiler,
    probe_cpu,
    probe_memory,
)


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="utf-8")
    return root


def cpuinfo_fields() -> dict[str, str]:
    """The last processor's lines of the real /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="compares with Linux's files")
def test_this_machine_is_what_its_kernel_says() -> None:
    machine = probe()
    fields = cpuinfo_fields()
    flags = fields.get("flags", fields.get("Features", "")).split()
    assert machine.cpu.name == fields.get("model name", machine.cpu.name)
    assert set(machine.cpu.features) == set(flags) & set(FEATURES)
    assert machine.cpu.affinity == int(subprocess.check_output(["nproc"], env={"PATH": os.environ["PATH"]}))
    assert 1 <= machine.cpu.cores <= machine.cpu.affinity
    total_kib = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1])
    assert machine.memory.total == total_kib * 1024
    assert 0 < machine.memory.available <= machine.memory.total
    assert bool(machine.gpus) == (machine.no_gpu is None)


def test_it_needs_no_torch_where_there_is_no_gpu(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ftagent.engine.machine.probe import probe\n"
        f"assert probe(Path({str(tmp_path)!r})).gpus == ()\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    repository = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_cores_follow_the_affinity_mask() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity masks here")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert (probe_cpu().cores, probe_cpu().affinity) == (1, 1)
    finally:
        os.sched_setaffinity(0, before)


CPUINFO = """processor\t: 0
model name\t: Some Processor 9000
flags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 nonsense
processor\t: 1
model name\t: Some Processor 9000
flags\t\t: fpu avx2"""


def test_name_flags_and_cache_come_from_files(tmp_path: Path) -> None:
    lowest = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    cache = f"sys/devices/system/cpu/cpu{lowest}/cache"
    put(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            f"{cache}/index0/level": "1",
            f"{cache}/index0/size": "32K",
            f"{cache}/index3/level": "3",
            f"{cache}/index3/size": "300M",
        },
    )
    found = probe_cpu(tmp_path)
    assert found.name == "Some Processor 9000"
    assert found.features == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert found.cache_bytes == 300 * 2**20
    assert found.physical is None  # no topology files


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
            },
            0.5,
        ),
        # In a container the group's path is often not below the mount: the mount itself is the group.
        ({"proc/self/cgroup": "0::/docker/x", "sys/fs/cgroup/cpu.max": "300000 100000"}, 3.0),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n0::/",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_the_tightest_quota_of_either_hierarchy_counts(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    found = probe_cpu(put(tmp_path, files))
    assert found.quota == quota
    assert found.cores == max(1, found.affinity if quota is None else min(found.affinity, int(quota)))


@pytest.mark.parametrize(
    ("files", "limit", "free"),
    [
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"}, None, None),
        (
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": "4000000",
                "sys/fs/cgroup/a/memory.current": "1000000",
            },
            4_000_000,
            3_000_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": "9000000",
                "sys/fs/cgroup/a/b/memory.current": "1000000",
                "sys/fs/cgroup/a/memory.max": "9500000",
                "sys/fs/cgroup/a/memory.current": "9000000",
            },
            9_000_000,
            500_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/m",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "5000000",
                "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "6000000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            5_000_000,
            0,
        ),
    ],
)
def test_memory_of_a_control_group_is_limited(
    files: dict[str, str], limit: int | None, free: int | None, tmp_path: Path
) -> None:
    found = probe_memory(put(tmp_path, files))
    assert found.limit == limit
    assert found.total == psutil.virtual_memory().total
    if free is not None:
        assert found.available == free


def test_lockable_memory_is_the_limit_or_all(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    total = psutil.virtual_memory().total
    limited = probe_memory(put(tmp_path, {"proc/self/status": "CapEff:\t0000000000000000"}))
    assert limited.lockable == (total if soft == resource.RLIM_INFINITY else min(soft, total))
    assert probe_memory(put(tmp_path, {"proc/self/status": "CapEff:\t0000000000004000"})).lockable == total


@pytest.mark.parametrize(
    ("text", "mode"),
    [("always [madvise] never", "madvise"), ("[always] madvise never", "always"), ("", None)],
)
def test_the_mode_of_huge_pages(text: str, mode: str | None, tmp_path: Path) -> None:
    found: Memory = probe_memory(put(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text}))
    assert found.huge_pages == mode


def test_a_compiler_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_compiler() is None
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'g++ 12.3'\necho more\n", encoding="utf-8")
    compiler.chmod(0o755)
    found = probe_compiler()
    assert found is not None
    assert (found.path, found.version) == (str(compiler), "g++ 12.3")
    compiler.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert probe_compiler() is None
