"""The emulator against tmux, row by row and cell by cell; and what it answers, keeps and refuses."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.tui.terminal.board import CLIPBOARD_BYTES, BoardEmulator
from ftagent.tui.terminal.emulator import Bell, CellStyle, Clipboard, Colours, Row, row_text
from tests.support.terminal import TMUX
from tests.tui.terminal.casts import RECORDINGS, Event, Size, names, read_cast
from tests.tui.terminal.tmux_oracle import Looks, Oracle, Screen, oracle

needs_tmux = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with oracle(tmp_path_factory.mktemp("oracle")) as opened:
        yield opened


def played(size: Size, events: Sequence[Event], chunk: int = 4096) -> BoardEmulator:
    emulator = BoardEmulator(*size)
    for event in events:
        if isinstance(event, Size):
            emulator.resize(*event)
        else:
            for start in range(0, len(event), chunk):
                emulator.feed(event[start : start + chunk])
    return emulator


def looks(style: CellStyle) -> Looks:
    names = ("bold", "dim", "italic", "underline", "blink", "reverse", "conceal", "strike")
    return Looks(
        style.foreground, style.background, frozenset(name for name in names if getattr(style, name))
    )


def cells(row: Row) -> list[tuple[str, Looks]]:
    return [(character, looks(run.style)) for run in row for character in run.text]


def assert_same(emulator: BoardEmulator, judged: Screen) -> None:
    rows = [emulator.row(index) for index in range(emulator.rows)]
    assert [row_text(row) for row in rows] == judged.text
    for index, (ours, theirs) in enumerate(zip(rows, judged.cells, strict=True)):
        # tmux leaves out cells at a row's end that were erased and not written to since.
        assert cells(ours)[: len(theirs)] == theirs, f"row {index}"
    assert emulator.modes.alternate_screen == judged.alternate
    cursor = emulator.cursor
    assert cursor is None or (cursor.column, cursor.row) == judged.place(emulator.columns)


@needs_tmux
@pytest.mark.parametrize("name", names())
def test_recordings_look_as_in_tmux(name: str, judge: Oracle) -> None:
    cast = read_cast(RECORDINGS / f"{name}.cast")
    emulator = played(cast.size, cast.events)
    assert (emulator.columns, emulator.rows) == cast.final_size
    assert_same(emulator, judge.screen(cast.size, cast.events))


# Sequences that programs use, with arguments around the edges of a small screen.
_NUMBER = st.one_of(st.just(""), st.integers(0, 24).map(str))
_COLOUR = st.one_of(
    st.integers(0, 255).map("5;{}".format),
    st.tuples(*[st.integers(0, 255)] * 3).map(lambda rgb: "2;" + ";".join(map(str, rgb))),
)
_SGR = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "3", "4", "7", "9", "22", "23", "24", "27", "29", "31", "97", "39", "44", "103", "49"]
    ),
    _COLOUR.map("38;{}".format),
    _COLOUR.map("48;{}".format),
).map("\x1b[{}m".format)
_TEXT = st.text(st.sampled_from("abcXYZ 019-│─┌é"), min_size=1, max_size=30)
_MOVE = st.tuples(_NUMBER, st.sampled_from("ABCDEFGd")).map("\x1b[{0[0]}{0[1]}".format)
_EDIT = st.tuples(_NUMBER, st.sampled_from("PXST")).map("\x1b[{0[0]}{0[1]}".format)
_ERASE = st.tuples(st.sampled_from(["", "0", "1", "2"]), st.sampled_from("JK")).map(
    "\x1b[{0[0]}{0[1]}".format
)
_PLACE = st.tuples(_NUMBER, _NUMBER).map("\x1b[{0[0]};{0[1]}H".format)
_REGION = st.one_of(
    st.just("\x1b[r"), st.tuples(st.integers(1, 5), st.integers(6, 10)).map("\x1b[{0[0]};{0[1]}r".format)
)
# tmux lets these work outside the region, and leaves the cursor in its column, as no terminal of DEC's did.
_LINES = st.tuples(st.integers(1, 10), _NUMBER, st.sampled_from("LM")).map(
    "\x1b[r\x1b[{0[0]}H\x1b[{0[1]}{0[2]}".format
)
_CONTROL = st.sampled_from(["\r", "\n", "\r\n", "\b", "\t", "\x1bM", "\x1bD", "\x1bE", "\x1b7", "\x1b8"])
_SWITCH = st.sampled_from(["\x1b[?1049h", "\x1b[?25l", "\x1b[?25h", "\x1b[4h", "\x1b[4l"])
_STREAM = st.lists(
    st.one_of(_TEXT, _TEXT, _SGR, _MOVE, _EDIT, _LINES, _ERASE, _PLACE, _REGION, _CONTROL, _SWITCH),
    max_size=40,
).map("".join)


@needs_tmux
@settings(max_examples=60, deadline=None)
@given(stream=_STREAM, chunk=st.integers(1, 64))
def test_any_stream_looks_as_in_tmux(stream: str, chunk: int, judge: Oracle) -> None:
    size = Size(20, 10)
    emulator = played(size, [stream.encode()], chunk)
    try:
        assert_same(emulator, judge.screen(size, [stream.encode()]))
    except AssertionError:
        # On a busy machine tmux shows the tail of a sequence once in a thousand streams, but not again.
        assert_same(emulator, judge.screen(size, [stream.encode()]))


UNTOLD = Colours()


def answers(data: bytes, colours: Colours = UNTOLD) -> bytes:
    emulator = BoardEmulator(80, 24, colours)
    emulator.feed(data)
    return emulator.replies()


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"\x1b[c", b"\x1b[?62;22c"),  # DA1
        (b"\x1b[5n", b"\x1b[0n"),  # DSR
        (b"\x1b[3;4H\x1b[6n", b"\x1b[3;4R"),  # CPR
        (b"\x1b[?2026$p", b"\x1b[?2026;2$y"),  # DECRQM: known, and off
        (b"\x1b[?2004h\x1b[?2004$p", b"\x1b[?2004;1$y"),
        (b"\x1b[?31337$p", b"\x1b[?31337;0$y"),  # unknown
        (b"\x1b[?u", b"\x1b[?0u"),  # kitty keys: none pushed
        (b"\x1b[>1u\x1b[?u", b"\x1b[?1u"),
        (b"\x1b[18t", b"\x1b[8;24;80t"),
        (b"\x1b[21t", b"\x1b]l\x1b\\"),  # a title is never told, whoever set it
        (b"\x1b]2;$(reboot)\x07\x1b[21t", b"\x1b]l\x1b\\"),
        (b"\x1b]52;c;?\x07", b""),  # the clipboard is never read
        (b"\x1b]52;c;c2VjcmV0\x07\x1b]52;c;?\x07", b""),
        (b"\x05", b""),
    ],
)
def test_questions_are_answered_without_what_others_put_in(asked: bytes, answered: bytes) -> None:
    assert answers(asked) == answered


def test_the_version_is_told() -> None:
    assert answers(b"\x1b[>0q").startswith(b"\x1bP>|ftagent(")


def test_colours_are_told_if_they_are_known() -> None:
    assert answers(b"\x1b]11;?\x07") == b""
    assert b"fdfd/f6f6/e3e3" in answers(b"\x1b]11;?\x07", Colours(background=(0xFD, 0xF6, 0xE3)))


def test_the_clipboard_is_written_within_bounds() -> None:
    emulator = BoardEmulator(80, 24)
    emulator.feed(b"\x1b]52;c;aGVsbG8=\x1b\\\x07")
    assert emulator.happenings() == (Clipboard("hello"), Bell())
    assert emulator.happenings() == ()
    for payload in (b"!", b"/w==", b"QUFB" * (CLIPBOARD_BYTES // 3 + 9)):
        emulator.feed(b"\x1b]52;c;" + payload + b"\x07")
    assert emulator.happenings() == ()


def test_modes_follow_the_program() -> None:
    emulator = BoardEmulator(80, 24)
    emulator.feed(
        b"\x1b[?1h\x1b[?2004h\x1b[?1004h\x1b[?1002h\x1b[?1006h\x1b[>5u\x1b[>4;2m\x1b[?2026h\x1b[?1049h"
    )
    modes = emulator.modes
    assert modes.application_cursor
    assert modes.bracketed_paste
    assert modes.focus
    assert (modes.mouse, modes.mouse_encoding) == ("drag", "sgr")
    assert modes.modify_other_keys == 2
    assert modes.synchronised
    assert modes.alternate_screen
    assert modes.kitty == 0  # each screen has flags of its own
    emulator.feed(b"\x1b[?1049l")
    assert emulator.modes.kitty == 5
    emulator.feed(b"\x1bc")
    assert emulator.modes == BoardEmulator(80, 24).modes


def test_the_title_has_no_control_characters() -> None:
    emulator = BoardEmulator(80, 24)
    assert emulator.title == ""
    emulator.feed("\x1b]0;⠂ busy\u202e\x9b31m\x07".encode())
    assert emulator.title == "⠂ busy31m"


def test_only_changed_rows_are_drawn_again() -> None:
    emulator = BoardEmulator(80, 4)
    assert emulator.changed() == frozenset(range(4))
    assert emulator.changed() == frozenset()
    emulator.feed(b"\x1b[3Hx")
    assert emulator.changed() == {2}
    emulator.feed(b"\x1b]4;1;rgb:12/34/56\x07")
    assert emulator.changed() == frozenset(range(4))


def test_a_redefined_colour_is_drawn_as_what_it_is() -> None:
    emulator = BoardEmulator(10, 1)
    emulator.feed(b"\x1b[31mx")
    assert emulator.row(0)[0].style.foreground == 1
    emulator.feed(b"\x1b]4;1;rgb:12/34/56\x07")
    assert emulator.row(0)[0].style.foreground == (0x12, 0x34, 0x56)


@pytest.mark.parametrize(
    ("count", "row"), [(1, "ab cdefghi"), (3, "ab   cdefg"), (7, "ab       c"), (8, "ab"), (99, "ab")]
)
def test_blanks_are_inserted(count: int, row: str) -> None:
    """ECMA-48 8.3.64. tmux leaves old cells behind where more than half of a row is pushed out."""
    emulator = BoardEmulator(10, 2)
    emulator.feed(f"abcdefghij\x1b[1;3H\x1b[4;31m\x1b[{count}@".encode())
    assert row_text(emulator.row(0)) == row
    assert not any(run.style.underline for run in emulator.row(0))


def test_a_reversed_screen_is_drawn_reversed() -> None:
    emulator = BoardEmulator(10, 1)
    emulator.feed(b"a\x1b[7mb")
    emulator.changed()
    emulator.feed(b"\x1b[?5h")
    assert emulator.changed() == {0}
    assert [run.style.reverse for run in emulator.row(0)] == [True, False, True]


@pytest.mark.parametrize(
    ("mark", "texts"), [(0, ["日", "本x  "]), (2, ["日", "本", "x  "]), (6, ["日本x ", " "])]
)
def test_the_marked_character_has_a_run_of_its_own(mark: int, texts: list[str]) -> None:
    emulator = BoardEmulator(7, 1)
    emulator.feed("日本x".encode())
    row = emulator.row(0, mark)
    assert [run.text for run in row] == texts
    assert sum(run.columns for run in row) == 7


def test_rows_that_scroll_off_are_kept() -> None:
    emulator = BoardEmulator(10, 2)
    emulator.feed(b"one\r\ntwo\r\nthree\r\nfour")
    assert [row_text(emulator.row(index)) for index in range(-emulator.history, 2)] == [
        "one",
        "two",
        "three",
        "four",
    ]
    emulator.feed(b"\x1b[?1049hz\r\nz\r\nz\r\n")
    assert emulator.history == 2


def test_a_lower_screen_keeps_its_last_rows() -> None:
    emulator = BoardEmulator(10, 4)
    emulator.feed(b"one\r\ntwo\r\nthree\r\nfour")
    emulator.resize(10, 2)
    assert [row_text(emulator.row(index)) for index in range(-2, 2)] == ["one", "two", "three", "four"]
    assert emulator.cursor is not None
    assert emulator.cursor[:2] == (4, 1)


@pytest.mark.parametrize("asked", [b"\x1b[8;5;5t", b"\x1b[?40h\x1b[?3h", b"\x1b[132$|", b"\x1b[30t"])
def test_a_program_cannot_size_its_screen(asked: bytes) -> None:
    emulator = BoardEmulator(80, 24)
    emulator.feed(asked + b"x")
    assert len([emulator.row(index) for index in range(emulator.rows)]) == 24
    assert sum(run.columns for run in emulator.row(0)) == 80


def test_an_endless_string_is_given_up() -> None:
    emulator = BoardEmulator(80, 24)
    emulator.feed(b"\x1b]0;")
    for _ in range(40):
        emulator.feed(b"x" * 65536)
    emulator.feed(b"\x1b\\\x1b[H\x1b[2Jhere")
    assert row_text(emulator.row(0)) == "here"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), _STREAM.map(str.encode), st.just(b"\x1b[?2027l")), max_size=8)
)
def test_no_bytes_break_it(chunks: list[bytes]) -> None:
    emulator = BoardEmulator(20, 5)
    for chunk in chunks:
        emulator.feed(chunk)
    for index in range(5):
        row = emulator.row(index)
        assert sum(run.columns for run in row) == 20
        assert not any(unicodedata.category(character) == "Cc" for run in row for character in run.text)
    cursor = emulator.cursor
    assert cursor is None or (cursor.column < 20 and cursor.row < 5)


def test_cut_anywhere_it_looks_the_same() -> None:
    cast = read_cast(RECORDINGS / "vim.cast")
    whole = played(cast.size, cast.events, 1 << 20)
    parts = played(cast.size, cast.events, 3)
    assert [whole.row(index) for index in range(whole.rows)] == [
        parts.row(index) for index in range(parts.rows)
    ]
