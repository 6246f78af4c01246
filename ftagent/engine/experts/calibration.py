"""From a machine's measured profile to the cost model that splits misses between link and CPU.

Knows figures and sizes, not how they were measured or what will be split.
"""

from __future__ import annotations

from typing import NamedTuple

from ftagent.engine.experts.costs import CostModel
from ftagent.engine.machine.gpus import device_gpu
from ftagent.engine.machine.probe import probe
from ftagent.engine.machine.profile import Profile, fingerprint, load_profile
from ftagent.engine.machine.record_pool import expert_bytes
from ftagent.engine.machine.record_threads import ExpertSizes

# For a machine that was never measured: PCIe 4 at 16 lanes, and a desktop's memory. Measured times follow.
LINK_BYTES_PER_S = 22_000_000_000
CPU_BYTES_PER_S = 45_000_000_000
FETCH_FIXED_NS = 10_000
CPU_FIXED_NS = 5_000
ROW_SHARE = 8  # a further row of an expert costs 1/8 of reading it


class Calibration(NamedTuple):
    """What a run starts from. `profile` is None on a machine that was not measured."""

    costs: CostModel
    profile: Profile | None

    @property
    def threads(self) -> int | None:
        """The number of threads that computed fastest; None when the engine's own rule decides."""
        return None if self.profile is None else self.profile.threads


def calibrate(sizes: ExpertSizes, device: int | None) -> Calibration:
    """The stored figures of this machine with cuda:`device` (None: the processor alone), for experts of
    `sizes`. Reads one file; measures nothing. A damaged file is warned about.
    """
    machine = probe()
    gpu = None if device is None else device_gpu(device, machine.gpus)
    profile = load_profile(fingerprint(machine, gpu))
    return Calibration(costs_from(profile, sizes), profile)


def costs_from(profile: Profile | None, sizes: ExpertSizes) -> CostModel:
    """Constants for experts of `sizes`: of the nearest measured size, with both sides busy where that was
    measured. What is not in the profile is guessed.
    """
    size = expert_bytes(sizes)
    fetch_fixed, fetch_expert = _fetch(profile, size)
    found = None if profile is None else profile.cpu_for(sizes.dtype, size)
    if found is None:
        read = size * 1_000_000_000 // CPU_BYTES_PER_S
        return CostModel(fetch_fixed, fetch_expert, CPU_FIXED_NS, read, read // ROW_SHARE)
    line = found.beside or found.alone
    first = line.marginal_ns(size)  # reading an expert and computing its first row
    row = min(found.row_ns * size // found.piece_bytes, first)
    return CostModel(fetch_fixed, fetch_expert, line.fixed_ns, first - row, row)


def _fetch(profile: Profile | None, size: int) -> tuple[int, int]:
    """Fixed time of a fetch and time of one expert.

    Without a device a fetch is a copy within host memory: each byte is read and written once.
    """
    if profile is None:
        return FETCH_FIXED_NS, size * 1_000_000_000 // LINK_BYTES_PER_S
    link = profile.link_for(size)
    if link is not None:
        line = link.beside or link.alone
        return line.fixed_ns, line.marginal_ns(size)
    if profile.read_bytes_per_s is not None and profile.fingerprint.gpu is None:
        return 0, 2 * size * 1_000_000_000 // profile.read_bytes_per_s
    return FETCH_FIXED_NS, size * 1_000_000_000 // LINK_BYTES_PER_S
