"""What the run screen needs of a terminal emulator, as plain data. Knows no library, no process, no widget.

Bytes of a program go in by `feed`; rows of styled text, the cursor, the modes and the answers to what the
program asks come out. `board.BoardEmulator` is the implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

# None is the terminal's own default, an int one of its 256 colours, three ints red, green and blue.
Colour = int | tuple[int, int, int] | None
Mouse = Literal["off", "press", "click", "drag", "move"]
MouseEncoding = Literal["legacy", "utf8", "sgr", "urxvt"]


class CellStyle(NamedTuple):
    """How a run of cells is drawn."""

    foreground: Colour = None
    background: Colour = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    blink: bool = False
    reverse: bool = False
    conceal: bool = False
    strike: bool = False
    link: str = ""  # where a hyperlink goes; empty for none


PLAIN = CellStyle()


class Run(NamedTuple):
    """Cells of one style, side by side. `columns` counts a wide character as two."""

    text: str
    style: CellStyle
    columns: int


Row = tuple[Run, ...]


class Cursor(NamedTuple):
    column: int
    row: int
    shape: Literal["block", "underline", "bar"] = "block"


@dataclass(frozen=True, slots=True)
class Modes:
    """What the program has switched on: how keys, mouse and pastes must be sent to it."""

    application_cursor: bool = False  # arrows as SS3
    backspace_is_bs: bool = False
    newline: bool = False  # Enter as CR LF
    kitty: int = 0  # flags of the kitty keyboard protocol
    modify_other_keys: int = 0  # xterm's level, 0 to 2
    bracketed_paste: bool = False
    focus: bool = False
    mouse: Mouse = "off"
    mouse_encoding: MouseEncoding = "legacy"
    alternate_screen: bool = False
    alternate_scroll: bool = False  # the wheel as arrows while on the alternate screen
    synchronised: bool = False  # a frame is being written: do not draw yet


@dataclass(frozen=True, slots=True)
class Bell:
    """The program rang."""


@dataclass(frozen=True, slots=True)
class Clipboard:
    """The program wants `text` in the user's clipboard."""

    text: str


@dataclass(frozen=True, slots=True)
class Colours:
    """The colours that the user's terminal draws with by default, if it told them."""

    foreground: tuple[int, int, int] | None = None
    background: tuple[int, int, int] | None = None


Happening = Bell | Clipboard


class Emulator(Protocol):
    """A screen that a program writes on.

    `changed`, `replies` and `happenings` hand over what has gathered since they were last called.
    """

    @property
    def columns(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def title(self) -> str:
        """The window title as the program set it, without control characters; empty before."""
        ...

    @property
    def cursor(self) -> Cursor | None:
        """Where the cursor is; None while it is hidden."""
        ...

    @property
    def modes(self) -> Modes: ...

    @property
    def history(self) -> int:
        """How many rows have scrolled off the top and are kept."""
        ...

    def feed(self, data: bytes) -> None:
        """Take output of the program; sequences and characters may be cut anywhere. Never raises."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Take another size. Raises ValueError for one below 1 x 1."""
        ...

    def row(self, index: int, mark: int | None = None) -> Row:
        """A row of the screen from the top; -1 is the row that scrolled off last, as far as `history`.

        The character at column `mark` gets a run of its own.
        """
        ...

    def left_screen(self) -> tuple[Row, ...]:
        """The alternate screen as the program left it; empty where it is still there, or never was."""
        ...

    def changed(self) -> frozenset[int]:
        """Rows of the screen to draw again."""
        ...

    def replies(self) -> bytes:
        """Answers to what the program asked, to be written to it."""
        ...

    def happenings(self) -> tuple[Happening, ...]: ...


def row_text(row: Row) -> str:
    """The characters of a row, without the blanks at its end."""
    return "".join(run.text for run in row).rstrip(" ")
