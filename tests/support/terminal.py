"""A real terminal for tests: one tmux server of its own, one window, keys in and screen out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

TMUX = shutil.which("tmux")
ROOT = Path(__file__).parents[2]


class Terminal:
    """One tmux window with a shell in it. `raw` is every byte that was written to it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._socket = directory / "tmux"
        self._log = directory / "raw"
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
        self._environment = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **kept}
        self._shell = ["env", *(f"{key}={value}" for key, value in environment.items()), "PS1=$ ", "sh"]

    def open(self, width: int, height: int) -> None:
        """Start the server and a shell in it; returns when the shell is ready."""
        size = ["-x", str(width), "-y", str(height)]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(ROOT), shlex.join(self._shell))
        self.tmux("pipe-pane", "-O", f"cat >> {shlex.quote(str(self._log))}")
        self.until(lambda: "$" in self.screen())

    def tmux(self, *arguments: str) -> str:
        command = [TMUX or "tmux", "-u", "-S", str(self._socket), *arguments]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    def close(self) -> None:
        """End the server and what runs in it, if it ever started."""
        with suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")

    def keys(self, *keys: str) -> None:
        """Send keys by tmux's names, or text."""
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Send `text` letter for letter."""
        self.tmux("send-keys", "-l", text)

    def run(self, *arguments: str) -> None:
        """Start the chat on the scripted engine; the shell says its exit code afterwards."""
        command = shlex.join([sys.executable, "-m", "tests.support.chat_runner", *arguments])
        self.type(f"{command}; echo exit=$?")
        self.keys("Enter")

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, colours: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def state(self, name: str) -> str:
        """A tmux variable of the pane, such as `alternate_on` or `cursor_flag`."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    @property
    def raw(self) -> bytes:
        return self._log.read_bytes() if self._log.exists() else b""

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never came; the screen is:\n{self.screen()}"
            time.sleep(0.05)  # the pause of a poll, not a guess of how long something takes

    def until_shown(self, *texts: str) -> str:
        """Wait until all `texts` are on the screen; returns it."""
        self.until(lambda: all(text in self.screen() for text in texts))
        return self.screen()


@contextmanager
def terminal(
    directory: Path, width: int = 120, height: int = 30, environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    opened = Terminal(directory, environment or {})
    try:
        opened.open(width, height)
        yield opened
    finally:
        opened.close()
