"""The run screen in a real terminal: what its program is given, and how the terminal is left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.command import REPOSITORY
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
PROBE = (sys.executable, "-m", "tests.support.probe_child")
FIGURES = 28  # columns of the figures in a terminal of 100 to 139


class Pane:
    """The run screen with the probe in it, in a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def start(self, *sequences: str, flags: tuple[str, ...] = ()) -> None:
        runner = (sys.executable, "-m", "tests.support.pane_runner", *flags, "--", *PROBE, *sequences)
        self.terminal.type(f"stty -a > {self._modes('before')}; {shlex.join(runner)}; echo exit=$?")
        self.terminal.keys("Enter")
        self.terminal.until_shown("ready")

    def _modes(self, when: str) -> Path:
        return self.terminal.directory / f"modes-{when}"

    @property
    def pid(self) -> int:
        """Of ftagent."""
        found = re.search(rb"pid=(\d+)", self.terminal.raw)
        assert found
        return int(found[1])

    @property
    def child(self) -> int:
        found = re.search(r"ready (\d+)", self.terminal.screen())
        assert found
        return int(found[1])

    def ended(self, code: int, *shown: str) -> None:
        """Wait for the end; the terminal must be as it was, and nothing of the program may run on."""
        self.terminal.until_shown(f"exit={code}", *shown)
        self.terminal.type(f"stty -a > {self._modes('after')}; echo done")
        self.terminal.keys("Enter")
        self.terminal.until(lambda: "\ndone" in self.terminal.screen())
        before, after = (self._modes(when).read_text().split(";", 3)[3] for when in ("before", "after"))
        assert after == before  # all but speed and size
        states = ("alternate_on", "mouse_any_flag", "cursor_flag", "keypad_cursor_flag")
        assert [self.terminal.state(name) for name in states] == ["0", "0", "1", "0"]
        left = self.terminal.raw.rsplit(b"\x1b[?1049h", 1)[-1]
        for mode in (b"2004", b"1004", b"1003"):
            assert left.rfind(b"\x1b[?%sl" % mode) > left.rfind(b"\x1b[?%sh" % mode), (
                f"mode {mode!r} is left on"
            )


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    extra = {"PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"}
    with terminal(tmp_path, 120, 30, extra) as opened:
        yield Pane(opened)


def reads(pane: Pane) -> str:
    """All that the program has read, in hex."""
    return "".join(re.findall(r"read=([0-9a-f]+)", pane.terminal.screen()))


def test_the_size_at_first_and_after_each_change(pane: Pane) -> None:
    pane.start()
    pane.terminal.until_shown(f"size={120 - FIGURES}x29")
    pane.terminal.resize(90, 25)  # narrow: one row of figures
    pane.terminal.until_shown("size=90x24")
    pane.terminal.resize(50, 12)  # tiny: none
    pane.terminal.until_shown("size=50x12")
    pane.terminal.resize(150, 30)
    pane.terminal.until_shown("size=114x29")
    pane.terminal.keys("F12")
    pane.terminal.until_shown("size=150x29")
    pane.terminal.keys("x", "0")
    pane.ended(0)


def test_the_figures_stand_beside_it_and_below_it(pane: Pane) -> None:
    pane.start()
    pane.terminal.until_shown("Now ───", "expert", "Memory ───", "probe", "host keys")
    pane.terminal.resize(90, 25)
    pane.terminal.until(lambda: "idle" in pane.terminal.screen().rstrip().rsplit("\n", 1)[-1])


# By tmux's names: the key, and what the program reads in the old and in the kitty protocol, in hex.
KEYS = [
    ("Escape", "1b", "1b5b323775"),
    ("BTab", "1b5b5a", "1b5b393b3275"),
    ("M-Enter", "1b0d", "1b5b31333b3375"),
    ("M-b", "1b62", "1b5b39383b3375"),
    ("C-c", "03", "1b5b39393b3575"),
    ("C-z", "1a", "1b5b3132323b3575"),
    ("C-q", "11", "1b5b3131333b3575"),
    ("C-p", "10", "1b5b3131323b3575"),
    ("C-\\", "1c", "1b5b39323b3575"),
    ("C-Space", "00", "1b5b33323b3575"),
    ("C-Left", "1b5b313b3544", "1b5b313b3544"),
    ("PageUp", "1b5b357e", "1b5b357e"),
    ("F5", "1b5b31357e", "1b5b31357e"),
    ("BSpace", "7f", "7f"),
    ("é", "c3a9", "c3a9"),
]


@pytest.mark.parametrize(("sequence", "column"), [("", 1), (r"\x1b[>1u", 2)], ids=["legacy", "kitty"])
def test_every_key_but_the_hosts_is_the_programs(pane: Pane, sequence: str, column: int) -> None:
    pane.start(sequence)
    expected = ""
    for row in KEYS:
        pane.terminal.keys(row[0])
        expected += row[column]
        pane.terminal.until(lambda expected=expected: reads(pane) == expected)  # type: ignore[misc]
    pane.terminal.keys("x", "0")
    pane.ended(0)


def test_a_paste_is_one_paste(pane: Pane, tmp_path: Path) -> None:
    pane.start(r"\x1b[?2004h")
    text = tmp_path / "text"
    text.write_text("one\ntwo\nthree")
    pane.terminal.tmux("load-buffer", str(text))
    pane.terminal.tmux("paste-buffer", "-p")
    pasted = b"\x1b[200~one\rtwo\rthree\x1b[201~".hex()
    pane.terminal.until(lambda: reads(pane) == pasted)


def test_the_prefix_comes_first_and_can_be_sent(pane: Pane) -> None:
    pane.start(flags=("--prefix", "ctrl+space"))
    pane.terminal.keys("C-Space", "C-Space")
    pane.terminal.until(lambda: reads(pane) == "00")
    pane.terminal.keys("C-]")
    pane.terminal.until(lambda: reads(pane) == "001d")
    pane.terminal.keys("F1")
    pane.terminal.until_shown("show or hide this help")
    pane.terminal.keys("C-Space", "q")
    pane.ended(128 + signal.SIGHUP)
    assert not psutil.pid_exists(pane.pid)


@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_exit_code_and_the_last_screen_stay(pane: Pane, code: int) -> None:
    pane.start()
    child = pane.child
    pane.terminal.keys("y")
    pane.terminal.until_shown("read=79")
    pane.terminal.keys("x", str(code))
    pane.ended(code, f"size={120 - FIGURES}x29", "read=79")
    assert not psutil.pid_exists(child)


def test_a_program_that_is_killed_in_every_mode(pane: Pane) -> None:
    pane.start(
        r"\x1b[?1049h\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[?1004h\x1b[?25l\x1b[>1u\x1b[?1h\x1b[31mlast"
    )
    child = pane.child
    pane.terminal.keys("k")
    pane.ended(128 + signal.SIGKILL, "last", f"ready {child}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ftagent_ended_by_a_signal_ends_the_program(pane: Pane, number: signal.Signals) -> None:
    pane.start()
    child = pane.child
    pane.terminal.keys("o")
    pane.terminal.until_shown("left=")
    left = re.search(r"left=(\d+)", pane.terminal.screen())
    assert left
    os.kill(pane.pid, number)
    pane.ended(128 + number)
    assert not psutil.pid_exists(child)
    assert not psutil.pid_exists(int(left[1]))


def test_ftagent_killed_outright_leaves_no_program(pane: Pane) -> None:
    pane.start()
    child = pane.child
    os.kill(pane.pid, signal.SIGKILL)
    pane.terminal.until(lambda: not psutil.pid_exists(child))


def test_a_defect_of_the_screen_ends_the_program_and_mends_the_terminal(pane: Pane) -> None:
    pane.start(r"\x1b[?1003h", flags=("--crash",))
    pane.terminal.keys("t")
    pane.ended(125, "a defect of the screen")


def test_suspended_and_brought_back(pane: Pane) -> None:
    pane.start()
    pane.terminal.keys("z")  # the program stops itself
    pane.terminal.until_shown("Stopped")
    pane.terminal.type("fg")
    pane.terminal.keys("Enter")
    pane.terminal.until_shown("resumed", "Now ───")
    pane.terminal.keys("x", "3")
    pane.terminal.until(
        lambda: "resumed" in pane.terminal.screen() and "Now ───" not in pane.terminal.screen()
    )
    pane.terminal.type("echo exit=$?")
    pane.terminal.keys("Enter")
    pane.ended(3)


def test_its_colours_are_the_programs(pane: Pane) -> None:
    pane.start(
        r"\x1b[38;2;10;20;30mdeep\x1b[0m plain \x1b[31mred\x1b[0m \x1b[7mback\x1b[0m \x1b[1;4mboth\x1b[0m\r\n"
    )
    pane.terminal.until_shown("deep", "both")
    row = next(line for line in pane.terminal.screen(colours=True).split("\n") if "deep" in line)
    assert re.search(
        r"\x1b\[38;2;10;20;30mdeep\x1b\[(0|39)m plain \x1b\[31mred\x1b\[(0|39)m \x1b\[7mback", row
    )


def test_a_burst_of_output_does_not_freeze_it(pane: Pane) -> None:
    pane.start()
    pane.terminal.keys("b", "F1")
    pane.terminal.until_shown("show or hide this help")
    pane.terminal.until_shown("burst-done")
    pane.terminal.keys("F1", "y")
    pane.terminal.until_shown("read=79")
