"""Keys as the bytes that a program in the terminal expects. Pure functions.

Two keyboards: the one of xterm, which cannot tell many keys apart, and the kitty protocol for programs that
ask for it. Sources: https://sw.kovidgoyal.net/kitty/keyboard-protocol/ and xterm's ctlseqs. What a user types
is always encoded anew from the key that it was, never passed on as it came: the outer terminal may speak
another protocol than the program.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

from ftagent.tui.terminal.emulator import Modes

SHIFT, ALT, CTRL, SUPER, HYPER, META = 1, 2, 4, 8, 16, 32
_MODIFIERS = {"shift": SHIFT, "alt": ALT, "ctrl": CTRL, "super": SUPER, "hyper": HYPER, "meta": META}
# Kitty's flags.
_DISAMBIGUATE, _EVENTS, _ALTERNATES, _ALL_KEYS, _TEXT = 1, 2, 4, 8, 16

# Keys whose sequence ends in a letter (CSI 1 ; modifiers LETTER) and those with a number (CSI NUMBER ~).
_LETTERS = {"up": "A", "down": "B", "right": "C", "left": "D", "end": "F", "home": "H"}
_LETTERS |= {"f1": "P", "f2": "Q", "f3": "R", "f4": "S"}
_NUMBERS = {"insert": 2, "delete": 3, "pageup": 5, "pagedown": 6}
_NUMBERS |= {"f5": 15, "f6": 17, "f7": 18, "f8": 19, "f9": 20, "f10": 21, "f11": 23, "f12": 24}
# Keys with a code point of their own in the kitty protocol, silent in the old one.
_CODES = {"caps_lock": 57358, "scroll_lock": 57359, "num_lock": 57360, "print_screen": 57361, "pause": 57362}
_CODES |= {"menu": 57363} | {f"f{number}": 57363 + number for number in range(13, 36)}
_CONTROL_KEYS = {"escape": 27, "enter": 13, "tab": 9, "backspace": 127}
_CONTROL_NAMES = {chr(code): name for name, code in _CONTROL_KEYS.items()}
# What Ctrl makes of characters other than letters, by the table in the kitty specification.
_CTRL_CODES = {
    " ": 0,
    "@": 0,
    "2": 0,
    "[": 27,
    "3": 27,
    "\\": 28,
    "4": 28,
    "]": 29,
    "5": 29,
    "^": 30,
    "~": 30,
}
_CTRL_CODES |= {"6": 30, "_": 31, "/": 31, "7": 31, "?": 127, "8": 127}
# Where a key's name says another character than Unicode does.
_NAMED = {
    "space": " ",
    "minus": "-",
    "plus": "+",
    "slash": "/",
    "backslash": "\\",
    "underscore": "_",
    "at": "@",
}
_NAMED |= {"full_stop": ".", "equals_sign": "=", "newline": "\n"}


class Key(NamedTuple):
    """A key press. `name` is a function key's name, or the character of the key without Ctrl, Alt, Super.

    `text` is what it types by itself; empty for none.
    """

    name: str
    modifiers: int = 0
    text: str = ""


@lru_cache(maxsize=1024)
def parse_key(key: str, character: str | None) -> Key | None:
    """The key press behind Textual's name for it (`ctrl+shift+a`, `exclamation_mark`); None if unknown.

    `character` is what Textual says it types.
    """
    if key == "+":
        return Key("+", 0, "+")
    *prefixes, name = key.split("+")
    modifiers = 0
    for prefix in prefixes:
        modifiers |= _MODIFIERS.get(prefix, 0)
    if name in _LETTERS or name in _NUMBERS or name in _CODES or name in _CONTROL_KEYS:
        return Key(name, modifiers)
    typed = character if character and character.isprintable() and not modifiers & ~SHIFT else ""
    if name in _CONTROL_NAMES:
        return Key(_CONTROL_NAMES[name], modifiers)
    base = _NAMED.get(name) or (name if len(name) == 1 else _by_unicode_name(name))
    if not base:
        return Key(typed, modifiers, typed) if typed else None
    if (base, modifiers) == ("@", CTRL):  # what an old terminal sends for Ctrl+Space
        base = " "
    if base.isupper() and modifiers & ~SHIFT:  # Alt+Shift+B by a terminal that says only "B"
        base, modifiers = base.lower(), modifiers | SHIFT
    return Key(base, modifiers, typed)


def encode_key(key: str, character: str | None, modes: Modes) -> bytes:
    """What the program is to read for a key, named as Textual names it; empty if there is nothing to send."""
    press = parse_key(key, character)
    if press is None:
        return b""
    if modes.kitty:
        return _kitty(press, modes).encode()
    if modes.modify_other_keys and (extended := _modify_other_keys(press, modes.modify_other_keys)):
        return extended.encode()
    return _legacy(press, modes).encode()


def _legacy(press: Key, modes: Modes) -> str:
    name, modifiers, text = press
    if modifiers & (SUPER | HYPER):
        return ""  # no sequence of the old keyboard says these
    modifiers = modifiers & (SHIFT | ALT | CTRL) | (ALT if modifiers & META else 0)
    if name in _LETTERS or name in _NUMBERS:
        return _function_key(name, modifiers, modes.application_cursor)
    if name in _CONTROL_KEYS:
        return _legacy_control_key(name, modifiers, modes)
    if name in _CODES:
        return ""
    if modifiers & CTRL:
        sent = _control(name)
    elif text:
        sent = text
    else:
        sent = name.upper() if modifiers & SHIFT else name
    return "\x1b" + sent if modifiers & ALT else sent


def _legacy_control_key(name: str, modifiers: int, modes: Modes) -> str:
    """Escape, Enter, Tab and Backspace: Alt puts an ESC before, the others only change what is listed."""
    shift, ctrl = modifiers & SHIFT, modifiers & CTRL
    if name == "tab":
        sent = "\x1b[Z" if shift else "\t"
    elif name == "enter":
        # A new line rather than an end: what the shifted key means to those who press it.
        sent = "\n" if shift or ctrl else "\r\n" if modes.newline else "\r"
    elif name == "backspace":
        sent = "\x08" if bool(ctrl) != modes.backspace_is_bs else "\x7f"
    else:
        sent = "\x1b"
    return "\x1b" + sent if modifiers & ALT else sent


def _control(name: str) -> str:
    if name in _CTRL_CODES:
        return chr(_CTRL_CODES[name])
    return chr(ord(name.lower()) & 0x1F) if name.isascii() and name.isalpha() else name


def _function_key(name: str, modifiers: int, application: bool) -> str:
    if name in _NUMBERS:
        return f"\x1b[{_NUMBERS[name]};{modifiers + 1}~" if modifiers else f"\x1b[{_NUMBERS[name]}~"
    letter = _LETTERS[name]
    if modifiers:
        return f"\x1b[1;{modifiers + 1}{letter}"
    return f"\x1bO{letter}" if application or letter in "PQRS" else f"\x1b[{letter}"


def _modify_other_keys(press: Key, level: int) -> str:
    """xterm's CSI 27 ; modifiers ; code ~; empty where the key keeps its old sequence.

    Level 1 is for keys that the old keyboard cannot say, level 2 for all but what Shift alone types.
    """
    name, modifiers, _ = press
    modifiers &= SHIFT | ALT | CTRL | META
    special = name in _CONTROL_KEYS
    if not modifiers or not (special or len(name) == 1) or press == Key("tab", SHIFT):
        return ""
    if not special and modifiers == SHIFT:
        return ""
    if level == 1 and not special and (not modifiers & CTRL or _control(name) != name):
        return ""
    code = _CONTROL_KEYS[name] if special else ord(name.upper() if modifiers & SHIFT else name)
    return f"\x1b[27;{modifiers + 1};{code}~"


def _kitty(press: Key, modes: Modes) -> str:
    """The sequence by the kitty protocol, for the flags that the program has set."""
    name, modifiers, text = press
    flags = modes.kitty
    if name in _LETTERS or name in _NUMBERS:
        if not flags & (_DISAMBIGUATE | _ALL_KEYS):
            return _function_key(name, modifiers, modes.application_cursor)
        if name == "f3":  # CSI R would be a cursor position report
            return f"\x1b[13;{modifiers + 1}~" if modifiers else "\x1b[13~"
        return (
            f"\x1b[{_LETTERS[name]}"
            if name in _LETTERS and not modifiers
            else _function_key(name, modifiers, False)
        )
    if name in _CODES:
        return _kitty_sequence(_CODES[name], modifiers, "", flags)
    everything = flags & _ALL_KEYS
    if name in _CONTROL_KEYS:
        if name == "escape" or modifiers or everything:
            if flags & _DISAMBIGUATE or everything:
                return _kitty_sequence(_CONTROL_KEYS[name], modifiers, "", flags)
        return _legacy_control_key(name, modifiers, modes)
    if not everything and (text or not modifiers & ~SHIFT):
        return text or (name.upper() if modifiers & SHIFT else name)
    if not everything and not flags & _DISAMBIGUATE:
        return _legacy(press, modes)
    base = name.lower() if len(name.lower()) == 1 else name
    if base != name and not modifiers & SHIFT:
        modifiers |= SHIFT
    return _kitty_sequence(ord(base[0]), modifiers, text, flags)


def _kitty_sequence(code: int, modifiers: int, text: str, flags: int) -> str:
    shifted = ""
    if (
        flags & _ALTERNATES
        and modifiers & SHIFT
        and len(upper := chr(code).upper()) == 1
        and upper != chr(code)
    ):
        shifted = f":{ord(upper)}"
    fields = [f"{code}{shifted}"]
    typed = ":".join(str(ord(character)) for character in text) if flags & _TEXT else ""
    if modifiers or typed:
        fields.append(str(modifiers + 1) if modifiers else "")
    if typed:
        fields.append(typed)
    return f"\x1b[{';'.join(fields)}u"


@lru_cache(maxsize=512)
def _by_unicode_name(name: str) -> str:
    for spelled in (name.replace("_", " "), name.replace("_", "-")):
        try:
            return unicodedata.lookup(spelled)
        except KeyError:
            continue
    return ""
