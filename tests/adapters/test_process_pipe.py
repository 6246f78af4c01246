from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from ftagent.adapters.process import Stream, run_headless

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def test_a_reader_that_goes_away_ends_the_child(tmp_path: Path) -> None:
    """As `ftagent run --json | head -1` does: no traceback of a thread, and no agent that works on unseen."""
    written = tmp_path / "pid"

    def on_line(stream: Stream, line: str) -> None:
        raise BrokenPipeError

    script = f"echo $$ > {written}; echo one; sleep 60; echo two"
    with pytest.raises(BrokenPipeError):
        run_headless(("/bin/sh", "-c", script), ENVIRONMENT, on_line, timeout_s=30)
    assert not psutil.pid_exists(int(written.read_text()))
