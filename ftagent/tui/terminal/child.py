"""A program on a pseudo-terminal of its own: started, fed, resized, read piece by piece, and ended.

It leads a session of its own with the pseudo-terminal as its controlling terminal. Knows bytes, no screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import pty
import signal
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ftagent.adapters.process import Ended, cannot_run, signal_group

_UNBLOCKABLE = (signal.SIGKILL, signal.SIGSTOP)
_log = logging.getLogger(__name__)

# Taken at once; what is not taken waits in the kernel, and the program with it. It takes the emulator about a
# millisecond, and the event loop gets round between any two pieces: a key needs a few rounds to the program.
READ_BYTES = 4096
_WRITE_BYTES = 4096
_ANSWER_BYTES = 64 * 1024  # answers to a program that does not read them are dropped beyond this
_INPUT_BYTES = 16 << 20
_DRAIN_ROUNDS = 256  # reads after the end of the program: of READ_BYTES each


class PtyChild:
    """One program. All methods belong to the event loop that `start` was called in.

    `on_output` gets what it writes; `on_ended` is called once, after all output; `on_stopped` when it has
    suspended itself.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_ended: Callable[[Ended], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._on_output = on_output
        self._on_ended = on_ended
        self._on_stopped = on_stopped
        self._master = -1
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._writing = False
        self._status: int | None = None
        self.pid = 0

    @property
    def running(self) -> bool:
        return self.pid != 0 and self._status is None

    def start(self, columns: int, rows: int) -> None:
        """Start the program on a terminal of that size. Raises AgentNotExecutable or AgentFailed."""
        self._loop = asyncio.get_running_loop()
        master, slave = pty.openpty()
        try:
            self._master = master
            self._set_size(columns, rows)
            name = os.ttyname(slave)
            # In a new session, opening a terminal makes it the controlling one: no code has to run between
            # fork and exec, which would be unsafe beside the engine's threads.
            self.pid = os.posix_spawn(
                self._arguments[0],
                self._arguments,
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                    (os.POSIX_SPAWN_DUP2, 0, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[number for number in signal.Signals if number not in _UNBLOCKABLE],
            )
        except OSError as error:
            os.close(master)
            self._master = -1
            raise cannot_run(self._arguments, error) from error
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._readable)
        threading.Thread(target=self._wait, daemon=True, name="agent-wait").start()

    def write(self, data: bytes, answer: bool = False) -> bool:
        """Send `data` in the order of calls; False if the program has stopped reading and it is too much.

        `answer` is for what the terminal says by itself.
        """
        if self._master < 0 or self._queued + len(data) > (_ANSWER_BYTES if answer else _INPUT_BYTES):
            return False
        if data:
            self._queue.append(memoryview(data))
            self._queued += len(data)
            self._writable()
        return True

    def resize(self, columns: int, rows: int) -> None:
        """Tell the program that its terminal has another size (SIGWINCH)."""
        if self._master >= 0:
            self._set_size(columns, rows)

    def resume(self) -> None:
        """Let a program that had suspended itself go on."""
        if self.running:
            signal_group(self.pid, signal.SIGCONT)

    def end(self, number: int = signal.SIGHUP) -> None:
        """Ask the program and its group to end, as a terminal that is closed does."""
        if self.running:
            signal_group(self.pid, number)
            signal_group(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Let go of the terminal. What still runs on it is hung up."""
        if self._master >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._master)
                self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def _readable(self) -> None:
        """Take a bounded piece, so that other events get their turn however much the program writes."""
        data, opened = self._read()
        if not opened:
            self._loop.remove_reader(self._master)
        if data:
            self._on_output(data)

    def _read(self) -> tuple[bytes, bool]:
        """What is there, READ_BYTES at most; False once the other side is closed."""
        data = bytearray()
        while len(data) < READ_BYTES:
            try:
                piece = os.read(self._master, READ_BYTES - len(data))
            except BlockingIOError:
                break
            except OSError as error:  # EIO is how Linux says that nobody has the other side open
                if error.errno != errno.EIO:
                    _log.warning("reading the agent's terminal: %s", error)
                return bytes(data), False
            if not piece:
                return bytes(data), False
            data += piece
        return bytes(data), True

    def _writable(self) -> None:
        try:
            while self._queue:
                head = self._queue[0]
                sent = os.write(self._master, head[:_WRITE_BYTES])
                self._queued -= sent
                if sent < len(head):
                    self._queue[0] = head[sent:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the program has gone
            self._queue.clear()
            self._queued = 0
        if bool(self._queue) != self._writing:
            self._writing = bool(self._queue)
            if self._writing:
                self._loop.add_writer(self._master, self._writable)
            else:
                self._loop.remove_writer(self._master)

    def _wait(self) -> None:
        """In a thread: wait for the program, and tell the loop."""
        while True:
            try:
                _, status = os.waitpid(self.pid, os.WUNTRACED)
            except ChildProcessError:  # reaped by who cleans up
                return
            told = self._stopped if os.WIFSTOPPED(status) else self._ended
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to be told
                self._loop.call_soon_threadsafe(told, status)
            if not os.WIFSTOPPED(status):
                return

    def _stopped(self, status: int) -> None:
        if os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU):
            self.resume()
        else:
            self._on_stopped()

    def _ended(self, status: int) -> None:
        self._status = status
        for _ in range(_DRAIN_ROUNDS):  # bounded: what the program left in the background may write on
            data = self._read()[0] if self._master >= 0 else b""
            if not data:
                break
            self._on_output(data)
        code = os.waitstatus_to_exitcode(status)
        self._on_ended(Ended(code, -code if code < 0 else None))
