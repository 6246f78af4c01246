"""One stream of plain text (content or thinking) between markers, without the layout around the markers.

White space at the end waits until something follows it: before a marker it is layout and is left out.
Knows no events and no markers.
"""

from __future__ import annotations

from ftagent.engine.prompt.matching import SPACE


class Channel:
    """`after_marker`: a marker stands right before the text that comes, so leading blank lines are layout."""

    def __init__(self, after_marker: bool = False) -> None:
        self.fresh = True  # only white space since the last marker, or since the start
        self._trims = after_marker
        self._held = ""
        self._between = ""  # white space that divided earlier text from the marker
        self._said = False  # some text was sent

    @property
    def at_line_start(self) -> bool:
        return self.fresh or "\n" in self._held

    def begin(self, paragraph: bool = False) -> None:
        """A marker was here. `paragraph`: the text that follows is set off from earlier text."""
        if not self.fresh:
            self._between = self._held
        if paragraph and self._said:
            self._between = "\n\n"
        self.fresh = True
        self._trims = True
        self._held = ""

    def write(self, text: str) -> str:
        """The text that can be sent now."""
        self._held += text
        if not text.strip(SPACE):
            return ""  # without looking through all that is held: a model may write blank lines for long
        visible = self._held.rstrip(SPACE)
        if not visible:
            return ""
        self._held = self._held[len(visible) :]
        if self.fresh:
            visible = self._between + (_without_blank_lines(visible) if self._trims else visible)
            self._between = ""
            self.fresh = False
            self._said = True
        return visible

    def finish(self) -> str:
        """The white space that ends the reply; nothing when it only follows a marker."""
        rest, self._held = self._held, ""
        return "" if self.fresh and self._trims else rest


def _without_blank_lines(text: str) -> str:
    """Leading blank lines dropped; the indentation of the first line with text stays."""
    blank = text[: len(text) - len(text.lstrip(SPACE))]
    return text[blank.rfind("\n") + 1 :]
