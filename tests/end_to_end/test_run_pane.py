"""The real Claude Code in the pane of `ftagent run`: type, use a tool, stop an answer, resize, leave."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest
from ftagent.events import TextDelta
from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import CLIENT, TASKS, needs_client, playing, scratch_repository
from tests.support.command import PROGRAM, private_environment
from tests.support.embedded import WEIGHTS
from tests.support.scripted import Script, ScriptedEngine
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    needs_client,
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]
FOREVER = 3600.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return scratch_repository(tmp_path)


@pytest.fixture
def engine(project: Path) -> ScriptedEngine:
    """Plays a tool turn; asked to go on and on, it does."""
    tool_turn = playing(TASKS[1], project)

    def script(request: GenerateRequest) -> Script:
        assert isinstance(request.prompt, Conversation)
        if "on and on" in request.prompt.messages[-1].text and request.prompt.tools:
            return (*(TextDelta(f"step {number}\n\n") for number in range(5)), FOREVER)
        return tool_turn(request)

    return ScriptedEngine(script)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Terminal]:
    assert CLIENT
    environment = private_environment(tmp_path, {"FTAGENT_CLAUDE": CLIENT, "COLORTERM": "truecolor"})
    with terminal(tmp_path, 150, 40, environment) as opened:
        yield opened


def start(screen: Terminal, project: Path, *arguments: str, before: str = "") -> None:
    command = shlex.join((*PROGRAM, "run", "claude-code", *arguments))
    screen.type(f"cd {shlex.quote(str(project))}; {before}{command}; echo exit=$?")
    screen.keys("Enter")
    screen.until_shown("manual mode on", "Now ───", "host keys")


def send(screen: Terminal, text: str) -> None:
    screen.type(text)
    screen.until_shown(text)
    screen.keys("Enter")


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


def test_a_session_in_the_pane(
    screen: Terminal, project: Path, engine: ScriptedEngine, tmp_path: Path
) -> None:
    with start_gateway(engine) as gateway:
        start(screen, project, "--engine", gateway.url, before=f"FTAGENT_TOKEN={gateway.token} ")
        send(screen, "Write the number")
        screen.until_shown("Do you want to proceed?")
        answer(screen, "Enter", "It says:")
        assert TASKS[1].done(project, "")

        screen.keys("BTab")
        screen.until_shown("accept edits on")

        send(screen, "Go on and on")
        screen.until_shown("step 4", "decode", "● decode")
        screen.keys("Escape")
        screen.until_shown("Interrupted")
        screen.until(lambda: engine.active == 0)
        assert engine.closed_early

        screen.resize(95, 30)
        screen.until(lambda: "Now ───" not in screen.screen() and "Interrupted" in screen.screen())
        assert len(screen.screen().split("\n")[2].rstrip()) <= 95
        screen.resize(150, 40)
        screen.until_shown("Now ───", "Interrupted")

        children = psutil.Process().children(recursive=True)
        send(screen, "/exit")
        screen.until_shown("claude --resume", "to go on: ftagent run claude-code -- --continue", "exit=0")
    assert screen.state("alternate_on") == screen.state("mouse_any_flag") == "0"
    assert not any("claude" in " ".join(process.cmdline()) for process in children if process.is_running())
    home = tmp_path / "home"
    written = {path.relative_to(home).parts[:4] for path in home.rglob("*") if path.is_file()}
    state = (".local", "state", "ftagent")
    assert written <= {(*state, "agents"), (*state, "logs")}


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the embedded model's weights are not here")
def test_the_embedded_model_beside_its_figures(screen: Terminal, project: Path) -> None:
    start(screen, project)
    send(screen, "What is ftagent?")
    screen.until_shown("mixture-of-experts", "tok/s", "Prompt cache", "Memory")
    send(screen, "/exit")
    screen.until_shown("exit=0")
