"""The other real clients on a real terminal: first start without questions, a tool turn, Esc, resize, end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest
from ftagent.events import TextDelta
from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import AGENTS, Agent, playing, scratch_repository
from tests.end_to_end.test_run_agents import shell_task
from tests.support.command import PROGRAM, private_environment
from tests.support.scripted import Script, ScriptedEngine
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]

ENDLESS = "Talk without an end"


@dataclass(frozen=True, slots=True)
class Screen:
    """What an agent shows when it waits for words and when it asks about a command; how it is left."""

    ready: str
    question: str | None
    leave: tuple[str, ...] = ("C-c", "C-c")


SCREENS = {
    "codex": Screen("? for shortcuts", None),  # its sandbox lets it write in the project
    "opencode": Screen("ctrl+p", "Permission required"),
    "pi": Screen("(auto)", None),
    "qwen-code": Screen("Type your message", "Yes, allow once", ("/quit", "Enter")),
}


def case(agent: Agent) -> object:
    absent = pytest.mark.skipif(agent.found is None, reason=f"{agent.name} (npm) is not installed")
    return pytest.param(agent, id=agent.name, marks=absent)


def press(screen: Terminal, condition: Callable[[], bool], *keys: str) -> None:
    """Press `keys` until `condition` holds: clients drop those that follow a question too soon."""
    for _ in range(20):
        screen.keys(*keys)
        try:
            screen.until(condition, 2)
        except AssertionError:
            continue
        return
    screen.until(condition)


def send(screen: Terminal, text: str) -> None:
    screen.type(text)
    screen.until_shown(text)
    screen.keys("Enter")


def settle(screen: Terminal, ready: str) -> None:
    """Wait until the agent asks for words. Esc early enough puts those that were sent back into its box."""

    def shown() -> bool:
        return ready in screen.screen()

    try:
        screen.until(shown, 5)
    except AssertionError:
        press(screen, shown, "C-u")


def scripted(agent: Agent, project: Path) -> ScriptedEngine:
    """Does the tool turn; answers `ENDLESS` with one word and then nothing."""
    play = playing(shell_task(agent), project)

    def script(request: GenerateRequest) -> Script:
        assert isinstance(request.prompt, Conversation)
        last = [message.text for message in request.prompt.messages if message.role == "user"][-1]
        if ENDLESS in last and request.prompt.tools:
            return (TextDelta("Once upon"), 3600.0)
        return play(request)

    return ScriptedEngine(script)


@pytest.mark.parametrize("agent", [case(agent) for agent in AGENTS if agent.name in SCREENS])
def test_a_session_from_first_start_to_the_end(agent: Agent, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    looks = SCREENS[agent.name]
    engine = scripted(agent, project)
    assert agent.found
    with start_gateway(engine) as gateway:
        extra = {"FTAGENT_TOKEN": gateway.token or "", agent.variable: agent.found}
        with terminal(tmp_path, 120, 40, private_environment(tmp_path, extra)) as screen:
            command = (*PROGRAM, "run", agent.name, "--exec", "--engine", gateway.url)
            screen.type(f"cd {shlex.quote(str(project))}; clear; {shlex.join(command)}; echo exit=$?")
            screen.keys("Enter")
            screen.until_shown(looks.ready)
            send(screen, "Run the command")
            if looks.question:
                screen.until_shown(looks.question)
                press(screen, lambda: "It says:" in screen.screen(), "Enter")
            screen.until_shown("It says:")
            assert (project / "number.txt").read_text("utf-8") == "4711\n"
            send(screen, ENDLESS)
            screen.until_shown("Once upon")
            press(screen, lambda: engine.closed_early > 0 and engine.active == 0, "Escape")
            screen.resize(100, 30)
            settle(screen, looks.ready)
            press(screen, lambda: "to go on: ftagent run" in screen.screen(), *looks.leave)
            screen.until_shown("exit=0")
    home = tmp_path / "home"
    written = {path.relative_to(home).parts[:3] for path in home.rglob("*") if path.is_file()}
    assert written <= {(".local", "state", "ftagent")}
