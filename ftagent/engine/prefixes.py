"""The store of prefixes of a loaded model: which files are its own, and how much it may hold.

Knows where files are and what a runner is; what is kept is decided in `context`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import psutil

from ftagent import __version__
from ftagent.engine.context.disk import DiskTier
from ftagent.engine.context.tiers import HostTier, PrefixStore
from ftagent.engine.options import EngineOptions
from ftagent.engine.runner import Runner
from ftagent.engine.steps import Steps
from ftagent.paths import cache_dir

HOST_BYTES = 1 << 30
HOST_PART = 16  # of the memory that is free; the rest is for experts and pools
DISK_BYTES = 4 << 30


def store_for(runner: Steps, directory: Path, options: EngineOptions) -> PrefixStore | None:
    """The tiers below the pools of `runner`, whose checkpoint is in `directory`; None where its memory cannot
    be read page by page.
    """
    if not isinstance(runner, Runner):
        return None
    host = HostTier(min(HOST_BYTES, psutil.virtual_memory().available // HOST_PART))
    model = identity(directory, runner.info.fingerprint, str(runner.contents.dtype))
    disk = DiskTier(prefix_dir() / model, DISK_BYTES) if options.keep_prefixes else None
    return PrefixStore(runner.contents, runner.kv.page_size, host, disk, model)


def prefix_dir() -> Path:
    """Where prefixes of all models are kept, each model's in a directory of its own."""
    return cache_dir() / "prefixes"


def identity(directory: Path, fingerprint: str, dtype: str) -> str:
    """Tells apart models, and versions of this package, whose keys and values may differ: 32 hexadecimal
    digits. Weights are known by the sizes and times of their files.
    """
    digest = hashlib.sha256(f"{__version__} {fingerprint} {dtype}\n".encode())
    for path in sorted(directory.glob("*")):
        if path.suffix in (".safetensors", ".json"):
            found = path.stat()
            digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
