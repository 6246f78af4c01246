"""What has been said, as widgets: prompts, answers with folded thinking, remarks. Knows no engine.

The newest answer is a few widgets that can grow; older ones are one widget each.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Collapsible, Static

from ftagent.answer import safe_text
from ftagent.conversation import Text, Thinking
from ftagent.sessions import StoredMessage
from ftagent.tui.lines import MarkdownLines
from ftagent.tui.past import PastAnswer
from ftagent.tui.turn import Turn

SHOWN_MESSAGES = 100
"""How many messages of a resumed session are shown; all of them stay in the context."""


class _OneLayout:
    """For widgets whose size follows from its content in one layout pass.

    Textual lays out and draws the screen a second time whenever a virtual size changes. Here nothing could
    come of it, and it would double the cost of each piece of a streamed answer.
    """

    virtual_size = Reactive(Size(0, 0), repaint=False)


class AnswerText(MarkdownLines):
    """A part of an answer, in Markdown."""


class ThinkingText(Collapsible):
    """A part of the model's reasoning, folded to one line. The body is filled in only while it is open."""

    def __init__(self, folded: bool) -> None:
        self._body = Static(classes="thinking-body", markup=False)
        self._text = ""
        super().__init__(self._body, title="Thinking…", collapsed=folded)

    def on_mount(self) -> None:
        self._title.can_focus = False  # the keyboard stays with the prompt; the mouse and ctrl+o fold

    def show(self, text: str, title: str) -> None:
        if title != self.title:
            self.title = title
        if text != self._text:
            self._text = text
            if not self.collapsed:
                self._fill()

    def on_collapsible_expanded(self) -> None:
        self._fill()

    def _fill(self) -> None:
        self._body.update(Content(safe_text(self._text)))


class UserPrompt(Static):
    """What the user sent."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(f"› {safe_text(text)}"))


class Remark(Static):
    """What the program itself has to say."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(safe_text(text)))


class Answer(_OneLayout, Vertical):
    """One answer: its thinking and text in order, and a line below that says how it goes or went."""

    def __init__(self, folded: bool = True) -> None:
        super().__init__()
        self._parts: list[AnswerText | ThinkingText] = []
        self._line = Static(classes="answer-line", markup=False)
        self._said = ""
        self._folded = folded
        self._turn: Turn | None = None  # set when it is over

    def compose(self) -> ComposeResult:
        yield self._line

    async def show(self, turn: Turn) -> None:
        """Bring the widgets up to what `turn` holds now."""
        for index, block in enumerate(turn.reply.blocks):
            if isinstance(block, Thinking):
                (await self._thinking(index)).show(block.text, turn.thinking_title())
            elif isinstance(block, Text):
                (await self._text(index)).extend(safe_text(block.text))
        self._say("" if turn.reply.blocks else turn.waiting_line())

    async def close(self, turn: Turn) -> None:
        """Show the rest of `turn`, and how it ended."""
        await self.show(turn)
        self._say(turn.closing_line())
        self._turn = turn

    def past(self, folded: bool) -> PastAnswer | None:
        """The same as one widget; None while it is still coming in."""
        if self._turn is None:
            return None
        return PastAnswer(self._turn.reply.message, self._said, folded, self._turn.thinking_title())

    async def _thinking(self, index: int) -> ThinkingText:
        if index == len(self._parts):
            await self._add(ThinkingText(self._folded))
        part = self._parts[index]
        assert isinstance(part, ThinkingText)
        return part

    async def _text(self, index: int) -> AnswerText:
        if index == len(self._parts):
            await self._add(AnswerText())
        part = self._parts[index]
        assert isinstance(part, AnswerText)
        return part

    async def _add(self, part: AnswerText | ThinkingText) -> None:
        self._parts.append(part)
        await self.mount(part, before=self._line)

    def _say(self, line: str) -> None:
        if line == self._said:
            return
        self._said = line
        self._line.update(Content(safe_text(line)))


class Transcript(_OneLayout, VerticalScroll, can_focus=False):
    """The scrolling list of all of it; it follows the end until the user scrolls back."""

    def on_mount(self) -> None:
        self.anchor()

    async def add(self, *widgets: UserPrompt | Remark | Answer | PastAnswer) -> None:
        await self.mount(*widgets)

    async def settle(self, folded: bool) -> None:
        """Make one widget of each answer that is over."""
        for answer in self.query(Answer):
            past = answer.past(folded)
            if past is not None:
                await self.mount(past, after=answer)
                await answer.remove()

    async def show_session(self, entries: tuple[StoredMessage, ...], folded: bool) -> None:
        """Replace everything by the newest messages of a session."""
        await self.remove_children()
        hidden = len(entries) - SHOWN_MESSAGES
        if hidden > 0:
            await self.add(Remark(f"{hidden} earlier messages are not shown; they are still in the context"))
        await self.add(*(_stored(entry, folded) for entry in entries[-SHOWN_MESSAGES:]))
        self.anchor()

    def fold(self, folded: bool) -> None:
        """Fold or unfold all thinking."""
        for part in self.query(ThinkingText):
            part.collapsed = folded
        for answer in self.query(PastAnswer):
            answer.fold(folded)


def _stored(entry: StoredMessage, folded: bool) -> UserPrompt | PastAnswer:
    if entry.message.role == "user":
        return UserPrompt(entry.message.text)
    return PastAnswer(entry.message, "■ stopped" if entry.stopped else "", folded)
