"""Opens a model directory, whichever of the formats it holds."""

from __future__ import annotations

from pathlib import Path

from ftagent.engine.weights.ftw import is_ftw
from ftagent.engine.weights.ftw_reader import open_ftw
from ftagent.engine.weights.safetensors import Checkpoint, open_checkpoint


def open_weights(directory: Path, verify: bool = False) -> Checkpoint:
    """The checkpoint of `directory`, its headers read and checked: FTW where there is any, else safetensors.
    `verify` holds what is read against digests, where the format has them.

    Raises LoadFailed as `open_set` and `open_checkpoint` do.
    """
    return open_ftw(directory, verify) if is_ftw(directory) else open_checkpoint(directory)
