"""From chosen tokens to events: text, parsing, stop strings, logprobs, finish.

One `ReplyStream` follows one reply. Knows no model, no thread and no client. Stop strings are searched in
content only; text that may turn out to begin one is held back until that is decided, so the events do not
depend on where the tokens cut the text.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from ftagent.engine.sampling import Choice
from ftagent.events import (
    Event,
    FinishReason,
    Logprobs,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallStart,
)


class Detokenizes(Protocol):
    """What is needed of `prompt.tokenizer.Detokenizer`."""

    def push(self, token_id: int, /) -> str: ...

    def flush(self) -> str: ...


class Parses(Protocol):
    """What is needed of `prompt.parsers.ReplyParser`."""

    @property
    def content_open(self) -> bool: ...

    @property
    def calls(self) -> int: ...

    def push(self, text: str, marker: bool = False) -> list[Event]: ...

    def finish(self, cut: bool = True) -> list[Event]: ...


class RawText:
    """The parser of raw prompts: all text is content."""

    content_open = True
    calls = 0

    def push(self, text: str, marker: bool = False) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self, cut: bool = True) -> list[Event]:
        return []


class StopSearch:
    """Finds the first stop string to be completed in a text that comes in pieces.

    Of several completed by the same character the longest counts. `held` is the end of the text so far that
    may be the beginning of a stop string.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self.held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show; once `found` is set, all before the stop string and no more."""
        text = self.held + text
        self.held = ""
        matches = [
            (place + len(stop), place, stop) for stop in self._stops if (place := text.find(stop)) >= 0
        ]
        if matches:
            _, place, self.found = min(matches)
            return text[:place]
        # A whole stop string would have been found above, so only proper beginnings are left to look for.
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                self.held = text[-length:]
                return text[:-length]
        return text

    def release(self) -> str:
        """What was held back, because the content ends or is interrupted here."""
        held, self.held = self.held, ""
        return held


class ReplyStream:
    """Turns the tokens of one reply into events.

    `added` holds the ids of added tokens: those reach the parser as markers. `thinking_open`
    says that the prompt ended inside a thinking block. `text_of` spells a token for logprobs.
    """

    def __init__(
        self,
        detokenizer: Detokenizes,
        parser: Parses,
        *,
        added: Container[int] = frozenset(),
        stops: tuple[str, ...] = (),
        thinking_open: bool = False,
        text_of: Callable[[int], str] = str,
    ) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._added = added
        self._search = StopSearch(stops)
        self._thinking = thinking_open
        self._logprobs: list[TokenLogprob] = []
        self._text_of = text_of
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._search.found

    def reason(self, default: FinishReason) -> FinishReason:
        """Why the reply ended, where `default` is "stop" or "length" as the tokens say."""
        if self.stopped is not None:
            return "stop_sequence"
        return "tool_calls" if default == "stop" and self._parser.calls else default

    def push(self, choice: Choice) -> list[Event]:
        """Events that this token completes. Check `stopped` afterwards."""
        self.reasoning_tokens += self._thinking  # the marker that closes the thinking still counts
        if choice.logprob is not None:
            top = tuple((token, self._text_of(token), logprob) for token, logprob in choice.top)
            text = self._text_of(choice.token)
            self._logprobs.append(TokenLogprob(choice.token, text, choice.logprob, top))
        parsed: list[Event] = []
        marker = choice.token in self._added
        if marker and (broken := self._detokenizer.flush()):  # bytes that never became a whole character
            parsed += self._parser.push(broken)
        if piece := self._detokenizer.push(choice.token):
            parsed += self._parser.push(piece, marker=marker)
        self._follow_thinking(parsed)
        return self._with_logprobs(self._shown(parsed))

    def finish(self, cut: bool) -> list[Event]:
        """What was still held back. `cut`: the model did not end its turn itself.

        Nothing when a stop string ended the reply.
        """
        if self.stopped is not None:
            return []
        rest = self._detokenizer.flush()
        parsed = self._parser.push(rest) if rest else []
        shown = self._shown(parsed + self._parser.finish(cut))
        if self.stopped is None and (held := self._search.release()):
            shown.append(TextDelta(held))
        return self._with_logprobs(shown, last=True)

    def _follow_thinking(self, parsed: list[Event]) -> None:
        if self._parser.content_open:
            self._thinking = False
        for event in parsed:
            if isinstance(event, ThinkingDelta):
                self._thinking = not self._parser.content_open
            elif isinstance(event, TextDelta | ToolCallStart):
                self._thinking = False

    def _shown(self, parsed: list[Event]) -> list[Event]:
        shown: list[Event] = []
        for event in parsed:
            if isinstance(event, TextDelta):
                text = self._search.push(event.text)
                if text:
                    shown.append(TextDelta(text))
                if self.stopped is not None:
                    break
            else:
                held = self._search.release()  # a stop string does not reach across a call
                if held:
                    shown.append(TextDelta(held))
                shown.append(event)
        return shown

    def _with_logprobs(self, shown: list[Event], last: bool = False) -> list[Event]:
        if not self._logprobs or not (shown or last):
            return shown
        tokens, self._logprobs = tuple(self._logprobs), []
        return [Logprobs(tokens), *shown]
