"""What was measured on this machine, kept between runs: one JSON file per machine and GPU in the cache.

A file counts only for the machine whose fingerprint it bears (GPU, driver, processor, cores, memory). A
damaged or foreign file is said once and is no profile. Knows no cost model: `experts.calibration` makes one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ftagent import paths
from ftagent.engine.machine.gpus import Gpu
from ftagent.engine.machine.probe import Machine
from ftagent.errors import ConfigError

log = logging.getLogger(__name__)

SCHEMA = 1

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Dtype = Literal["bfloat16", "float32"]
Way = Literal["native", "torch"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the figures depend on. `gpu` and `uuid` are None on a machine without one."""

    cpu: str
    cores: int
    memory_gib: int
    gpu: str | None = None
    uuid: str | None = None
    driver: str | None = None

    @property
    def key(self) -> str:
        """The name of its file, without the ending."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Line:
    """`bytes` take fixed_ns + bytes / bytes_per_s."""

    fixed_ns: Natural
    bytes_per_s: Positive

    def ns(self, size: int) -> int:
        """Nanoseconds for `size` bytes, the fixed part included."""
        return self.fixed_ns + self.marginal_ns(size)

    def marginal_ns(self, size: int) -> int:
        """Nanoseconds that `size` further bytes add."""
        return size * 1_000_000_000 // self.bytes_per_s


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Host to device by the copy engine, in pieces of `piece_bytes`, from pinned memory.

    `alone`, and `beside` the CPU computing experts at the same time.
    """

    piece_bytes: Positive
    alone: Line
    beside: Line | None = None


@dataclass(frozen=True, slots=True)
class CpuFigures:
    """Experts of `piece_bytes` computed where they lie in host memory, for one row each.

    `alone`, and `beside` a busy link. `row_ns` is what each further row of the same expert adds. `way` is the
    native library, or torch where there is no compiler.
    """

    dtype: Dtype
    piece_bytes: Positive
    way: Way
    alone: Line
    beside: Line | None = None
    row_ns: Natural = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """All figures of one machine. `threads` computed the experts; `date` is UTC, ISO 8601. `read_bytes_per_s`
    is of host memory, `device_bytes_per_s` of the GPU's own.
    """

    fingerprint: Fingerprint
    date: str
    threads: Positive
    read_bytes_per_s: Positive | None = None
    link: tuple[LinkFigures, ...] = ()
    cpu: tuple[CpuFigures, ...] = ()
    schema: Literal[1] = 1
    device_bytes_per_s: Positive | None = None

    def link_for(self, piece_bytes: int) -> LinkFigures | None:
        """The figures of the piece size nearest to `piece_bytes` (by ratio); None when there are none."""
        return min(self.link, key=lambda each: _distance(each.piece_bytes, piece_bytes), default=None)

    def cpu_for(self, dtype: str, piece_bytes: int) -> CpuFigures | None:
        """The figures of `dtype` at the piece size nearest to `piece_bytes`; None when there are none."""
        same = (each for each in self.cpu if each.dtype == dtype)
        return min(same, key=lambda each: _distance(each.piece_bytes, piece_bytes), default=None)

    def check_integrity(self) -> None:
        """Raise AssertionError when one shape has two figures."""
        pieces = [each.piece_bytes for each in self.link]
        shapes = [(each.dtype, each.piece_bytes) for each in self.cpu]
        assert len(set(pieces)) == len(pieces), "two link figures for one piece size"
        assert len(set(shapes)) == len(shapes), "two CPU figures for one dtype and piece size"


_ADAPTER = TypeAdapter(Profile)


def fingerprint(machine: Machine, gpu: Gpu | None) -> Fingerprint:
    """Of `machine` with `gpu`, one of its GPUs, or None for the CPU alone.

    Memory counts in whole GiB: what the kernel keeps for itself changes from boot to boot.
    """
    return Fingerprint(
        cpu=machine.cpu.name,
        cores=machine.cpu.cores,
        memory_gib=round((machine.memory.limit or machine.memory.total) / 2**30),
        gpu=None if gpu is None else gpu.name,
        uuid=None if gpu is None else gpu.uuid,
        driver=None if gpu is None else gpu.driver,
    )


def profile_file(mark: Fingerprint) -> Path:
    """Where the profile of `mark` is kept."""
    return paths.cache_dir() / "machines" / f"{mark.key}.json"


def load_profile(mark: Fingerprint) -> Profile | None:
    """The stored profile of `mark`; None without one. A damaged or foreign file is warned about."""
    file = profile_file(mark)
    try:
        found = _ADAPTER.validate_json(file.read_bytes())
        found.check_integrity()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s: cannot be read (%s); measured figures are not used", file, error.strerror)
        return None
    except (ValidationError, AssertionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        log.warning("%s: not a machine profile (%s); `ftagent bench bandwidth` makes a new one", file, reason)
        return None
    if found.fingerprint != mark:
        log.warning("%s: of another machine; `ftagent bench bandwidth` makes a new one", file)
        return None
    return found


def store_profile(profile: Profile) -> Path:
    """Write the profile, whole or not at all, and return its file. Raises ConfigError when it cannot."""
    file = profile_file(profile.fingerprint)
    paths.private_dir(file.parent)
    try:
        _write(file, _ADAPTER.dump_json(profile, indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; set XDG_CACHE_HOME elsewhere") from error
    return file


def merged(old: Profile | None, new: Profile) -> Profile:
    """`new`, with the figures of `old` for the shapes that `new` did not measure.

    `old` counts only when it is of the same machine and thread count.
    """
    if old is None or (old.fingerprint, old.threads) != (new.fingerprint, new.threads):
        return new
    pieces = {each.piece_bytes for each in new.link}
    shapes = {(each.dtype, each.piece_bytes) for each in new.cpu}
    return replace(
        new,
        read_bytes_per_s=new.read_bytes_per_s or old.read_bytes_per_s,
        device_bytes_per_s=new.device_bytes_per_s or old.device_bytes_per_s,
        link=new.link + tuple(each for each in old.link if each.piece_bytes not in pieces),
        cpu=new.cpu + tuple(each for each in old.cpu if (each.dtype, each.piece_bytes) not in shapes),
    )


def _distance(size: int, wanted: int) -> float:
    return max(size, wanted) / max(min(size, wanted), 1)  # a model without experts wants none


def _write(file: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".profile-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, file)
    except BaseException:  # an interrupt too must not leave the temporary file behind
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
