"""An answer that is over, as a single widget: the cost of every redraw grows with the number of widgets."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text as RichText

from ftagent.answer import safe_text
from ftagent.conversation import Message, Text, Thinking
from ftagent.tui.lines import Line, Lines, PlainMarkdown


class PastAnswer(Lines):
    """The blocks of `message`, thinking folded to `title` or not, and `line` below them."""

    def __init__(self, message: Message, line: str, folded: bool, title: str = "Thought") -> None:
        super().__init__()
        self.message = message
        self.line = line
        self.folded = folded
        self._title = title

    def fold(self, folded: bool) -> None:
        if folded != self.folded:
            self.folded = folded
            self.redraw()

    def draw(self, width: int) -> list[Line]:
        return self.renderable_lines(self._parts(), width)

    def _parts(self) -> Iterator[RenderableType]:
        for block in self.message.blocks:
            if isinstance(block, Thinking):
                yield RichText(f"{'▶' if self.folded else '▼'} {self._title}", style="dim")
                if not self.folded:
                    yield Padding(RichText(safe_text(block.text), style="italic"), (0, 0, 0, 2))
            elif isinstance(block, Text):
                yield PlainMarkdown(safe_text(block.text))
        if self.line:
            yield RichText()
            yield RichText(safe_text(self.line), style="dim")
