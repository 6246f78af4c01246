"""The widget that shows a program's terminal: its screen drawn, and keys, mouse and pastes sent to it.

It draws what the emulator says and sends what `keys` and `input` encode. What the host keeps for itself is
asked of `take_key`; everything else is the program's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from ftagent.adapters.process import Ended
from ftagent.tui.pacing import Pacer
from ftagent.tui.terminal.board import BoardEmulator
from ftagent.tui.terminal.child import PtyChild
from ftagent.tui.terminal.emulator import Bell, CellStyle, Clipboard, Colour, Colours, Emulator, Row, row_text
from ftagent.tui.terminal.input import MouseKind, encode_focus, encode_mouse, encode_paste, encode_wheel
from ftagent.tui.terminal.keys import ALT, CTRL, SHIFT, encode_key

_RESIZE_S = 0.05  # sizes that come within this are taken as one
_SYNC_S = 0.15  # a frame that the program began to write is waited for so long
_SYNC_POLL_S = 0.01
_TYPING_S = 0.3  # so long after a key, what comes in is drawn sooner
# Share of a core that drawing may take, and pauses between two drawings: while nobody types, and after a key.
_IDLE_SHARE, _IDLE_PAUSES_S = 0.04, (1 / 30, 0.15)
_TYPING_SHARE, _TYPING_PAUSES_S = 0.4, (0.005, 0.1)
_WHEEL_ROWS = 3
_LEFT_S = 2.0  # a program that ends so soon after it left its alternate screen has left it for good
_UNTOLD = Colours()


class TerminalView(Widget, can_focus=True):
    """A program in a terminal. It is started once the widget has a size."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "TerminalView { width: 1fr; height: 1fr; }"

    @dataclass
    class Titled(Message):
        """The program set the title of its window."""

        title: str

    @dataclass
    class Finished(Message):
        """The program has ended, and all it wrote is on the screen."""

        ended: Ended

    class Suspended(Message):
        """The program has stopped itself."""

    @dataclass
    class Failed(Message):
        """The program could not be started."""

        error: Exception

    @dataclass
    class Copied(Message):
        """The program put text into the clipboard."""

        text: str

    class Rang(Message):
        """The program rang the bell."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        take_key: Callable[[events.Key], bool],
        colours: Colours = _UNTOLD,
    ) -> None:
        super().__init__()
        self.auto_links = False
        self.child = PtyChild(arguments, environment, self._output, self._ended, self._stopped)
        self.emulator: Emulator = BoardEmulator(80, 24, colours)
        self._take_key = take_key
        self._colours = colours
        self._strips: list[Strip] = []
        self._title = ""
        self._back = 0  # rows scrolled back into the history
        self._kept = 0  # rows of history at the last drawing
        self._cursor_row: int | None = None
        self._idle = Pacer(_IDLE_SHARE, between=_IDLE_PAUSES_S)
        self._typing = Pacer(_TYPING_SHARE, between=_TYPING_PAUSES_S)
        self._drawing: Timer | None = None
        self._resizing: Timer | None = None
        self._typed = 0.0
        self._frame_began: float | None = None
        self._button = 3
        self._alternate = False
        self._left = -_LEFT_S  # when the program left the alternate screen

    # The program's side.

    def _output(self, data: bytes) -> None:
        emulator = self.emulator
        emulator.feed(data)
        if replies := emulator.replies():
            self.child.write(replies, answer=True)
        for happening in emulator.happenings():
            if isinstance(happening, Clipboard):
                self.post_message(self.Copied(happening.text))
            elif isinstance(happening, Bell):
                self.post_message(self.Rang())
        alternate = emulator.modes.alternate_screen
        if self._alternate and not alternate:
            self._left = time.monotonic()
        self._alternate = alternate
        if emulator.title != self._title:
            self._title = emulator.title
            self.post_message(self.Titled(self._title))
        self._draw_soon()

    def _ended(self, ended: Ended) -> None:
        self._draw()
        self.post_message(self.Finished(ended))

    def _stopped(self) -> None:
        self.post_message(self.Suspended())

    # Size.

    def on_resize(self) -> None:
        if self.size.width < 1 or self.size.height < 1:
            return
        if not self.child.pid:
            self._start()
        elif self._resizing is None:
            self._resizing = self.set_timer(_RESIZE_S, self._fit)

    def _start(self) -> None:
        columns, rows = self.size
        self.emulator = BoardEmulator(columns, rows, self._colours)
        try:
            self.child.start(columns, rows)
        except Exception as error:  # noqa: BLE001  # told to the app, which ends with it as its own error
            self.post_message(self.Failed(error))
        self._draw()

    def _fit(self) -> None:
        """Give emulator and program the size that the widget has by now; the emulator first."""
        self._resizing = None
        columns, rows = self.size
        if columns < 1 or rows < 1 or (columns, rows) == (self.emulator.columns, self.emulator.rows):
            return
        self.emulator.resize(columns, rows)
        self.child.write(self.emulator.replies(), answer=True)
        self.child.resize(columns, rows)
        self._draw()

    # Drawing.

    def _draw_soon(self) -> None:
        if self._drawing is None:
            idle_s, typing_s = self._idle.pause_s(), self._typing.pause_s()
            typing = time.monotonic() - self._typed < _TYPING_S
            self._drawing = self.set_timer(typing_s if typing else idle_s, self._draw_whole)

    def _draw_whole(self) -> None:
        """Draw, unless the program is in the middle of a frame."""
        self._drawing = None
        if self.emulator.modes.synchronised:
            now = time.monotonic()
            self._frame_began = self._frame_began or now
            if now - self._frame_began < _SYNC_S:
                self._drawing = self.set_timer(_SYNC_POLL_S, self._draw_whole)
                return
        self._frame_began = None
        self._draw()

    def _draw(self) -> None:
        """Make the strips of what has changed, and have these rows redrawn."""
        emulator = self.emulator
        changed = set(emulator.changed())
        self._follow_history()
        cursor = emulator.cursor if self.has_focus and not self._back else None
        if self._cursor_row is not None:
            changed.add(self._cursor_row)
        self._cursor_row = cursor.row if cursor else None
        if cursor:
            changed.add(cursor.row)
        if self._back or len(self._strips) != emulator.rows:
            changed = set(range(emulator.rows))
            self._strips = [Strip.blank(0)] * emulator.rows
        for index in changed:
            if index < emulator.rows:
                mark = cursor.column if cursor and cursor.row == index else None
                self._strips[index] = _strip(emulator.row(index - self._back, mark), mark, emulator.columns)
        if changed:
            self.refresh(*(Region(0, index, emulator.columns, 1) for index in sorted(changed)))

    def _follow_history(self) -> None:
        """While scrolled back, keep showing the same rows although new ones come in below."""
        grown = self.emulator.history - self._kept
        self._kept = self.emulator.history
        if self._back and grown > 0:
            self._back += grown
        self._back = min(self._back, self.emulator.history)

    def render_line(self, y: int) -> Strip:
        strip = self._strips[y] if y < len(self._strips) else Strip.blank(0)
        return strip.adjust_cell_length(self.size.width)

    def screen_strips(self) -> list[Strip]:
        """What there is to see without a cursor; below the alternate screen if that was just left."""
        emulator = self.emulator
        rows = _filled([emulator.row(index) for index in range(emulator.rows)])
        if time.monotonic() - self._left < _LEFT_S:
            rows = _filled(emulator.left_screen()) + rows
        return [_strip(row, None, emulator.columns) for row in rows]

    def scroll_back(self, rows: int) -> None:
        """Show older rows, or with a negative count newer ones."""
        self._follow_history()
        back = max(0, min(self._back + rows, self.emulator.history))
        if back != self._back:
            self._back = back
            self._strips = []
            self._draw()

    # The user's side.

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if not self._take_key(event):
            self.send_key(event)

    def send_key(self, event: events.Key) -> None:
        """Send a key to the program."""
        sent = encode_key(event.key, event.character, self.emulator.modes)
        if sent:
            self._typed = time.monotonic()
            self.scroll_back(-self._back)
            self.child.write(sent)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._typed = time.monotonic()
        if not self.child.write(encode_paste(event.text, self.emulator.modes)):
            self.app.bell()

    def on_focus(self) -> None:
        self._focused(True)

    def on_blur(self) -> None:
        self._focused(False)

    def _focused(self, focused: bool) -> None:
        self.child.write(encode_focus(focused, self.emulator.modes))
        self._draw()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._button = max(0, event.button - 1)
        self.capture_mouse()
        self._mouse("press", event)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._mouse("release", event)
        self._button = 3
        self.release_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._mouse("move" if self._button == 3 else "drag", event)

    def _mouse(self, kind: MouseKind, event: events.MouseEvent) -> None:
        event.stop()
        column, row = self._cell(event)
        modes = self.emulator.modes
        self.child.write(encode_mouse(kind, self._button, column, row, _modifiers(event), modes))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(True, event)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(False, event)

    def _wheel(self, up: bool, event: events.MouseEvent) -> None:
        event.stop()
        column, row = self._cell(event)
        sent = encode_wheel(up, column, row, _modifiers(event), self.emulator.modes)
        if sent is None or self._back:
            self.scroll_back(_WHEEL_ROWS if up else -_WHEEL_ROWS)
        else:
            self.child.write(sent)

    def _cell(self, event: events.MouseEvent) -> tuple[int, int]:
        """The cell under the mouse; the nearest one while it is dragged outside."""
        columns, rows = self.emulator.columns, self.emulator.rows
        return max(0, min(int(event.x), columns - 1)), max(0, min(int(event.y), rows - 1))


def _modifiers(event: events.MouseEvent) -> int:
    return (SHIFT if event.shift else 0) | (ALT if event.meta else 0) | (CTRL if event.ctrl else 0)


def _filled(rows: Sequence[Row]) -> list[Row]:
    """`rows` down to the last one with something on it."""
    filled = [index for index, row in enumerate(rows) if row_text(row)]
    return list(rows[: max(filled, default=-1) + 1])


def _strip(row: Row, mark: int | None, columns: int) -> Strip:
    """A row for the screen; the cell at `mark`, where the cursor is, is reversed."""
    segments, column = [], 0
    for run in row:
        style = rich_style(run.style)
        if column == mark:
            style += _cursor_style(run.style.reverse)
        segments.append(Segment(run.text, style))
        column += run.columns
    return Strip(segments, columns)


@lru_cache(maxsize=2)
def _cursor_style(reversed_below: bool) -> Style:
    return Style(reverse=not reversed_below)


@lru_cache(maxsize=8192)
def rich_style(style: CellStyle) -> Style:
    """A cell's style for the screen; default colours stay those of the user's terminal."""
    link = style.link if style.link.isascii() and style.link.isprintable() else ""
    return Style(
        color=_rich_colour(style.foreground),
        bgcolor=_rich_colour(style.background),
        bold=style.bold or None,
        dim=style.dim or None,
        italic=style.italic or None,
        underline=style.underline or None,
        blink=style.blink or None,
        reverse=style.reverse or None,
        conceal=style.conceal or None,
        strike=style.strike or None,
        link=link or None,
    )


def _rich_colour(colour: Colour) -> Color | None:
    if colour is None:
        return None
    return Color.from_ansi(colour) if isinstance(colour, int) else Color.from_rgb(*colour)
