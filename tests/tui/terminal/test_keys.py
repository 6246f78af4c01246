"""Keys, pastes, mouse and focus: the table of keys in both protocols, and a second implementation."""

from __future__ import annotations

import time

import pytest
from bittty import BITTTY, Board
from bittty.keyboard.keys import KeyEvent, KeyModifiers
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key

from ftagent.tui.terminal.driver import KeyParser
from ftagent.tui.terminal.emulator import Modes, Mouse, MouseEncoding
from ftagent.tui.terminal.input import MouseKind, encode_focus, encode_mouse, encode_paste, encode_wheel
from ftagent.tui.terminal.keys import encode_key

LEGACY = Modes()
KITTY = Modes(kitty=1)
OTHER_KEYS = Modes(modify_other_keys=2)

# Key as Textual names it, what it types, then the bytes in the old and in the kitty protocol.
TABLE = [
    ("shift+tab", None, b"\x1b[Z", b"\x1b[9;2u"),
    ("tab", "\t", b"\t", b"\t"),
    ("enter", "\r", b"\r", b"\r"),
    ("shift+enter", None, b"\n", b"\x1b[13;2u"),
    ("ctrl+enter", None, b"\n", b"\x1b[13;5u"),
    ("alt+enter", None, b"\x1b\r", b"\x1b[13;3u"),
    ("escape", "\x1b", b"\x1b", b"\x1b[27u"),
    ("alt+escape", None, b"\x1b\x1b", b"\x1b[27;3u"),
    ("backspace", "\x7f", b"\x7f", b"\x7f"),
    ("alt+backspace", None, b"\x1b\x7f", b"\x1b[127;3u"),
    ("ctrl+backspace", None, b"\x08", b"\x1b[127;5u"),
    ("a", "a", b"a", b"a"),
    ("A", "A", b"A", b"A"),
    ("exclamation_mark", "!", b"!", b"!"),
    ("plus", "+", b"+", b"+"),
    ("space", " ", b" ", b" "),
    ("shift+space", " ", b" ", b" "),
    ("é", "é", "é".encode(), "é".encode()),
    ("integral", "∫", "∫".encode(), "∫".encode()),
    ("alt+b", None, b"\x1bb", b"\x1b[98;3u"),
    ("alt+shift+b", None, b"\x1bB", b"\x1b[98;4u"),
    ("alt+shift+B", None, b"\x1bB", b"\x1b[98;4u"),
    ("alt+full_stop", None, b"\x1b.", b"\x1b[46;3u"),
    ("ctrl+a", "\x01", b"\x01", b"\x1b[97;5u"),
    ("ctrl+c", "\x03", b"\x03", b"\x1b[99;5u"),
    ("ctrl+shift+a", None, b"\x01", b"\x1b[97;6u"),
    ("alt+ctrl+a", None, b"\x1b\x01", b"\x1b[97;7u"),
    ("ctrl+j", "\n", b"\n", b"\x1b[106;5u"),
    ("ctrl+h", "\x08", b"\x08", b"\x1b[104;5u"),
    ("ctrl+backslash", "\x1c", b"\x1c", b"\x1b[92;5u"),
    ("ctrl+right_square_bracket", "\x1d", b"\x1d", b"\x1b[93;5u"),
    ("ctrl+underscore", "\x1f", b"\x1f", b"\x1b[95;5u"),
    ("ctrl+slash", None, b"\x1f", b"\x1b[47;5u"),
    ("ctrl+space", None, b"\x00", b"\x1b[32;5u"),
    ("ctrl+@", "\x00", b"\x00", b"\x1b[32;5u"),
    ("ctrl+1", None, b"1", b"\x1b[49;5u"),
    ("super+c", None, b"", b"\x1b[99;9u"),
    ("super+up", None, b"", b"\x1b[1;9A"),
    ("up", None, b"\x1b[A", b"\x1b[A"),
    ("shift+up", None, b"\x1b[1;2A", b"\x1b[1;2A"),
    ("ctrl+left", None, b"\x1b[1;5D", b"\x1b[1;5D"),
    ("ctrl+shift+home", None, b"\x1b[1;6H", b"\x1b[1;6H"),
    ("pageup", None, b"\x1b[5~", b"\x1b[5~"),
    ("ctrl+delete", None, b"\x1b[3;5~", b"\x1b[3;5~"),
    ("f1", None, b"\x1bOP", b"\x1b[P"),
    ("f3", None, b"\x1bOR", b"\x1b[13~"),
    ("shift+f3", None, b"\x1b[1;2R", b"\x1b[13;2~"),
    ("f5", None, b"\x1b[15~", b"\x1b[15~"),
    ("ctrl+f12", None, b"\x1b[24;5~", b"\x1b[24;5~"),
    ("caps_lock", None, b"", b"\x1b[57358u"),
    ("left_shift", None, b"", b""),
]


@pytest.mark.parametrize(("key", "character", "legacy", "kitty"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_keys(key: str, character: str | None, legacy: bytes, kitty: bytes) -> None:
    assert encode_key(key, character, LEGACY) == legacy
    assert encode_key(key, character, KITTY) == kitty


@pytest.mark.parametrize(
    ("key", "character", "modes", "sent"),
    [
        ("up", None, Modes(application_cursor=True), b"\x1bOA"),
        ("shift+up", None, Modes(application_cursor=True), b"\x1b[1;2A"),
        ("up", None, Modes(application_cursor=True, kitty=1), b"\x1b[A"),
        ("backspace", "\x7f", Modes(backspace_is_bs=True), b"\x08"),
        ("ctrl+backspace", None, Modes(backspace_is_bs=True), b"\x7f"),
        ("enter", "\r", Modes(newline=True), b"\r\n"),
        ("shift+enter", None, OTHER_KEYS, b"\x1b[27;2;13~"),
        ("ctrl+a", "\x01", OTHER_KEYS, b"\x1b[27;5;97~"),
        ("ctrl+shift+a", None, OTHER_KEYS, b"\x1b[27;6;65~"),
        ("shift+tab", None, OTHER_KEYS, b"\x1b[Z"),
        ("A", "A", OTHER_KEYS, b"A"),
        ("ctrl+a", "\x01", Modes(modify_other_keys=1), b"\x01"),
        ("ctrl+1", None, Modes(modify_other_keys=1), b"\x1b[27;5;49~"),
        ("shift+enter", None, Modes(modify_other_keys=2, kitty=1), b"\x1b[13;2u"),
        ("a", "a", Modes(kitty=9), b"\x1b[97u"),
        ("A", "A", Modes(kitty=9), b"\x1b[97;2u"),
        ("A", "A", Modes(kitty=25), b"\x1b[97;2;65u"),
        ("a", "a", Modes(kitty=25), b"\x1b[97;;97u"),
        ("A", "A", Modes(kitty=13), b"\x1b[97:65;2u"),
        ("enter", "\r", Modes(kitty=9), b"\x1b[13u"),
    ],
)
def test_modes_change_keys(key: str, character: str | None, modes: Modes, sent: bytes) -> None:
    assert encode_key(key, character, modes) == sent


_KEYS = [
    "up",
    "down",
    "left",
    "right",
    "home",
    "end",
    "pageup",
    "pagedown",
    "insert",
    "delete",
    "f1",
    "f2",
    "f4",
]
_KEYS += ["f5", "f10", "f12", "a", "q", "z", "[", "/"]
_THEIRS = {"ctrl": KeyModifiers.CTRL, "alt": KeyModifiers.ALT, "shift": KeyModifiers.SHIFT}


@given(
    name=st.sampled_from(_KEYS),
    modifiers=st.sets(st.sampled_from(["ctrl", "alt", "shift"])),
    application=st.booleans(),
    kitty=st.booleans(),
)
def test_another_implementation_says_the_same(
    name: str, modifiers: set[str], application: bool, kitty: bool
) -> None:
    plain = len(name) == 1
    if (plain and not modifiers & {"ctrl", "alt"}) or (not kitty and plain and "shift" in modifiers):
        return  # what Shift types depends on the layout
    board = Board(model=BITTTY)
    said = bytearray()

    class Line:
        closed = False

        def write(self, data: str) -> int:
            said.extend(data.encode())
            return len(data)

        write_bytes = said.extend

        def flush(self) -> None: ...

        def configure_line(self, line: object) -> None: ...

    board.host.attach(Line())
    board.parser.feed(("\x1b[?1h" if application else "") + ("\x1b[>1u" if kitty else ""))
    theirs = KeyModifiers(0)
    for modifier in modifiers:
        theirs |= _THEIRS[modifier]
    board.input_key_event(KeyEvent(name, theirs))
    ours = encode_key(
        "+".join((*sorted(modifiers), name)), None, Modes(application_cursor=application, kitty=int(kitty))
    )
    assert ours == bytes(said)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("\x1b\r", ["alt+enter"]),
        ("\x1bb", ["alt+b"]),
        ("\x1bB", ["alt+shift+b"]),
        ("\x1b\x7f", ["alt+backspace"]),
        ("\x1b\x01", ["alt+ctrl+a"]),
        ("\x1b/", ["alt+slash"]),
        ("\x1b]", ["alt+right_square_bracket"]),
        ("\x1b", ["escape"]),
        ("\x1b\x1b", ["escape", "escape"]),
        ("\x08", ["ctrl+h"]),
        ("\x7f", ["backspace"]),
        ("\x1b[Z", ["shift+tab"]),
        ("\x1b[1;5C", ["ctrl+right"]),
        ("\x1b[13;2u", ["shift+enter"]),
        ("\x1b[98;3u", ["alt+b"]),
        ("\x1b[A", ["up"]),
        ("ab", ["a", "b"]),
    ],
)
def test_the_keys_of_old_and_new_terminals_are_told_apart(typed: str, keys: list[str]) -> None:
    parser = KeyParser()
    events = list(parser.feed(typed))
    end = time.monotonic() + 5
    while len(events) < len(keys) and time.monotonic() < end:
        events += parser.tick()
    assert [event.key for event in events if isinstance(event, Key)] == keys


@pytest.mark.parametrize(
    ("text", "modes", "sent"),
    [
        ("one\ntwo\r\nthree", Modes(bracketed_paste=True), b"\x1b[200~one\rtwo\rthree\x1b[201~"),
        ("a\x1b[201~b", Modes(bracketed_paste=True), b"\x1b[200~ab\x1b[201~"),
        ("a\x1b[20\x1b[201~1~b", Modes(bracketed_paste=True), b"\x1b[200~ab\x1b[201~"),
        ("a\x9b201~b", Modes(bracketed_paste=True), b"\x1b[200~ab\x1b[201~"),
        ("\x1b[31mred\ttab", Modes(bracketed_paste=True), b"\x1b[200~\x1b[31mred\ttab\x1b[201~"),
        ("a\x1b[201~\x03b\tc\nd", Modes(), b"a[201~b\tc\rd"),
        ("half \ud800", Modes(), b"half ?"),
    ],
)
def test_pastes_stay_pastes(text: str, modes: Modes, sent: bytes) -> None:
    assert encode_paste(text, modes) == sent


@given(st.text(st.sampled_from("\x1b\x9b[201~ab\r\n")))
def test_no_paste_ends_early(text: str) -> None:
    sent = encode_paste(text, Modes(bracketed_paste=True)).decode()
    assert sent.startswith("\x1b[200~")
    assert sent.endswith("\x1b[201~")
    assert "\x1b[201~" not in sent[6:-6]
    assert "\x9b201~" not in sent[6:-6]


def test_focus_is_told_to_those_who_ask() -> None:
    assert encode_focus(True, Modes()) == b""
    assert encode_focus(True, Modes(focus=True)) == b"\x1b[I"
    assert encode_focus(False, Modes(focus=True)) == b"\x1b[O"


_PROTOCOLS: dict[Mouse, int] = {"press": 9, "click": 1000, "drag": 1002, "move": 1003}
_ENCODINGS: dict[MouseEncoding, str] = {
    "legacy": "",
    "utf8": "\x1b[?1005h",
    "sgr": "\x1b[?1006h",
    "urxvt": "\x1b[?1015h",
}


@given(
    mouse=st.sampled_from(list(_PROTOCOLS)),
    encoding=st.sampled_from(list(_ENCODINGS)),
    kind=st.sampled_from(["press", "release", "move", "drag"]),
    button=st.integers(0, 2),
    column=st.integers(0, 200),
    row=st.integers(0, 100),
    modifiers=st.sets(st.sampled_from(["shift", "meta", "ctrl"])),
)
def test_mouse_reports_are_those_of_another_implementation(
    mouse: Mouse,
    encoding: MouseEncoding,
    kind: MouseKind,
    button: int,
    column: int,
    row: int,
    modifiers: set[str],
) -> None:
    board = Board(model=BITTTY, width=220, height=120)
    said = bytearray()

    class Line:
        closed = False

        def write(self, data: str) -> int:
            said.extend(data.encode())
            return len(data)

        def write_bytes(self, data: bytes) -> int:
            said.extend(data)
            return len(data)

        def flush(self) -> None: ...

        def configure_line(self, line: object) -> None: ...

    board.parser.feed(f"\x1b[?{_PROTOCOLS[mouse]}h{_ENCODINGS[encoding]}")
    if kind in ("release", "drag"):
        board.input_mouse(column + 1, row + 1, button, "press", modifiers)
    board.host.attach(Line())
    event = "move" if kind in ("move", "drag") else kind
    board.input_mouse(column + 1, row + 1, button, event, modifiers)
    ours = sum({"shift": 1, "meta": 2, "ctrl": 4}[modifier] for modifier in modifiers)
    modes = Modes(mouse=mouse, mouse_encoding=encoding)
    assert encode_mouse(kind, 3 if kind == "move" else button, column, row, ours, modes) == bytes(said)


def test_the_wheel_goes_where_it_is_wanted() -> None:
    assert encode_wheel(True, 4, 2, 0, Modes(mouse="click", mouse_encoding="sgr")) == b"\x1b[<64;5;3M"
    assert encode_wheel(False, 4, 2, 0, Modes(alternate_screen=True)) == b"\x1b[B" * 3
    assert encode_wheel(False, 4, 2, 0, Modes()) is None
