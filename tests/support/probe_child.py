"""A program for a terminal that says what it is given: its size, each read in hex, and each new size.

`python -m tests.support.probe_child [SEQUENCE]...` writes the sequences first (as Python escapes). The keys
`x` and a digit end it with that exit code; `k` has it kill itself with SIGKILL, `z` stop itself; `o` has it
start a process that outlives it; `t` has it set its title, `b` write two megabytes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tty

BURST_LINES = 20_000  # of a hundred characters


def say(text: str) -> None:
    os.write(1, f"{text}\r\n".encode())


def say_size(*_: object) -> None:
    columns, rows = shutil.get_terminal_size()
    say(f"size={columns}x{rows}")


def burst() -> None:
    line = b"".join(b"%02d" % number for number in range(49)) + b"\r\n"
    data = memoryview(line * BURST_LINES)
    while data:
        data = data[os.write(1, data) :]
    say("burst-done")


def main() -> int:
    say_size()
    tty.setraw(0)
    signal.signal(signal.SIGWINCH, say_size)
    os.write(1, "".join(sys.argv[1:]).encode().decode("unicode_escape").encode("latin-1"))
    say(f"ready {os.getpid()}")
    while data := os.read(0, 65536):
        if data[:1] == b"x" and data[1:].isdigit():
            return int(data[1:])
        if data == b"x":
            return int(os.read(0, 1))
        if data == b"k":
            os.kill(os.getpid(), signal.SIGKILL)
        elif data == b"z":
            os.kill(os.getpid(), signal.SIGSTOP)
            say("resumed")
        elif data == b"o":
            left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            say(f"left={left.pid}")
        elif data == b"t":
            os.write(1, b"\x1b]2;title\x07")
        elif data == b"b":
            burst()
        else:
            say(f"read={data.hex()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
