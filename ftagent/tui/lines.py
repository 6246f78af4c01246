"""Formatted text as one widget that draws only the lines in view. Knows no conversation.

A tree of widgets per paragraph costs ten times more on each redraw, and a growing list is built anew every
time; this is what lets an answer stream while the engine needs the same processor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme
from textual.geometry import Size
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

Line = list[Segment]

_OFF = ["link", "image", "autolink", "linkify", "reference", "html_block", "html_inline", "entity"]
_THEME = Theme({"markdown.code": "bold", "markdown.code_block": "none"})


@cache
def markdown_parser() -> MarkdownIt:
    """GitHub's Markdown without links, images, HTML and entities.

    Nothing in a model's text can be clicked, run or hidden; what is off stays readable as it was written.
    """
    return MarkdownIt("gfm-like", {"html": False, "linkify": False}).disable(_OFF)


class PlainMarkdown(Markdown):
    """Rich's Markdown with our parser and the terminal's own colours."""

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = markdown_parser().parse(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(_THEME):
            yield from super().__rich_console__(console, options)


def finished_length(text: str) -> int:
    """How many characters at the start of `text` are whole blocks that no further text can change.

    CommonMark closes a block for good when the next one opens on a line of its own; the last block, and a
    last line without its end, may still become something else.
    """
    complete = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in markdown_parser().parse(complete) if token.level == 0 and token.map]
    if not starts or starts[-1] == 0:
        return 0
    lines = complete.split("\n")
    return sum(len(line) + 1 for line in lines[: starts[-1]])


class Lines(Widget):
    """Lines of segments, made by `draw` for a width and kept until `redraw`. Its text can be selected."""

    virtual_size = Reactive(
        Size(0, 0), repaint=False
    )  # else Textual lays out and draws twice, for a scroll bar that never comes

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self._width = -1  # columns the lines were made for
        self._strips: dict[int, tuple[Line, Strip]] = {}  # by row

    def draw(self, width: int) -> list[Line]:
        """The lines at `width` columns; none is wider."""
        raise NotImplementedError

    def redraw(self) -> None:
        """The content has changed. Lays out only if the number of lines has, too."""
        before, width = len(self._lines), self._width
        self._width = -1
        if width >= 0:
            self.refresh(layout=len(self._at(width)) != before)

    def renderable_lines(self, renderables: Iterable[RenderableType], width: int) -> list[Line]:
        console = self.app.console
        options = console.options.update(width=max(1, width), height=None)
        return [line for item in renderables for line in console.render_lines(item, options, pad=False)]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._at(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        lines = self._at(width)
        line = lines[y] if y < len(lines) else []
        span = self.text_selection.get_span(y) if self.text_selection else None
        if span is not None:
            return self._strip(self._selected(line, *span), y, width)
        # The same list object is the same line: only what has changed is made again.
        made = self._strips.get(y)
        if made is None or made[0] is not line or made[1].cell_length != width:
            made = self._strips[y] = (line, self._strip(line, y, width))
        return made[1]

    def _strip(self, line: Line, y: int, width: int) -> Strip:
        base = self.rich_style
        return Strip(line).apply_style(base).adjust_cell_length(width, base).apply_offsets(0, y)

    def notify_style_update(self) -> None:
        self._strips.clear()
        super().notify_style_update()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = "\n".join(_text(line) for line in self._lines)
        return selection.extract(text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def _at(self, width: int) -> list[Line]:
        if width != self._width:
            self._lines, self._width = self.draw(width), width
        return self._lines

    def _selected(self, line: Line, start: int, end: int) -> Line:
        text = Text.assemble(*((part.text, part.style or "") for part in line), end="")
        style = self.screen.get_component_rich_style("screen--selection")
        text.stylize(style, start, len(text) if end == -1 else end)
        return list(text.render(self.app.console))


def _text(line: Line) -> str:
    return "".join(part.text for part in line).rstrip()


class MarkdownLines(Lines):
    """Markdown that grows at its end. Finished blocks are drawn once for each width."""

    def __init__(self) -> None:
        super().__init__()
        self.source = ""
        self._finished = 0  # characters of the source whose lines are kept
        self._kept: list[Line] = []
        self._kept_width = -1

    def extend(self, text: str) -> None:
        """Show `text`, which begins with what is shown already."""
        if text != self.source:
            self.source = text
            self.redraw()

    def draw(self, width: int) -> list[Line]:
        if width != self._kept_width:
            self._finished, self._kept, self._kept_width = 0, [], width
        self._keep(finished_length(self.source[self._finished :]), width)
        return self._kept + self._block_lines(self.source[self._finished :], width)

    def _keep(self, length: int, width: int) -> None:
        if length:
            end = self._finished + length
            self._kept = self._kept + self._block_lines(self.source[self._finished : end], width)
            self._finished = end

    def _block_lines(self, text: str, width: int) -> list[Line]:
        """Lines of whole blocks, a blank one before them if others stand above."""
        lines = self.renderable_lines([PlainMarkdown(text)], width) if text.strip() else []
        while lines and not lines[0]:
            lines.pop(0)  # Rich opens a list with a blank line, even at the top
        return [[], *lines] if lines and self._kept else lines
