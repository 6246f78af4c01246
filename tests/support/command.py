"""Runs the `ftagent` command as users do: a process of its own, with directories of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = (sys.executable, "-m", "ftagent")
REPOSITORY = Path(__file__).resolve().parents[2]


def private_environment(directory: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user with an empty home under `directory`, and no setting."""
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        **(extra or {}),
    }


def ftagent(
    *arguments: str,
    directory: Path,
    extra: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run `ftagent ARGUMENTS` to its end in `directory`, without a terminal."""
    return subprocess.run(
        (*PROGRAM, *arguments),
        cwd=directory,
        env=private_environment(directory, extra),
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
