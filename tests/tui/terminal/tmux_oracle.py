"""tmux as the judge of what a screen looks like after some bytes: text, colours, attributes and cursor."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.terminal import Terminal, terminal
from tests.tui.terminal.casts import Event, Size

_SGR = re.compile(r"\x1b\[([\d;:]*)m|\x1b\]8;[^;]*;([^\x1b]*)\x1b\\|(\x0e|\x0f)|([^\x1b])", re.DOTALL)
# DEC's line drawing set, which tmux keeps as letters between SO and SI.
_DRAWING = dict(zip("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))
_FLAGS = {
    1: "bold",
    2: "dim",
    3: "italic",
    4: "underline",
    5: "blink",
    7: "reverse",
    8: "conceal",
    9: "strike",
}


class Looks(NamedTuple):
    """A cell as tmux says it: colours as None, an index or three channels."""

    foreground: object = None
    background: object = None
    flags: frozenset[str] = frozenset()


class Screen(NamedTuple):
    text: list[str]  # rows without the blanks at their ends
    cells: list[list[tuple[str, Looks]]]  # rows of characters with their looks; wide ones once
    cursor: tuple[int, int]
    alternate: bool

    def place(self, columns: int) -> tuple[int, int]:
        """The cursor; tmux says one column too many while a wrap is due."""
        return min(self.cursor[0], columns - 1), self.cursor[1]


class Oracle:
    """A tmux window that shows byte streams as they are, one after the other."""

    def __init__(self, directory: Path, window: Terminal) -> None:
        self._directory = directory
        self._window = window
        self._shown = 0

    def screen(self, size: Size, events: Sequence[Event]) -> Screen:
        """What tmux shows after `events` on a fresh screen of `size`."""
        window = self._window
        window.resize(*size)
        window.until(lambda: self._sized(size))
        self._show(b"\x1b[?1049l\x1b[!p\x1bc\x1b[3J")
        for event in events:
            if isinstance(event, Size):
                window.resize(*event)
                window.until(lambda size=event: self._sized(size))  # type: ignore[misc]
            else:
                self._show(event)
        coloured = window.tmux("capture-pane", "-p", "-e", "-N")
        rows = list(cells(coloured, int(window.state("pane_height"))))
        text = ["".join(character for character, _ in row).rstrip(" ") for row in rows]
        place = (int(window.state("cursor_x")), int(window.state("cursor_y")))
        return Screen(text, rows, place, window.state("alternate_on") == "1")

    def _sized(self, size: Size) -> bool:
        return (self._window.state("window_width"), self._window.state("window_height")) == tuple(
            map(str, size)
        )

    def _show(self, data: bytes) -> None:
        """Write `data` to the window and wait until tmux has taken it: it sets the title that follows."""
        self._shown += 1
        title = f"shown-{self._shown}"
        part = self._directory / "part"
        part.write_bytes(data + f"\x1b]2;{title}\x1b\\".encode())
        with (self._directory / "pipe").open("w") as pipe:
            pipe.write(f"{part}\n")
        self._window.until(lambda: self._window.state("pane_title") == title)


@contextmanager
def oracle(directory: Path) -> Iterator[Oracle]:
    """A window whose terminal changes nothing: no echo, no line discipline, bytes as they are."""
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    with terminal(directory, 120, 40) as window:
        window.tmux("set-option", "-g", "status", "off")
        window.tmux("set-option", "-g", "window-size", "manual")
        loop = 'while read -r part <&3; do cat "$part"; done'
        window.type(f"stty raw -echo; exec 3<>{shlex.quote(str(pipe))}; {loop}")
        window.keys("Enter")
        yield Oracle(directory, window)


def cells(coloured: str, rows: int) -> Iterator[list[tuple[str, Looks]]]:
    """Rows of tmux's `capture-pane -e`. Its attributes go on over the ends of lines."""
    looks, drawing = Looks(), False
    for line in coloured.split("\n")[:rows]:
        row: list[tuple[str, Looks]] = []
        for match in _SGR.finditer(line):
            if match[1] is not None:
                looks = _after(looks, match[1])
            elif match[3]:
                drawing = match[3] == "\x0e"
            elif match[4]:
                row.append((_DRAWING.get(match[4], match[4]) if drawing else match[4], looks))
        yield row


def _after(looks: Looks, parameters: str) -> Looks:
    """`looks` after one SGR sequence, in the forms that tmux writes."""
    if parameters.startswith("4:"):
        return looks._replace(flags=looks.flags | {"underline"})
    numbers = [int(part or 0) for part in re.split("[;:]", parameters)]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            looks = Looks()
        elif number in _FLAGS:
            looks = looks._replace(flags=looks.flags | {_FLAGS[number]})
        elif number in (38, 48, 58):
            channels = 1 if numbers.pop(0) == 5 else 3
            value, numbers = tuple(numbers[:channels]), numbers[channels:]
            looks = _coloured(looks, number - 8, value[0] if channels == 1 else value)
        else:
            bright = number >= 90
            base = number // 10 * 10 - (60 if bright else 0)
            looks = _coloured(looks, base, None if number % 10 == 9 else number % 10 + 8 * bright)
    return looks


def _coloured(looks: Looks, base: int, colour: object) -> Looks:
    """`base` is 30 for the foreground, 40 for the background; underlines have colours too, which we leave."""
    if base == 30:
        return looks._replace(foreground=colour)
    return looks._replace(background=colour) if base == 40 else looks
