"""Pastes, mouse and focus as the bytes that a program in the terminal expects. Pure functions.

Source: xterm's control sequences, https://invisible-island.net/xterm/ctlseqs/ctlseqs.html.
"""

from __future__ import annotations

import re
from typing import Literal

from ftagent.tui.terminal.emulator import Modes, Mouse
from ftagent.tui.terminal.keys import ALT, CTRL, SHIFT, encode_key

FOCUS_IN, FOCUS_OUT = b"\x1b[I", b"\x1b[O"
WHEEL_UP, WHEEL_DOWN = 64, 65
_WHEEL_ROWS = 3
_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_PASTE_ENDS = re.compile("(?:\x1b\\[|\x9b)20[01]~")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OLD_LIMIT = 223  # the farthest cell that the oldest mouse report can say

MouseKind = Literal["press", "release", "move", "drag"]
_REPORTED: dict[Mouse, tuple[MouseKind, ...]] = {
    "off": (),
    "press": ("press",),
    "click": ("press", "release"),
    "drag": ("press", "release", "drag"),
    "move": ("press", "release", "drag", "move"),
}


def encode_paste(text: str, modes: Modes) -> bytes:
    """Pasted text, as one paste if the program knows pastes.

    An end-of-paste sequence inside of it is removed, else what follows would count as typed. For the same
    reason a program that does not know pastes gets no control characters. Lines end in CR, as with Enter.
    """
    text = re.sub(r"\r\n|\n", "\r", text)
    if not modes.bracketed_paste:
        return _CONTROLS.sub("", text).encode(errors="replace")
    while _PASTE_ENDS.search(text):  # again: two halves may have come together
        text = _PASTE_ENDS.sub("", text)
    return f"{_PASTE_START}{text}{_PASTE_END}".encode(errors="replace")


def encode_focus(focused: bool, modes: Modes) -> bytes:
    """What tells a program that asked for it whether it has the keys."""
    if not modes.focus:
        return b""
    return FOCUS_IN if focused else FOCUS_OUT


def encode_mouse(kind: MouseKind, button: int, column: int, row: int, modifiers: int, modes: Modes) -> bytes:
    """A mouse event at a cell (from 0), if the program asked for such events.

    `button` is 0 left, 1 middle, 2 right, 3 none, or a wheel; `modifiers` are those of `keys`.
    """
    if kind not in _REPORTED[modes.mouse]:
        return b""
    code = button
    if modes.mouse != "press":
        code |= (modifiers & (SHIFT | ALT | CTRL)) << 2
    if kind in ("move", "drag"):
        code |= 32
    x, y = column + 1, row + 1
    if modes.mouse_encoding == "sgr":
        return f"\x1b[<{code};{x};{y}{'m' if kind == 'release' else 'M'}".encode()
    if kind == "release":
        code |= 3
    if modes.mouse_encoding == "urxvt":
        return f"\x1b[{code + 32};{x};{y}M".encode()
    if modes.mouse_encoding == "utf8":
        return f"\x1b[M{chr(code + 32)}{chr(x + 32)}{chr(y + 32)}".encode()
    if x > _OLD_LIMIT or y > _OLD_LIMIT:
        return b""
    return b"\x1b[M" + bytes((code + 32, x + 32, y + 32))


def encode_wheel(up: bool, column: int, row: int, modifiers: int, modes: Modes) -> bytes | None:
    """A step of the wheel: an event, or arrows on the alternate screen; None where the host may scroll."""
    if modes.mouse != "off":
        return encode_mouse("press", WHEEL_UP if up else WHEEL_DOWN, column, row, modifiers, modes)
    if modes.alternate_screen:
        return encode_key("up" if up else "down", None, modes) * _WHEEL_ROWS
    return None
