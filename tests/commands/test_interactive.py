"""Where an agent's screen goes: a pane where there is room, else the whole terminal."""

from __future__ import annotations

import os
import sys

import pytest

from ftagent import adapters
from ftagent.commands.interactive import Way, choose, pane_environment
from ftagent.errors import ConfigError


@pytest.fixture(autouse=True)
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)


@pytest.mark.parametrize(
    ("size", "term", "way"),
    [
        ((100, 20), "xterm-256color", "pane"),
        ((200, 60), "tmux-256color", "pane"),
        ((99, 60), "xterm-256color", "exec"),
        ((200, 19), "xterm-256color", "exec"),
        ((200, 60), "dumb", "exec"),
    ],
)
def test_by_room(size: tuple[int, int], term: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size(size))
    monkeypatch.setenv("TERM", term)
    assert choose(None) == way
    assert choose("exec") == "exec"


def test_what_was_asked_for_is_done_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 10)))
    assert choose("pane") == "pane"
    with pytest.raises(ConfigError, match="start `tmux` first"):
        choose("tmux")
    with monkeypatch.context() as redirected:
        redirected.setattr(sys.stderr, "isatty", lambda: False, raising=False)
        with pytest.raises(ConfigError, match="stderr is none; use --exec"):
            choose("pane")
        assert choose(None) == "exec"
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(ConfigError, match="use --exec"):
        choose("pane")


def test_no_terminal_is_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="-p TASK"):
        choose("pane")


def test_the_agent_is_told_of_our_terminal_alone() -> None:
    outer = {
        "TERM": "screen",
        "TMUX": "/tmp/x",
        "TERM_PROGRAM": "tmux",
        "COLORFGBG": "15;0",
        "LANG": "C.UTF-8",
    }
    assert pane_environment(adapters.get("codex"), outer) == {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LANG": "C.UTF-8",
    }
    assert pane_environment(adapters.get("claude-code"), outer)["TERM_PROGRAM"] == "ghostty"
