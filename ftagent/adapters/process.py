"""Runs an agent as a child: headless with its output passed on, or in the foreground with the whole terminal.

The child leads a process group of its own. Signals are forwarded to it, and whatever it leaves behind is
ended on every way out. Knows no agent and no engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, Literal

import psutil

from ftagent.errors import AgentFailed, AgentNotExecutable

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 5.0  # between asking a child to end and making it
_PR_SET_CHILD_SUBREAPER = 36
# Leave alternate screen, mouse, focus, bracketed paste and kitty keys; show the cursor; plain colours.
_RESET_TERMINAL = b"\x1b[?1049l\x1b[?1000;1002;1003;1004;1006;2004;2031l\x1b[<u\x1b[>4m\x1b[?25h\x1b[0m\r\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. `exit_code` is what the wrapper returns for it."""

    code: int
    signal: int | None = None
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        if self.timed_out:
            return 124
        return 128 + self.signal if self.signal else self.code


class _Forwarder:
    """Passes signals on to the child's group, and remembers the first one."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.at = 0.0
        self._group: int | None = None

    def attach(self, group: int) -> None:
        """Name the group to forward to; a signal that came before is passed on now."""
        self._group = group
        if self.first is not None:
            signal_group(group, self.first)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first, self.at = number, time.monotonic()
            signal_group(self._group, number)
        else:
            signal_group(self._group, signal.SIGKILL)


def run_headless(
    arguments: Sequence[str],
    env: Mapping[str, str],
    on_line: OnLine | None = None,
    timeout_s: float | None = None,
) -> Ended:
    """Run to the end without a terminal: no input, and output inherited, or given to `on_line` line by line.

    `on_line` is called from two threads, one call at a time. Raises AgentNotExecutable, and BrokenPipeError
    when `on_line` did: the child is ended then.
    """
    with _forwarding() as forwarder, reaping() as reap:
        pipe = subprocess.PIPE if on_line else None
        try:
            process = subprocess.Popen(
                arguments,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_run(arguments, error) from error
        forwarder.attach(process.pid)
        closed: list[BrokenPipeError] = []
        readers = _start_readers(process, on_line, closed) if on_line else []
        try:
            timed_out = _wait(process, forwarder, timeout_s)
        finally:
            reap(process.pid)
            process.wait()
            for reader in readers:
                reader.join(_GRACE_S)
    if closed:
        raise closed[0]
    ended_by = forwarder.first or (-process.returncode if process.returncode < 0 else None)
    return Ended(process.returncode, ended_by, timed_out)


def run_foreground(arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
    """Give the terminal to the child until it ends, then take it back as it was.

    Ctrl+Z in the child suspends this process with it, so that the shell's `fg` brings both back. Needs a
    terminal on stdin. Raises AgentNotExecutable and AgentFailed.
    """
    terminal = sys.stdin.fileno()
    saved = termios.tcgetattr(terminal)
    ours = os.getpgrp()
    # A background process that touches the terminal is stopped by SIGTTOU: we must not be, taking it back.
    previous = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with _forwarding() as forwarder, reaping() as reap:
            pid = _spawn(arguments, env)
            forwarder.attach(pid)
            try:
                status = _wait_foreground(pid, terminal, ours)
            finally:
                reap(pid)
                os.tcsetpgrp(terminal, ours)
                termios.tcsetattr(terminal, termios.TCSADRAIN, saved)
    finally:
        signal.signal(signal.SIGTTOU, previous)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.write(terminal, _RESET_TERMINAL)
    return Ended(code, forwarder.first or (-code if code < 0 else None))


def _spawn(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    # Not Popen with preexec_fn: that runs Python between fork and exec, unsafe beside the engine's threads.
    try:
        return os.posix_spawn(
            arguments[0], list(arguments), dict(env), setpgroup=0, setsigdef=[*_FORWARDED, signal.SIGTTOU]
        )
    except OSError as error:
        raise cannot_run(arguments, error) from error


def cannot_run(arguments: Sequence[str], error: OSError) -> AgentNotExecutable | AgentFailed:
    """Words for a start that failed."""
    if error.errno == errno.E2BIG:
        longest = max(len(os.fsencode(argument)) for argument in arguments)
        words = (
            f"one of {longest} bytes is too long for a command line; put the task into a file and name that"
        )
        return AgentFailed(f"{arguments[0]} cannot take its arguments: {words}")
    return AgentNotExecutable(f"{arguments[0]} cannot be run: {error.strerror}")


def _wait_foreground(pid: int, terminal: int, ours: int) -> int:
    """Wait status of the child once it has ended; follows it into suspension and back."""
    os.tcsetpgrp(terminal, pid)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        # With these two it was stopped for touching the terminal before that was its own.
        if os.WSTOPSIG(status) not in (signal.SIGTTIN, signal.SIGTTOU):
            os.tcsetpgrp(terminal, ours)
            os.kill(os.getpid(), signal.SIGSTOP)  # resumes here on the shell's `fg`
            os.tcsetpgrp(terminal, pid)
        signal_group(pid, signal.SIGCONT)


def _wait(process: subprocess.Popen[bytes], forwarder: _Forwarder, timeout_s: float | None) -> bool:
    """Wait for the end. A child that outlives `timeout_s`, or a signal by the grace, is killed.

    Returns whether the time was up.
    """
    deadline = time.monotonic() + timeout_s if timeout_s else None
    asked_at: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
            return asked_at is not None
        now = time.monotonic()
        if deadline and now >= deadline and asked_at is None:
            asked_at = now
            signal_group(process.pid, signal.SIGTERM)
        since = asked_at or (forwarder.at if forwarder.first else None)
        if since and now - since > _GRACE_S:
            signal_group(process.pid, signal.SIGKILL)


def _start_readers(
    process: subprocess.Popen[bytes], on_line: OnLine, closed: list[BrokenPipeError]
) -> list[threading.Thread]:
    lock = threading.Lock()

    def pump(pipe: IO[bytes], stream: Stream) -> None:
        with pipe:
            for line in pipe:
                try:
                    with lock:
                        on_line(stream, line.decode("utf-8", errors="replace").rstrip("\n"))
                except BrokenPipeError as error:  # nobody reads on: end the child as SIGPIPE would
                    closed.append(error)
                    signal_group(process.pid, signal.SIGTERM)
                    return

    assert process.stdout
    assert process.stderr
    pairs: tuple[tuple[IO[bytes], Stream], ...] = ((process.stdout, "stdout"), (process.stderr, "stderr"))
    readers = [threading.Thread(target=pump, args=pair, daemon=True, name="agent-output") for pair in pairs]
    for reader in readers:
        reader.start()
    return readers


@contextlib.contextmanager
def _forwarding() -> Iterator[_Forwarder]:
    forwarder = _Forwarder()
    previous = {number: signal.signal(number, forwarder) for number in _FORWARDED}
    try:
        yield forwarder
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def reaping() -> Iterator[Callable[[int], None]]:
    """Yield a function that ends a child's group and every process that came from it."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    _set_subreaper(True)

    def reap(group: int) -> None:
        signal_group(group, signal.SIGTERM)
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate()
        _, stubborn = psutil.wait_procs(left, timeout=_GRACE_S)
        for child in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(stubborn, timeout=_GRACE_S)

    try:
        yield reap
    finally:
        _set_subreaper(False)


def _set_subreaper(on: bool) -> None:
    """On Linux, let orphans of the child become ours instead of init's, so that they can be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def signal_group(group: int | None, number: int) -> None:
    """Send a signal to a process group, if there still is one."""
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
