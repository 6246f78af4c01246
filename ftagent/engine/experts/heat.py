"""How often each expert has been used, kept between runs so that the first tokens of the next are not cold.

Frequencies of one model, under a fingerprint of its checkpoint. The file is a cache: a damaged one, or one of
another shape, counts as none. Knows no policy and no slots.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.paths import cache_dir

VERSION = 1

Heat = Sequence[Sequence[int]]
"""[layers][experts], any unit: only the order counts."""


class Experts(Protocol):
    """What is needed of `pool.ExpertPool`. Counts are of all layers together."""

    @property
    def slots(self) -> int: ...

    @property
    def experts(self) -> int: ...

    def heat(self) -> Heat: ...


log = logging.getLogger(__name__)


def fingerprint(checkpoint: Checkpoint) -> str:
    """Names, types, shapes and places of all tensors, not their values: 32 hexadecimal digits. Where the
    format has digests of the values, those.
    """
    if checkpoint.identity is not None:
        return checkpoint.identity[:32]
    digest = hashlib.sha256()
    for name, entry in sorted(checkpoint.entries.items()):
        digest.update(f"{name} {entry.dtype} {entry.shape} {entry.file.name} {entry.begin}\n".encode())
    return digest.hexdigest()[:32]


def heat_file(key: str) -> Path:
    """Where the heat of the checkpoint with this fingerprint is kept."""
    return cache_dir() / "heat" / f"{key}.json"


def load_heat(file: Path, layers: int, experts: int) -> Heat | None:
    """What an earlier run has saved; None when there is nothing usable."""
    try:
        found = json.loads(file.read_bytes())
        counts = found["counts"] if found["version"] == VERSION else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.info("%s: not usable (%s); experts start in their order", file, error)
        return None
    if not _whole(counts, layers, experts):
        log.info("%s: not of %d layers with %d experts; experts start in their order", file, layers, experts)
        return None
    return cast("Heat", counts)


def save_heat(file: Path, heat: Heat) -> None:
    """Replace the file whole. Where it cannot be written the log says so, and nothing else happens."""
    text = json.dumps({"version": VERSION, "counts": [list(layer) for layer in heat]}, separators=(",", ":"))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=file.name, dir=file.parent)
        try:
            with os.fdopen(handle, "w") as opened:
                opened.write(text)
            os.replace(name, file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.warning("%s: cannot be written (%s); the next start will be cold", file, error.strerror)


def keep_heat(key: str, experts: Experts) -> None:
    """Save what a model has learnt about its experts under its fingerprint, before it is closed. Nothing is
    saved when all experts are resident: then uses are not counted. Never raises.
    """
    if not key or experts.slots >= experts.experts:
        return
    try:
        save_heat(heat_file(key), experts.heat())
    except Exception as error:  # noqa: BLE001 whatever is wrong with a cache, the engine is to be closed
        log.warning("the heat of the experts is not kept (%s: %s)", type(error).__name__, error)


def fill_order(layers: int, experts: int, heat: Heat | None = None) -> Iterator[tuple[int, int]]:
    """(layer, expert) in the order in which slots are filled at load: the hottest first, and without heat
    expert 0 of every layer, then expert 1, and so on.
    """
    everyone = ((layer, expert) for expert in range(experts) for layer in range(layers))
    if heat is None:
        return everyone
    return iter(sorted(everyone, key=lambda key: -heat[key[0]][key[1]]))


def _whole(counts: object, layers: int, experts: int) -> bool:
    return (
        isinstance(counts, list)
        and len(counts) == layers
        and all(
            isinstance(layer, list)
            and len(layer) == experts
            and all(isinstance(count, int) and count >= 0 for count in layer)
            for layer in counts
        )
    )
