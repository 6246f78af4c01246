"""An answer that is over, as a single widget; and how Markdown of a model is read everywhere on the screen.

Text of the model passes `safe_text` and a parser without links, images, HTML and entities: nothing in it can
be clicked, run or hidden, and what is not Markdown stays readable as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text as RichText
from rich.theme import Theme
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from ftagent.answer import safe_text
from ftagent.conversation import Message, Text, Thinking

_OFF = ["link", "image", "autolink", "linkify", "reference", "html_block", "html_inline", "entity"]
_THEME = Theme({"markdown.code": "bold", "markdown.code_block": "none"})


@cache
def markdown_parser() -> MarkdownIt:
    """GitHub's Markdown without everything that is not plain text formatting."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False}).disable(_OFF)


class _Markdown(Markdown):
    """Rich's Markdown with our parser and the terminal's own colours."""

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = markdown_parser().parse(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(_THEME):
            yield from super().__rich_console__(console, options)


class PastAnswer(Widget):
    """The blocks of `message`, thinking folded to `title` or not, and `line` below them."""

    def __init__(self, message: Message, line: str, folded: bool, title: str = "Thought") -> None:
        super().__init__()
        self.message = message
        self.line = line
        self.folded = folded
        self._title = title
        self._drawn: tuple[int, Content] | None = None  # for a width, in columns

    def fold(self, folded: bool) -> None:
        if folded != self.folded and any(isinstance(block, Thinking) for block in self.message.blocks):
            self.folded = folded
            self._drawn = None
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._at(width).plain.count("\n") + 1

    def render(self) -> Content:
        return self._at(self.content_size.width)

    def _at(self, width: int) -> Content:
        if self._drawn is None or self._drawn[0] != width:
            self._drawn = (width, self._draw(width))
        return self._drawn[1]

    def _draw(self, width: int) -> Content:
        """Lines of at most `width` columns, so that nothing is wrapped again and text can be selected."""
        console = self.app.console
        options = console.options.update(width=max(1, width), height=None)
        lines = console.render_lines(Group(*self._parts()), options, pad=False)
        text = RichText("\n").join(
            RichText.assemble(*((part.text, part.style or "") for part in line)) for line in lines
        )
        return Content.from_rich_text(text, console)

    def _parts(self) -> Iterator[RenderableType]:
        for block in self.message.blocks:
            if isinstance(block, Thinking):
                yield RichText(f"{'▶' if self.folded else '▼'} {self._title}", style="dim")
                if not self.folded:
                    yield Padding(RichText(safe_text(block.text), style="italic"), (0, 0, 0, 2))
            elif isinstance(block, Text):
                yield _Markdown(safe_text(block.text))
        if self.line:
            yield RichText()
            yield RichText(safe_text(self.line), style="dim")
