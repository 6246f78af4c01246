"""What the processor is called, how many cores this process may use, and which vector features it has."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class Processor:
    """`features` are those of interest, in a fixed order; empty where the system does not tell."""

    name: str
    cores: int
    features: tuple[str, ...]


def processor() -> Processor:
    """This machine's, from /proc/cpuinfo where there is one."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags |= set(value.split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processor(name, cores, tuple(feature for feature in _FEATURES if feature in flags))
