"""Reads the keys of the user's terminal, all of them: Textual's own driver loses what old terminals send.

With it, Alt+Enter arrives as Enter, Alt+letters as cursor keys, Ctrl+H as Backspace, and Esc late.
"""

from __future__ import annotations

import codecs
import os
import selectors
from collections.abc import Iterable

from textual import events
from textual._parser import Read1
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

ESCAPE_S = 0.03  # how long an ESC may be the beginning of a sequence; terminals write those in one piece
_POLL_S = 0.1
_STRING_OPENERS = "[OP]^_X"  # what follows ESC at the start of longer sequences


def _read_quickly(timeout: float | None = None) -> Read1:
    return Read1(ESCAPE_S if timeout else None)


class KeyParser(XTermParser):
    """Textual's parser, with names for what it has none for."""

    read1 = staticmethod(_read_quickly)  # type: ignore[assignment]

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        if sequence == "\x08":
            return [events.Key("ctrl+h", sequence)]
        if len(sequence) == 2 and sequence[0] == "\x1b" and sequence[1] not in _STRING_OPENERS + "\x1b":
            return self._with_alt(sequence[1])
        if alt:
            return self._with_alt(sequence)
        return super()._sequence_to_key_events(sequence)

    def _with_alt(self, character: str) -> list[events.Key]:
        pressed = [key.key for key in self._sequence_to_key_events(character)]
        return [
            events.Key(f"alt+{f'shift+{key.lower()}' if key.isupper() else key}", None) for key in pressed
        ]


class PaneDriver(LinuxDriver):
    """The driver of the run screen."""

    def use_mouse(self, on: bool) -> None:
        """Have the terminal report the mouse, or keep it for selecting text."""
        if on:
            self._enable_mouse_support()
        else:
            self._disable_mouse_support()

    def run_input_thread(self) -> None:
        """Read the terminal until told to end; each key goes to the app as soon as it is known."""
        parser = KeyParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            waiting = False  # for the rest of a sequence
            while not self.exit_event.is_set():
                if selector.select(ESCAPE_S if waiting else _POLL_S):
                    data = os.read(self.fileno, 65536)
                    if not data:  # the terminal has gone
                        return
                    waiting = True
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                else:
                    waiting = False
                for event in parser.tick():
                    self.process_message(event)
