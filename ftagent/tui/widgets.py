"""The fixed parts of the chat screen: header, side column, status row, footer. Know no engine."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from ftagent.answer import safe_text
from ftagent.engine.api import ModelInfo
from ftagent.tui.actions import footer_labels
from ftagent.tui.figures import Figures, Row, fit

LABEL = 12  # columns of a figure's name
EMBEDDED_NOTE = "small embedded model: it knows ftagent's basics, not much else"


def header_text(model: ModelInfo) -> str:
    """Which model speaks, and what to expect of it."""
    name = f"ftagent chat  {safe_text(model.id)} on {safe_text(model.device)}"
    return f"{name}  {EMBEDDED_NOTE}" if model.embedded else name


def line_of(row: Row, width: int) -> str:
    """A row in `width` columns; a value that is too long takes room from its name."""
    if row.value is None:
        return row.label[:width]
    if not row.value:
        return f"{row.label} ".ljust(width, "─")[:width]
    label = row.label.ljust(LABEL)[: max(0, width - len(row.value))]
    return f"{label}{row.value:>{max(1, width - len(label))}}"[:width]


class FiguresColumn(Static):
    """The live figures, a row each. A last row is kept for the age of stale ones."""

    _figures: Figures | None = None
    _width = 0

    def show(self, figures: Figures) -> None:
        width = self.content_size.width
        if (figures, width) == (self._figures, self._width) or not width:
            return
        self._figures, self._width = figures, width
        lines = [line_of(row, width) for row in figures.rows]
        age = f"stale {figures.stale_s} s" if figures.stale_s is not None else ""
        text = "\n".join([*lines, age])
        self.update(Content.styled(text, "dim") if age else Content(text), layout=False)


class StatusRow(Static):
    """The same in one row, for narrow terminals."""

    _shown = ""
    _notice = ""

    def notice(self, text: str) -> None:
        """Show `text` in place of the figures; empty brings them back at the next tick."""
        self._notice = safe_text(text)
        if self._notice:
            self._shown = self._notice
            self.update(Content(self._notice), layout=False)

    def show(self, figures: Figures) -> None:
        if self._notice:
            return
        stale = figures.stale_s is not None
        parts = (f"stale {figures.stale_s} s", *figures.brief) if stale else figures.brief
        line = fit(parts, self.content_size.width)
        if line != self._shown:
            self._shown = line
            self.update(Content.styled(line, "dim") if stale else Content(line), layout=False)


class Footer(Static):
    """The keys, or for a while what the program has to say."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._notice = ""

    def notice(self, text: str) -> None:
        """Show `text` in place of the keys; empty brings them back."""
        if text != self._notice:
            self._notice = text
            self._draw(self.content_size.width)

    def on_resize(self) -> None:
        self._draw(self.content_size.width)

    def _draw(self, width: int) -> None:
        line = safe_text(self._notice) or fit(tuple(footer_labels()), width)
        self.update(Content(line), layout=False)
