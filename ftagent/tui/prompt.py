"""Where the user types: several lines, and the prompts typed before. Knows no engine and no session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.events import Key
from textual.geometry import Size
from textual.message import Message
from textual.widgets import TextArea

from ftagent.tui.actions import ACTIONS
from ftagent.tui.prompt_history import PromptHistory

_KEYS = {key: action.id for action in ACTIONS if action.scope == "prompt" for key in action.keys}


class PromptInput(TextArea):
    """A text area in which Enter sends. Its `do_` methods return whether they used the key."""

    @dataclass
    class Sent(Message):
        """The user sent `text`; the input is empty now."""

        text: str

    class Left(Message):
        """The user asked to quit on an empty input."""

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            show_line_numbers=False,
            highlight_cursor_line=False,
            compact=True,
            placeholder="Ask something, or /help",
        )
        self.cursor_blink = False  # a redraw twice a second, for nothing
        self._history = PromptHistory()

    def remember(self, prompts: Sequence[str]) -> None:
        """Start the history over with `prompts`, oldest first."""
        self._history = PromptHistory(prompts)

    def put(self, text: str) -> None:
        """Replace what is typed, with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, self.wrapped_document.height)

    def on_key(self, event: Key) -> None:
        name = _KEYS.get(event.key)
        if name is not None and getattr(self, f"do_{name}")():
            event.stop()
            event.prevent_default()

    def do_send(self) -> bool:
        text = self.text
        if text.strip():
            self.clear()
            self._history.add(text)
            self.post_message(self.Sent(text))
        return True

    def do_newline(self) -> bool:
        self.insert("\n")
        self.scroll_cursor_visible()
        return True

    def do_leave_if_empty(self) -> bool:
        if not self.text:
            self.post_message(self.Left())
        return not self.text  # else the key deletes to the right

    def do_older_prompt(self) -> bool:
        if self._cursor_row() > 0:
            return False
        older = self._history.older(self.text)
        if older is not None:
            self.put(older)
        return True

    def do_newer_prompt(self) -> bool:
        if self._cursor_row() < self.wrapped_document.height - 1:
            return False
        newer = self._history.newer()
        if newer is not None:
            self.put(newer)
        return True

    def _cursor_row(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y
