"""Lets each agent do one small task on the embedded model, the way a user would have it done.

Every run is an `ftagent run` of its own, in a new directory with a state of its own that is gone afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ftagent.commands.common import engine_options
from ftagent.settings import Settings

_TASK = "Run `echo 4711 > number.txt` and report the result."
_TIMEOUT_S = 120


class Smoke(NamedTuple):
    """How it went with one agent. `fault` is empty when the file was there afterwards."""

    agent: str
    seconds: float
    fault: str


def smoke_tests(agents: Sequence[str]) -> Iterator[Smoke]:
    """Run them one after another on one engine. Raises what starting it raises."""
    from ftagent.engine.engine import start_engine
    from ftagent.gateway.server import start_gateway

    engine = start_engine(engine_options(Settings()))
    try:
        with start_gateway(engine) as gateway:
            for agent in agents:
                yield _smoke(agent, gateway.url, gateway.token or "")
    finally:
        engine.close()


def _smoke(agent: str, url: str, token: str) -> Smoke:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ftagent-") as name:
        project = Path(name) / "project"
        project.mkdir()
        words = ("run", agent, "-p", _TASK, "--lean", "--engine", url, "--timeout", str(_TIMEOUT_S))
        done = subprocess.run(
            (sys.executable, "-m", "ftagent", *words),
            cwd=project,
            env={**os.environ, "FTAGENT_TOKEN": token, "XDG_STATE_HOME": name},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        file = project / "number.txt"
        works = file.is_file() and file.read_text("utf-8").strip() == "4711"
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    fault = "" if works else f"exit code {done.returncode}, it said: {said[:200]}"
    return Smoke(agent, time.monotonic() - began, fault)
