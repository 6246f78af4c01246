"""The store of prefixes of a loaded model: which files are its own, and how much it may hold.

Knows where files are and what a runner is; what is kept is decided in `context`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ftagent import __version__
from ftagent.engine.context.disk import DiskTier
from ftagent.engine.context.tiers import HostTier, PrefixStore
from ftagent.engine.options import EngineOptions
from ftagent.engine.steps import LoadedModel
from ftagent.engine.weights.ftw import SUFFIX
from ftagent.paths import cache_dir

DISK_BYTES = 4 << 30


def store_for(runner: LoadedModel, directory: Path, options: EngineOptions) -> PrefixStore | None:
    """The tiers below the pools of `runner`, whose checkpoint is in `directory`; None where nothing is to be
    kept.
    """
    if not runner.kept.states:
        return None
    contents, device = runner.contents, runner.info.device
    # What a device computes differs in the last bits: a reply must not depend on who computed its prompt.
    dtype = str(contents.dtype) if device == "cpu" else f"{contents.dtype} {device.partition(':')[0]}"
    model = identity(directory, runner.info.fingerprint, dtype)
    disk = None
    if options.keep_prefixes:
        root = Path(options.prefix_root) if options.prefix_root else prefix_dir()
        disk = DiskTier(root / model, DISK_BYTES, contents.blank)
    return PrefixStore(contents, runner.kv.page_size, HostTier(runner.kept.bytes), disk, model)


def prefix_dir() -> Path:
    """Where prefixes of all models are kept, each model's in a directory of its own."""
    return cache_dir() / "prefixes"


def identity(directory: Path, fingerprint: str, dtype: str) -> str:
    """Tells apart models, and versions of this package, whose keys and values may differ: 32 hexadecimal
    digits. Weights are known by the sizes and times of their files.
    """
    digest = hashlib.sha256(f"{__version__} {fingerprint} {dtype}\n".encode())
    for path in sorted(directory.glob("*")):
        if path.suffix in (".safetensors", SUFFIX, ".json"):
            found = path.stat()
            digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
