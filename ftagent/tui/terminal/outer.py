"""Asks the user's terminal for its default colours, so that a program in the pane gets true answers.

Before the screen starts and in raw mode for a moment: Textual does not ask, and would take the answers for
keys.
"""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty

from ftagent.tui.terminal.emulator import Colours

_WAIT_S = 0.3  # over SSH; every terminal answers the last question, most at once
_QUESTIONS = (
    b"\x1b]10;?\x1b\\\x1b]11;?\x1b\\\x1b[c"  # the last (DA1) is a fence: terminals know it, all of them
)
_FENCE = re.compile(rb"\x1b\[\?[\d;]*c")
_ANSWER = re.compile(rb"\x1b\](1[01]);rgb:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")


def ask_colours(fd: int) -> Colours:
    """What the terminal at `fd` says; nothing where it does not answer. Keys typed meanwhile are lost."""
    try:
        saved = termios.tcgetattr(fd)
        tty.setraw(fd, termios.TCSANOW)
    except termios.error:
        return Colours()
    try:
        os.write(fd, _QUESTIONS)
        return read_answers(_gather(fd))
    except OSError:
        return Colours()
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, saved)


def _gather(fd: int) -> bytes:
    said, end = b"", time.monotonic() + _WAIT_S
    while not _FENCE.search(said) and (left := end - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            said += os.read(fd, 4096)
    return said


def read_answers(said: bytes) -> Colours:
    """The colours in a terminal's answers; channels may have one to four digits."""
    found = {match[1]: _channels(match.groups()[1:]) for match in _ANSWER.finditer(said)}
    return Colours(found.get(b"10"), found.get(b"11"))


def _channels(digits: tuple[bytes, ...]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * int(channel, 16) / (16 ** len(channel) - 1)) for channel in digits)
    return red, green, blue
