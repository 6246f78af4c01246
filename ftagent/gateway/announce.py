"""Notes of the gateways that run on this machine, so that `ftagent top` finds them without being told.

A note holds the gateway's token, so it lies in a directory of the user's alone, and goes when the gateway
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ftagent import paths
from ftagent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Announced:
    """A gateway that runs."""

    url: str
    token: str | None
    model: str
    pid: int
    machine: str


@contextlib.contextmanager
def announce(url: str, token: str | None, model: str) -> Iterator[None]:
    """Leave a note of this process's gateway while the block runs. That it cannot be left is no error."""
    note = Announced(url, token, model, os.getpid(), socket.gethostname())
    file = _directory() / f"{note.machine}-{note.pid}.json"
    with contextlib.suppress(OSError, ConfigError):
        paths.private_dir(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(asdict(note), stream)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def announced() -> list[Announced]:
    """The gateways that run on this machine, the newest first. Notes whose process has gone are removed."""
    found = []
    for file in _directory().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            note = Announced(**json.loads(file.read_text(encoding="utf-8")))
            if note.machine != socket.gethostname():
                continue
            if not _runs(note.pid):
                file.unlink(missing_ok=True)
                continue
            found.append((file.stat().st_mtime, note))
    return [note for _, note in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _directory() -> Path:
    return paths.state_dir() / "engines"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
