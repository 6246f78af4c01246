"""The real Claude Code on a real terminal under `ftagent run`: first start, a tool call, suspend, leave."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import CLIENT, TASKS, needs_client, playing, scratch_repository
from tests.support.command import PROGRAM, private_environment
from tests.support.scripted import ScriptedEngine
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    needs_client,
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]


def answer(screen: Terminal, key: str, shown: str) -> None:
    """Press `key` until `shown` comes: the client drops keys that follow a question too soon."""
    for _ in range(10):
        screen.keys(key)
        try:
            screen.until(lambda: shown in screen.screen(), 2)
        except AssertionError:
            continue
        return
    screen.until_shown(shown)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return scratch_repository(tmp_path)


@pytest.fixture
def screen(tmp_path: Path, project: Path) -> Iterator[Terminal]:
    """A terminal with `run claude-code --exec` started in `project`, on an engine that plays a task."""
    assert CLIENT
    with start_gateway(ScriptedEngine(playing(TASKS[1], project))) as gateway:
        extra = {"FTAGENT_TOKEN": gateway.token or "", "FTAGENT_CLAUDE": CLIENT}
        with terminal(tmp_path, 120, 40, private_environment(tmp_path, extra)) as opened:
            command = (*PROGRAM, "run", "claude-code", "--exec", "--engine", gateway.url)
            opened.type(f"cd {shlex.quote(str(project))}; {shlex.join(command)}; echo exit=$?")
            opened.keys("Enter")
            yield opened


def test_a_session_from_first_start_to_the_end(screen: Terminal, project: Path, tmp_path: Path) -> None:
    screen.until_shown("manual mode on")  # no question of a first start stands before the prompt
    screen.type("Write the number")
    screen.until_shown("Write the number")
    screen.keys("Enter")
    screen.until_shown("Do you want to proceed?")
    answer(screen, "Enter", "It says:")
    assert TASKS[1].done(project, "")
    screen.keys("C-z")
    screen.until_shown("Stopped", "exit=")
    screen.type("clear; fg")
    screen.keys("Enter")
    screen.until_shown("manual mode on")
    screen.type("/exit")
    screen.until_shown("/exit")
    screen.keys("Enter")
    screen.until_shown("to go on: ftagent run claude-code -- --continue")
    screen.type("(exit 5); echo exit=$?")
    screen.keys("Enter")
    screen.until_shown("exit=5")
    home = tmp_path / "home"
    written = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert {path.parts[:4] for path in written} <= {
        (".local", "state", "ftagent", "agents"),
        (".local", "state", "ftagent", "logs"),
    }
