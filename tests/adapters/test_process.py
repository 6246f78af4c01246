from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ftagent.adapters.process import Ended, run_headless
from ftagent.errors import AgentFailed, AgentNotExecutable
from tests.support.command import REPOSITORY

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    """Wait until `condition` holds, or fail naming `what`."""
    deadline = time.monotonic() + timeout_s
    waiting = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        waiting.wait(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


@pytest.mark.parametrize("code", [0, 1, 7, 125, 130, 255])
def test_the_exit_code_is_the_childs(code: int) -> None:
    assert run_headless(shell(f"exit {code}"), ENVIRONMENT) == Ended(code)


def test_a_death_by_signal_is_128_plus_its_number() -> None:
    assert run_headless(shell("kill -9 $$"), ENVIRONMENT).exit_code == 128 + signal.SIGKILL


def test_lines_of_both_streams_arrive_whole_and_stdin_is_empty() -> None:
    lines: list[tuple[str, str]] = []
    script = "cat; printf 'a\\nb\\302\\205c\\nlast'; echo err >&2; printf '\\377\\n' >&2"
    ended = run_headless(shell(script), ENVIRONMENT, lambda stream, line: lines.append((stream, line)))
    assert ended.exit_code == 0
    assert [line for stream, line in lines if stream == "stdout"] == ["a", "b\x85c", "last"]
    assert [line for stream, line in lines if stream == "stderr"] == ["err", "\ufffd"]


def test_what_the_child_left_running_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # One in the child's group, one that ignores SIGHUP, and on Linux one in a session of its own.
    script = f"""
        sleep 300 & echo $! >> {pids}
        nohup sleep 300 >/dev/null 2>&1 & echo $! >> {pids}
    """
    if sys.platform == "linux":
        script += f"setsid sh -c 'echo $$ >> {pids}; exec sleep 300' &\n"
        script += f"while [ $(wc -l < {pids}) -lt 3 ]; do :; done"
    began = time.monotonic()
    assert run_headless(shell(script), ENVIRONMENT, lambda *_: None).exit_code == 0
    left = [int(line) for line in pids.read_text("utf-8").split()]
    assert len(left) == (3 if sys.platform == "linux" else 2)
    assert all(gone(pid) for pid in left)
    assert time.monotonic() - began < 10


def test_the_time_limit_ends_the_child_with_124() -> None:
    ended = run_headless(shell("sleep 300"), ENVIRONMENT, timeout_s=0.3)
    assert (ended.exit_code, ended.timed_out) == (124, True)


def test_a_task_longer_than_a_command_line_is_named_with_its_size() -> None:
    with pytest.raises(
        AgentFailed, match=r"200000 bytes is too long for a command line; put the task into a file"
    ):
        run_headless(("/bin/echo", "x" * 200_000), ENVIRONMENT)


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentNotExecutable, match="nothing cannot be run"):
        run_headless((str(tmp_path / "nothing"),), ENVIRONMENT)


WRAPPER = """
import sys
from ftagent.adapters.process import run_headless
sys.exit(run_headless(("/bin/sh", "-c", sys.argv[1]), {"PATH": "/usr/bin:/bin"}).exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_child_and_decide_the_exit_code(number: signal.Signals, tmp_path: Path) -> None:
    ready, seen = tmp_path / "ready", tmp_path / "seen"
    # The child exits with 0 on the signal, as some agents do: the wrapper was interrupted all the same.
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo {name} > {seen}; exit 0' {name}; touch {ready}; while :; do sleep 0.05; done"
    with subprocess.Popen([sys.executable, "-c", WRAPPER, script], cwd=REPOSITORY) as process:
        until(ready.exists, "the child's start")
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert seen.read_text("utf-8").strip() == name


def test_a_second_signal_kills_a_child_that_ignores_the_first(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' INT; touch {ready}; while :; do sleep 0.05; done"
    with subprocess.Popen([sys.executable, "-c", WRAPPER, script], cwd=REPOSITORY) as process:
        until(ready.exists, "the child's start")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


FOREGROUND = """
import os, sys, termios
from ftagent.adapters.process import run_foreground
before = termios.tcgetattr(0)
code = run_foreground(("/bin/sh", "-c", sys.argv[1]), {"PATH": "/usr/bin:/bin"}).exit_code
after = termios.tcgetattr(0)
print("ours-again", os.tcgetpgrp(0) == os.getpgrp(), "same-modes", before == after, "code", code, flush=True)
print("typed", input(), flush=True)
"""


class Terminal:
    """A program on a pseudo terminal of its own, as a shell would start it."""

    def __init__(self, script: str) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            termios.tcsetwinsize(0, (33, 101))
            os.chdir(REPOSITORY)
            os.execv(sys.executable, [sys.executable, "-c", FOREGROUND, script])
        self.shown = ""

    @property
    def foreground(self) -> int:
        """The process group that keys go to."""
        return os.tcgetpgrp(self._descriptor)

    def read_until(self, words: str, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in self.shown:
            assert time.monotonic() < deadline, f"waited for {words!r}, saw {self.shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.shown += os.read(self._descriptor, 4096).decode()

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def close(self) -> None:
        if not gone(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._descriptor)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("stty raw -echo; read -r x; exit 7", 7),
        ("stty raw -echo; kill -9 $$", 137),
        ("stty -icanon; exit 0", 0),
    ],
)
def test_the_terminal_is_handed_over_and_taken_back(script: str, code: int) -> None:
    # The child fails at once if the terminal is not its own: the group in front must be its group.
    own = 'test "$(ps -o tpgid= -p $$ | tr -d " ")" = "$$" || exit 99; echo in-front; '
    terminal = Terminal(own + script)
    try:
        terminal.read_until("in-front")
        if "read" in script:
            terminal.type("x\n")
        terminal.read_until(f"code {code}\r\n")
        assert f"ours-again True same-modes True code {code}" in terminal.shown
        terminal.type("hello\n")
        terminal.read_until("typed hello")
    finally:
        terminal.close()


def test_the_agent_sees_the_size_of_the_terminal_and_every_change() -> None:
    script = "stty size; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done"
    terminal = Terminal(script)
    try:
        terminal.read_until("ready")
        assert "33 101" in terminal.shown
        terminal.resize(20, 60)
        terminal.read_until("20 60", timeout_s=2)
        terminal.read_until("code 4")
    finally:
        terminal.close()


def test_ctrl_c_goes_to_the_agent_alone() -> None:
    terminal = Terminal("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done")
    try:
        terminal.read_until("ready")
        until(lambda: terminal.foreground != terminal.pid, "the terminal to be the agent's")
        terminal.type("\x03")
        terminal.read_until("caught")
        terminal.read_until("code 5")
    finally:
        terminal.close()


def test_the_wrapper_is_suspended_with_the_agent_and_both_come_back() -> None:
    terminal = Terminal("echo ready; kill -STOP $$; echo resumed; exit 3")
    try:
        terminal.read_until("ready")
        until(lambda: psutil.Process(terminal.pid).status() == psutil.STATUS_STOPPED, "the suspension")
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.read_until("resumed")
        terminal.read_until("code 3")
    finally:
        terminal.close()
