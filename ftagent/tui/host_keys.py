"""What the run screen keeps for itself of the keyboard: a prefix key and a few function keys, as one table.

A row is the method `action_<id>` of `run.RunApp`. Pure: knows names of keys and a clock, no widget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ftagent.errors import ConfigError
from ftagent.tui.terminal.keys import Key, parse_key

PREFIX_S = 2.0  # how long the key after the prefix is waited for
# Textual's names of what people write as a sign.
_SIGNS = {"]": "right_square_bracket", "[": "left_square_bracket", "^": "circumflex_accent"}


@dataclass(frozen=True, slots=True)
class HostAction:
    """`letter` is the key after the prefix, `key` one that works without it. `label` is for the footer."""

    id: str
    help: str
    letter: str
    key: str = ""
    label: str = ""


ACTIONS = (
    HostAction("help", "show or hide this help", "h", "f1", "help"),
    HostAction("panels", "show or hide the engine's figures", "p", "f12", "figures"),
    HostAction("mouse", "give the mouse to the terminal, to select text, or back to the agent", "m"),
    HostAction("page_back", "scroll back in what the agent printed", "b"),
    HostAction("page_on", "scroll on", "f"),
    HostAction("suspend", "suspend to the shell", "z"),
    HostAction("quit", "end the agent", "q", label="quit"),
)

Verdict = HostAction | Literal["pass", "wait", "send", "unknown"]


class HostKeys:
    """Tells the host's keys from the agent's. `prefix` is written like `ctrl+]`, `ctrl+space` or `f10`.

    Raises ConfigError when it is no key.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.actions = ACTIONS
        self._prefix = _written_key(prefix)
        self._armed_until: float | None = None

    def press(self, key: str, character: str | None, now: float) -> Verdict:
        """What a key is for, named as Textual names it, at `now` in seconds.

        "pass": the agent's. "wait": the prefix, so the next key is ours. "send": the prefix twice, which the
        agent gets once. "unknown": nothing of ours.
        """
        pressed = parse_key(key, character)
        armed = self._armed_until is not None and now < self._armed_until
        self._armed_until = None
        if pressed is None:
            return "pass"
        if pressed[:2] == self._prefix[:2]:
            if armed:
                return "send"
            self._armed_until = now + PREFIX_S
            return "wait"
        if armed:
            return next((action for action in ACTIONS if pressed[:2] == (action.letter, 0)), "unknown")
        return next((action for action in ACTIONS if pressed[:2] == (action.key, 0)), "pass")

    @property
    def shown_prefix(self) -> str:
        """The prefix as people write it: ^] or F10."""
        name, modifiers, _ = self._prefix
        shown = {" ": "Space"}.get(name, name.upper())
        return f"^{shown}" if modifiers else shown

    def help_lines(self) -> list[tuple[str, str]]:
        """Rows of the help: keys, what they do."""
        rows = [(" or ".join(self._keys(action)), action.help) for action in ACTIONS]
        return [*rows, (f"{self.shown_prefix} {self.shown_prefix}", "send that key to the agent")]

    def footer_labels(self) -> tuple[str, ...]:
        """What the footer shows, the most useful first."""
        return tuple(f"{self._keys(action)[-1]} {action.label}" for action in ACTIONS if action.label)

    def _keys(self, action: HostAction) -> list[str]:
        keys = [f"{self.shown_prefix} {action.letter}"]
        return [*keys, action.key.upper()] if action.key else keys


def _written_key(text: str) -> Key:
    """The key that `text` is. An agent can spare a function key, or one with Ctrl."""
    *prefixes, name = text.strip().lower().split("+")
    key = parse_key("+".join((*prefixes, _SIGNS.get(name, name))), None)
    spare = key is not None and (prefixes == ["ctrl"] or (not prefixes and re.fullmatch(r"f\d+", name)))
    if key is None or not spare or any(action.key == name for action in ACTIONS):
        raise ConfigError(
            f"prefix_key {text!r} is no key that an agent can spare; write it like ctrl+], ctrl+space or f10"
        )
    return key
