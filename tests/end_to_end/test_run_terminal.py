"""The real Claude Code on a real terminal under `ftagent run`: first start, a tool call, suspend, leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import CLIENT, TASKS, needs_client, playing, scratch_repository
from tests.support.command import PROGRAM, private_environment
from tests.support.scripted import ScriptedEngine
from tests.support.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.agent, pytest.mark.slow, needs_client, needs_tmux]


def test_a_session_from_first_start_to_the_end(tmp_path: Path) -> None:
    task = TASKS[1]
    project = scratch_repository(tmp_path)
    assert CLIENT
    with start_gateway(ScriptedEngine(playing(task, project))) as gateway:
        extra = {"FTAGENT_TOKEN": gateway.token or "", "FTAGENT_CLAUDE": CLIENT}
        with Tmux(project, private_environment(tmp_path, extra)) as terminal:
            terminal.run((*PROGRAM, "run", "claude-code", "--exec", "--engine", gateway.url))
            # No question of a first start stands before the prompt.
            terminal.wait_for("manual mode on")
            terminal.type("Write the number")
            terminal.wait_for("Write the number")
            terminal.press("Enter")
            terminal.wait_for("Do you want to proceed?")
            # The client drops keys that come too soon after a question, so that none is answered blindly.
            terminal.press_until("Enter", "It says:")
            assert task.done(project, "")
            terminal.press("C-z")
            terminal.wait_for("Stopped")
            terminal.wait_for("exit code")
            terminal.type("clear; fg")
            terminal.press("Enter")
            terminal.wait_for("manual mode on")
            terminal.type("/exit")
            terminal.wait_for("/exit")
            terminal.press("Enter")
            terminal.wait_for("to go on: ftagent run claude-code -- --continue")
            terminal.run(("sh", "-c", "exit 5"))
            terminal.wait_for("exit code 5")
    home = tmp_path / "home"
    written = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert {path.parts[:4] for path in written} <= {
        (".local", "state", "ftagent", "agents"),
        (".local", "state", "ftagent", "logs"),
    }
