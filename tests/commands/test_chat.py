from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftagent.cli import cli
from ftagent.commands import chat
from ftagent.settings import Settings
from ftagent.tui import chat as screen
from tests.support.command import PROGRAM, private_environment
from tests.support.scripted import ScriptedEngine


@pytest.mark.parametrize(
    ("arguments", "passed"), [([], None), (["--no-thinking"], False), (["--thinking"], True)]
)
def test_the_screen_starts_with_the_thinking_asked_for(
    arguments: list[str], passed: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    @contextmanager
    def engine(settings: Settings) -> Iterator[ScriptedEngine]:
        yield ScriptedEngine(lambda request: [])

    def run_chat(engine: ScriptedEngine, **options: Any) -> int:
        given.update(options)
        return 0

    monkeypatch.setattr(chat, "open_engine", engine)
    monkeypatch.setattr(chat, "log_to_file", lambda: None)
    monkeypatch.setattr(screen, "need_terminal", lambda: None)
    monkeypatch.setattr(screen, "run_chat", run_chat)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert cli.main(["chat", *arguments], standalone_mode=False) == 0
    assert given["thinking"] is passed


def test_stderr_elsewhere_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            (*PROGRAM, "chat"),
            cwd=tmp_path,
            env=private_environment(tmp_path, {"TERM": "xterm"}),
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert done.stderr.startswith("ftagent: chat needs a terminal, and stderr is none")
    assert "\n" not in done.stderr.strip()
