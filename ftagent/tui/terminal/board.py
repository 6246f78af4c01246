"""The emulator on the `bittty` library: its board of devices, read into our plain data.

https://pypi.org/project/bittty/. What the library would do beyond our needs is switched off here: printers,
resizes that the program asks for, and answers that repeat to a program what it, or somebody else, has put in.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from bittty import BITTTY, Board, Operation
from bittty.present import Bell as BellRang
from bittty.present import PresentEvent, RowsScrolledOff, ScrollbackCleared
from bittty.style import Color, Style
from bittty.video import Cell, Line

from ftagent import __version__
from ftagent.tui.terminal.corrections import correct, resize
from ftagent.tui.terminal.emulator import (
    PLAIN,
    Bell,
    CellStyle,
    Clipboard,
    Colour,
    Colours,
    Cursor,
    Happening,
    Modes,
    Mouse,
    MouseEncoding,
    Row,
    Run,
)

_log = logging.getLogger(__name__)

HISTORY_ROWS = 2000
CLIPBOARD_BYTES = 256 * 1024  # what terminals take is less, mostly
_STRING_CHARACTERS = 1 << 20  # an escape string that grows longer than this is given up
_HAPPENINGS = 64
_STYLES = 8192  # converted ones that are kept
# The library's own terminal, without its printer port, serial line and locator, and without the mouse in
# pixels: we know cells alone.
_MODEL = replace(BITTTY, options=frozenset(), name="ftagent", macro_space=None, da1_response="\x1b[?62;22c")
_UNTOLD = Colours()
_MOUSE: dict[str, Mouse] = {
    "off": "off",
    "x10": "press",
    "normal": "click",
    "button": "drag",
    "any": "move",
    "locator": "off",
}
_MOUSE_ENCODING: dict[str, MouseEncoding] = {
    "legacy": "legacy",
    "utf8": "utf8",
    "sgr": "sgr",
    "urxvt": "urxvt",
}


class _Line:
    """The library's line to the program: gathers what the board says."""

    closed = False

    def __init__(self) -> None:
        self.said = bytearray()

    def write(self, data: str) -> int:
        return self.write_bytes(data.encode())

    def write_bytes(self, data: bytes) -> int:
        self.said += data
        return len(data)

    def flush(self) -> None: ...

    def resize(self, rows: int, cols: int) -> None: ...

    def configure_line(self, line: object) -> None: ...

    def close(self) -> None: ...

    async def read_bytes_async(self, size: int) -> bytes:
        return b""


class BoardEmulator:
    """An `Emulator` of `columns` x `rows`."""

    def __init__(self, columns: int, rows: int, colours: Colours = _UNTOLD) -> None:
        self._columns, self._rows = columns, rows
        self._board = Board(
            width=columns,
            height=rows,
            model=_MODEL,
            palette_overrides={
                name: colour
                for name, colour in (("foreground", colours.foreground), ("background", colours.background))
                if colour
            },
        )
        self._line = _Line()
        self._board.host.attach(self._line)
        self._board.attach_display(self)
        self._history: deque[Line] = deque(maxlen=HISTORY_ROWS)
        self._happenings: deque[Happening] = deque(maxlen=_HAPPENINGS)
        self._titled = False
        self._styles_of: tuple[int, bool] | None = None
        self._standard = tuple(self._board.palette.colors)
        self._styles: dict[Style, CellStyle] = {}
        self._seen = 0
        self._drawn: object = None  # screen and colours at the last `changed`
        # On from the start: without it a combining character would take a cell of its own.
        self._board.modes.set_mode(2027, True, private=True)
        correct(self._board)
        self._board.registry.update(
            XTWINOPS=self._window_operation,
            OSC_CLIPBOARD=self._clipboard,
            XTVERSION=self._version,
            DECSCPP=_ignore,
            DECDMAC=_ignore,
            DECINVM=_ignore,
        )
        # A colour that we were not told is not told either: an invented one would turn a theme dark or light.
        for name, told in (("OSC_FOREGROUND", colours.foreground), ("OSC_BACKGROUND", colours.background)):
            if told is None:
                self._board.registry[name] = _ignore

    # What the library pushes to its display.

    keeps_scrollback = True

    def present(self, event: PresentEvent) -> None:
        if isinstance(event, RowsScrolledOff):
            self._history.extend(event.lines)
        elif isinstance(event, BellRang):
            self._happenings.append(Bell())
        elif isinstance(event, ScrollbackCleared):
            self._history.clear()

    # Our interface.

    @property
    def columns(self) -> int:
        return self._columns

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def title(self) -> str:
        title = self._board.title.title
        if title == "Terminal" and not self._titled:
            return ""  # the library's own
        self._titled = True
        return "".join(character for character in title if character.isprintable())

    @property
    def cursor(self) -> Cursor | None:
        place = self._board.display.cursor
        if place is None:
            return None
        return Cursor(min(place[0], self._columns - 1), place[1], self._board.cursor.shape)

    @property
    def modes(self) -> Modes:
        board, modes = self._board, self._board.modes
        return Modes(
            application_cursor=modes.cursor_application_mode,
            backspace_is_bs=modes.backarrow_key_sends_bs,
            newline=modes.linefeed_newline_mode,
            kitty=board.keyboard.kitty_flags,
            modify_other_keys=board.keyboard.modify_other_keys,
            bracketed_paste=modes.bracketed_paste,
            focus=modes.focus_reporting,
            mouse=_MOUSE[board.mouse.protocol.value],
            mouse_encoding=_MOUSE_ENCODING[board.mouse.encoding.value],
            alternate_screen=board.blitter.in_alt_screen,
            alternate_scroll=modes.alternate_scroll_mode,
            synchronised=modes.synchronized_output,
        )

    @property
    def history(self) -> int:
        return len(self._history)

    def feed(self, data: bytes) -> None:
        board = self._board
        try:
            board.feed_host_data(data)
        except Exception:  # noqa: BLE001  # the library's: what it cannot take must not end the session
            _log.exception("the terminal emulator gave up %d bytes", len(data))
            board.parser.reset()
        if len(board.parser.buffer) > _STRING_CHARACTERS:
            board.parser.reset()
        if (board.width, board.height) != (self._columns, self._rows):  # by DECCOLM and its like
            board.resize(self._columns, self._rows)

    def resize(self, columns: int, rows: int) -> None:
        if columns < 1 or rows < 1:
            raise ValueError(f"a terminal of {columns} x {rows} cells")
        self._columns, self._rows = columns, rows
        self._history.extend(resize(self._board, columns, rows))
        self._drawn = None

    def row(self, index: int, mark: int | None = None) -> Row:
        if index >= 0:
            return self._runs(self._board.display.page.grid[index], mark)
        return self._runs(self._history[index].cells, mark)

    def left_screen(self) -> tuple[Row, ...]:
        blitter = self._board.blitter
        return (
            () if blitter.in_alt_screen else tuple(self._runs(cells, None) for cells in blitter.alt_page.grid)
        )

    def changed(self) -> frozenset[int]:
        page, colours = self._board.display.page, self._colours
        anew = (page, colours) != self._drawn
        rows = range(page.height) if anew else page.dirty_rows(self._seen)
        self._drawn, self._seen = (page, colours), page.observe()
        return frozenset(rows)

    def replies(self) -> bytes:
        said, self._line.said = bytes(self._line.said), bytearray()
        return said

    def happenings(self) -> tuple[Happening, ...]:
        gathered = tuple(self._happenings)
        self._happenings.clear()
        return gathered

    def _runs(self, cells: Sequence[Cell], mark: int | None) -> Row:
        runs: list[Run] = []
        style, text, start = cells[0][0], "", 0
        marks = (mark, _end_of(cells, mark)) if mark is not None else ()
        for column, (cell_style, character) in enumerate(cells):
            if (cell_style is not style and cell_style != style) or column in marks:
                if column > start:
                    runs.append(Run(text, self._style(style), column - start))
                style, text, start = cell_style, "", column
            text += character
        runs.append(Run(text, self._style(style), len(cells) - start))
        return tuple(runs)

    @property
    def _colours(self) -> tuple[int, bool]:
        """What changes the look of all cells: how often the palette changed, and whether all is reversed."""
        return self._board.palette.generation, self._board.modes.reverse_screen

    def _style(self, style: Style) -> CellStyle:
        if self._colours != self._styles_of or len(self._styles) > _STYLES:
            self._styles.clear()
            self._styles_of = self._colours
        found = self._styles.get(style)
        if found is None:
            found = _converted(style, self._board.palette.colors, self._standard)
            if self._board.modes.reverse_screen:
                found = found._replace(reverse=not found.reverse)
            self._styles[style] = found
        return found

    # What the library would do in another way.

    def _window_operation(self, operation: Operation) -> None:
        """XTWINOPS: sizes are told, titles are kept; windows are not moved, and nothing is sized from inside.

        A title is not told: the answer would come as if typed, with any text that somebody put into it.
        """
        kind = (operation.args[0] or (None,))[0]
        if kind in (18, 19):
            self._line.write(f"\x1b[{kind - 10};{self._rows};{self._columns}t")
        elif kind in (20, 21):
            self._line.write(f"\x1b]{'L' if kind == 20 else 'l'}\x1b\\")
        elif kind == 22:
            self._board.title.push()
        elif kind == 23:
            self._board.title.pop()

    def _clipboard(self, operation: Operation) -> None:
        """OSC 52: may be written, never read; what is too long is left out whole."""
        payload = operation.args[1]
        if len(payload) > 4 * CLIPBOARD_BYTES // 3 + 4:
            _log.warning("a clipboard text of %d characters was left out", len(payload))
            return
        try:
            text = base64.b64decode(payload, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):  # a query ("?") as well
            return
        if text:
            self._happenings.append(Clipboard(text))

    def _version(self, operation: Operation) -> None:
        self._line.write(f"\x1bP>|ftagent({__version__})\x1b\\")


def _ignore(operation: Operation) -> None:
    pass


def _end_of(cells: Sequence[Cell], column: int) -> int:
    """The column behind the character at `column`: an empty cell is the second half of a wide one."""
    end = column + 1
    return end + 1 if end < len(cells) and cells[end][1] == "" else end


def _converted(style: Style, palette: Sequence[Colour], standard: Sequence[Colour]) -> CellStyle:
    """`style` as ours; a colour that the program has redefined is given as what it is now."""

    def colour(value: Color | None) -> Colour:
        if value is None or value.mode == "default":
            return None
        number: Colour = value.value
        if isinstance(number, int) and palette[number] != standard[number]:
            return palette[number]
        return number

    if style == Style():
        return PLAIN
    return CellStyle(
        foreground=colour(style.fg),
        background=colour(style.bg),
        bold=bool(style.bold),
        dim=bool(style.dim),
        italic=bool(style.italic),
        underline=bool(style.underline),
        blink=bool(style.blink),
        reverse=bool(style.reverse),
        conceal=bool(style.conceal),
        strike=bool(style.strike),
        link=style.hyperlink or "",
    )
