"""The chat in a real terminal (tmux): what a person sees, and how the terminal is left."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent.conversation import Message, Text
from ftagent.sessions import SessionStore
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
READY = "Ask something, or /help"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: a socket's name must fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ft") as name:
        yield Path(name)


def shown_columns(screen: str) -> list[str]:
    return [line.rstrip() for line in screen.splitlines()]


def quit_and_look(window: Terminal) -> None:
    """Quit, and check that the terminal is as the shell had it."""
    window.keys("C-d")
    window.until_shown("exit=0")
    assert_restored(window)


def assert_restored(window: Terminal) -> None:
    assert window.state("alternate_on") == "0"
    assert window.state("cursor_flag") == "1"
    for mode in ("mouse_any_flag", "mouse_standard_flag", "mouse_all_flag", "mouse_sgr_flag"):
        assert window.state(mode) == "0", mode
    window.type("stty -g > after; cmp before after && echo same-$((1+1))")
    window.keys("Enter")
    window.until_shown("same-2")


def start(window: Terminal, directory: Path, *arguments: str) -> None:
    window.type(f"cd {directory}; export PYTHONPATH=$OLDPWD; stty -g > before")
    window.keys("Enter")
    window.run(str(directory / "sessions"), *arguments)
    window.until_shown(READY)


def test_type_stream_and_leave(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        assert window.state("alternate_on") == "1"
        window.type("hello there")
        window.keys("Enter")
        screen = window.until_shown("You said hello there, message 1", "120 in (96 cached)")
        assert "› hello there" in screen
        window.type("count 200")
        window.keys("Enter")
        window.until_shown("word1.")
        assert "word200." not in window.screen()
        screen = window.until_shown("● decode", "61.8 tok/s", "word100.")
        window.until_shown("word200.", "○ idle")
        quit_and_look(window)


def test_stop_with_escape(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.type("count 100000")
        window.keys("Enter")
        window.until_shown("word20.")
        window.keys("Escape")
        window.until_shown("■ stopped", "○ idle")
        window.type("after")
        window.keys("Enter")
        window.until_shown("You said after, message 3")
        quit_and_look(window)
    session = SessionStore(directory / "sessions").resume()
    partial = session.messages[1]
    assert partial.stopped
    assert partial.message.text.startswith("word1. word2. ")


def test_resume_in_a_new_process(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.type("remember me")
        window.keys("Enter")
        window.until_shown("message 1")
        quit_and_look(window)
        window.type("clear")
        window.keys("Enter")
        window.until(lambda: "exit=0" not in window.screen())
        window.run(str(directory / "sessions"), "--resume", "newest")
        window.until_shown("› remember me", "You said remember me, message 1")
        window.type("and now")
        window.keys("Enter")
        window.until_shown("You said and now, message 3")
        window.keys("C-c", "C-c")
        window.until_shown("exit=0")
    assert len(SessionStore(directory / "sessions").summaries()) == 1


def test_an_unknown_session_leaves_the_terminal_alone(directory: Path) -> None:
    SessionStore(directory / "sessions").create().append(Message("user", (Text("x"),)))
    with terminal(directory) as window:
        window.run(str(directory / "sessions"), "--resume", "zzz")
        window.until_shown("no session starts with 'zzz'")
        assert b"\x1b[?1049h" not in window.raw


def test_resize_down_to_60x15_and_back(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory, "--embedded")
        assert "small embedded model: it knows ftagent's basics, not much else" in window.screen()
        window.type("hello")
        window.keys("Enter")
        window.until_shown("You said hello", "expert slots")
        window.resize(60, 15)
        screen = window.until_shown("slots 96 / 128", READY, "not much else", "Enter send")
        assert "expert slots" not in screen
        assert max(map(len, shown_columns(screen))) <= 60
        window.type("small")
        window.keys("Enter")
        window.until_shown("You said small, message 3")
        window.resize(59, 14)
        window.until(lambda: "slots" not in window.screen())
        window.until_shown("You said small", READY)
        window.resize(300, 100)
        window.until_shown("expert slots", "You said hello", "You said small")
        quit_and_look(window)


def test_no_color_is_honoured_and_state_is_in_words(directory: Path) -> None:
    with terminal(directory, environment={"NO_COLOR": "1"}) as window:
        start(window, directory)
        window.type("think")
        window.keys("Enter")
        window.until_shown("▶ Thought for", "So be it.")
        window.type("fail")
        window.keys("Enter")
        window.until_shown("■ failed: the worker died", "○ idle")
        assert colours(window.screen(colours=True)) == set()
        quit_and_look(window)


def test_colours_are_the_terminals_own(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.type("hello")
        window.keys("Enter")
        window.until_shown("You said hello", "○ idle")
        quit_and_look(window)
        assert b"38;2;" not in window.raw
        assert b"48;2;" not in window.raw


def colours(screen: str) -> set[str]:
    """The colour parameters of all SGR sequences, the default colours (39, 49) apart."""
    parameters = {number for codes in re.findall(r"\x1b\[([\d;]*)m", screen) for number in codes.split(";")}
    return {number for number in parameters if re.fullmatch(r"3[0-8]|4[0-8]|9\d|10\d", number)}


def test_hostile_output_does_nothing(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.type("hostile")
        window.keys("Enter")
        window.until_shown("]0;owned[2J31mred[?1049l", "<script>alert(1)</script>", "120 in")
        assert window.state("alternate_on") == "1"
        assert "owned" not in window.state("pane_title")
        assert b"\x1b]0;owned" not in window.raw
        assert b"\x1b]8;" not in window.raw  # no hyperlinks
        quit_and_look(window)


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("HUP", 129), ("INT", 130)])
def test_signals_leave_the_terminal_clean(directory: Path, name: str, code: int) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.type("count 100000")
        window.keys("Enter")
        window.until_shown("word20.")
        child = window.tmux("display-message", "-p", "#{pane_pid}").strip()
        window.tmux("run-shell", f"pkill -{name} -P {child}")
        window.until_shown(f"exit={code}")
        assert_restored(window)
        assert "Traceback" not in window.screen()
    assert SessionStore(directory / "sessions").resume().messages[1].stopped


def test_suspend_and_come_back(directory: Path) -> None:
    with terminal(directory) as window:
        start(window, directory)
        window.keys("C-z")
        window.until_shown("Stopped")  # says the shell
        assert window.state("alternate_on") == "0"
        window.type("fg")
        window.keys("Enter")
        window.until(lambda: window.state("alternate_on") == "1")
        window.until_shown(READY)
        window.type("back")
        window.keys("Enter")
        window.until_shown("You said back")
        window.keys("C-d")
        window.until(lambda: window.state("alternate_on") == "0")
        assert_restored(window)
