"""Where ftagent keeps files: the XDG directories, or the platform's own.

Knows no file format. Every path of the package that lies outside a checkpoint or a project comes from here.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from ftagent.errors import ConfigError

APP = "ftagent"


def config_file() -> Path:
    """The settings file: `FTAGENT_CONFIG`, or `config.toml` in the user's configuration directory."""
    named = os.environ.get("FTAGENT_CONFIG")
    return Path(named).expanduser() if named else platformdirs.user_config_path(APP) / "config.toml"


def state_dir() -> Path:
    """What survives between runs and is not precious: logs, sessions, the agents' own files."""
    return platformdirs.user_state_path(APP)


def data_dir() -> Path:
    """What the user may want to keep: recorded traces."""
    return platformdirs.user_data_path(APP)


def cache_dir() -> Path:
    """What can be made again: compiled kernels, machine profiles, anchors on disk."""
    return platformdirs.user_cache_path(APP)


def log_file() -> Path:
    """Where narration goes while another program owns the terminal."""
    return state_dir() / "logs" / "ftagent.log"


def private_dir(path: Path) -> Path:
    """Create `path`, and what is missing above it, readable by the user alone; return it.

    Raises ConfigError when it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create {path}: {error.strerror}; set XDG_STATE_HOME to a directory you can write"
        ) from error
    return path
