"""A terminal for end-to-end tests: a tmux server of its own, typed into and looked at."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """An interactive shell on a screen of `columns` x `rows`. Use as a context manager."""

    def __init__(self, directory: Path, env: Mapping[str, str], columns: int = 120, rows: int = 40) -> None:
        self._socket = f"ftagent-{uuid.uuid4().hex[:8]}"
        variables = [f"{name}={value}" for name, value in env.items()]
        shell = (
            "env",
            "-i",
            *variables,
            "TERM=xterm-256color",
            "PS1=$ ",
            "HISTFILE=",
            "bash",
            "--norc",
            "-i",
        )
        size = ("-x", str(columns), "-y", str(rows))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(directory), shlex.join(shell))

    def __enter__(self) -> Tmux:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    def run(self, command: Sequence[str]) -> None:
        """Type a command line and Enter; its exit code follows on the screen as `exit code N`."""
        self.type(shlex.join(command) + '; echo "exit code" $?')
        self.press("Enter")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-c."""
        self._tmux("send-keys", *keys)

    def press_until(self, key: str, words: str, attempts: int = 10) -> str:
        """Press `key` until `words` are on the screen; for programs that drop early keys."""
        for _ in range(attempts - 1):
            self.press(key)
            try:
                return self.wait_for(words, 2)
            except AssertionError:
                continue
        self.press(key)
        return self.wait_for(words)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        """What is on the screen now, without styles."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, words: str, timeout_s: float = 30) -> str:
        """The screen, once `words` are on it. Fails with the screen when they do not come."""
        deadline = time.monotonic() + timeout_s
        waiting = threading.Event()
        while words not in (shown := self.screen()):
            assert time.monotonic() < deadline, f"no {words!r} in {timeout_s} s; the screen:\n{shown}"
            waiting.wait(0.05)
        return shown

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ("tmux", "-L", self._socket, *arguments), capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout
