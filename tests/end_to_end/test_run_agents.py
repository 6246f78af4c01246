"""Every real client under `ftagent run`, headless, on an engine that plays a script: one body for all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest
from ftagent.errors import BadRequest
from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import Agent, Task, each_agent, playing, scratch_repository, words_of
from tests.support.command import ftagent
from tests.support.scripted import Script, ScriptedEngine

pytestmark = [pytest.mark.agent, pytest.mark.slow, pytest.mark.timeout(180)]

COMMAND = "echo 4711 > number.txt; env > env.txt; git log --oneline > log.txt"
KEYS = {
    "ANTHROPIC_API_KEY": "real-key",
    "OPENAI_API_KEY": "real-key",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/real-key",
    "GEMINI_API_KEY": "real-key",
    "AWS_SECRET_ACCESS_KEY": "real-key",
    "GITHUB_TOKEN": "real-key",
}
# Where the clients keep what their users wrote, and what would give a prompt away that had read it.
TRAPS = {
    ".claude/CLAUDE.md": "TRAP-WORD",
    ".claude/skills/trap/SKILL.md": "---\nname: trap\ndescription: TRAP-WORD\n---\nTRAP-WORD",
    ".claude/settings.json": '{"env":{"TRAP":"TRAP-WORD"}}',
    ".claude.json": '{"trap":true}',
    ".codex/AGENTS.md": "TRAP-WORD",
    ".codex/config.toml": 'model_provider = "trap"\n[model_providers.trap]\nbase_url = "http://127.0.0.1:9"\n',
    ".agents/skills/trap/SKILL.md": "---\nname: trap\ndescription: TRAP-WORD\n---\nTRAP-WORD",
    ".config/opencode/opencode.json": '{"model":"trap/trap","instructions":["~/.claude/CLAUDE.md"]}',
    ".config/opencode/AGENTS.md": "TRAP-WORD",
    ".opencode/agent/trap.md": "---\ndescription: TRAP-WORD\n---\nTRAP-WORD",
    ".opencode/opencode.json": '{"model":"trap/trap"}',
    ".pi/agent/AGENTS.md": "TRAP-WORD",
    ".pi/agent/settings.json": '{"defaultProvider":"trap","defaultModel":"trap"}',
    ".qwen/QWEN.md": "TRAP-WORD",
    ".qwen/settings.json": '{"model":{"name":"trap"},"security":{"auth":{"selectedType":"qwen-oauth"}}}',
}


def shell_task(agent: Agent) -> Task:
    return Task(
        "shell",
        "Run the command.",
        agent.tool,
        lambda _: agent.arguments(COMMAND),
        lambda project, _: (project / "number.txt").read_text("utf-8") == "4711\n",
    )


@contextmanager
def serving(
    agent: Agent, script: Callable[[GenerateRequest], Script]
) -> Iterator[tuple[ScriptedEngine, tuple[str, ...], dict[str, str]]]:
    """A gateway that plays `script`, the words of a run on it, and the variables that it needs."""
    engine = ScriptedEngine(script)
    with start_gateway(engine) as gateway:
        assert gateway.token
        assert agent.found
        words = ("run", agent.name, "--engine", gateway.url)
        yield engine, words, {"FTAGENT_TOKEN": gateway.token, agent.variable: agent.found}


def fingerprint(home: Path) -> dict[str, str]:
    """A hash of every file of a user's, the directories of ftagent left out."""
    ours = (home / ".local" / "state" / "ftagent", home / ".cache" / "ftagent")
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(home.rglob("*"))
        if not any(path.is_relative_to(each) or each.is_relative_to(path) for each in ours)
    }


@each_agent
def test_a_tool_turn_has_its_effect_and_the_users_home_stays_as_it_is(agent: Agent, tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = scratch_repository(tmp_path / "work")
    for name, text in TRAPS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    before = fingerprint(home)
    task = shell_task(agent)
    with serving(agent, playing(task, project)) as (engine, words, extra):
        done = ftagent(
            *(*words, "-p", task.prompt),
            directory=project,
            extra={**KEYS, **extra, "HOME": str(home)},
            timeout_s=120,
        )
    assert done.returncode == 0, done.stderr
    assert task.done(project, done.stdout)
    assert "It says: " in done.stdout
    assert "Start" in (project / "log.txt").read_text("utf-8"), "git must work in the agent's shell"
    seen = (project / "env.txt").read_text("utf-8")
    assert "real-key" not in seen
    assert f"HOME={home}\n" in seen
    assert fingerprint(home) == before
    prompts = [request.prompt for request in engine.requests]
    assert len(prompts) >= 2
    assert engine.active == 0
    for prompt in prompts:
        assert isinstance(prompt, Conversation)
        assert "TRAP-WORD" not in words_of(prompt)


@each_agent
def test_json_events_come_in_order(agent: Agent, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    task = shell_task(agent)
    with serving(agent, playing(task, project)) as (engine, words, extra):
        done = ftagent(
            *(*words, "-p", task.prompt, "--json", "--lean"), directory=project, extra=extra, timeout_s=120
        )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert (events[0]["type"], events[0]["agent"], events[0]["context"]) == ("session", agent.name, 65536)
    assert (events[-1]["type"], events[-1]["code"]) == ("exit", 0)
    assert [event for event in events if event["type"] == "agent"]
    assert {event["type"] for event in events[1:-1]} <= {"agent", "output"}
    offered = [
        request.prompt.tools for request in engine.requests if isinstance(request.prompt, Conversation)
    ]
    assert max(map(len, offered)) <= 4, "lean"


@each_agent
def test_it_goes_on_where_it_ended(agent: Agent, tmp_path: Path) -> None:
    """By the arguments that ftagent names at the end; the second run is told another address and token."""
    project = scratch_repository(tmp_path)
    task = shell_task(agent)
    with serving(agent, playing(task, project)) as (_, words, extra):
        first = ftagent(*(*words, "-p", task.prompt), directory=project, extra=extra, timeout_s=120)
    assert first.returncode == 0, first.stderr
    with serving(agent, playing(task, project)) as (engine, words, extra):
        resume = adapters.get(agent.name).resume
        again = (*words, "-p", "Go on.", "--", *resume)
        second = ftagent(*again, directory=project, extra=extra, timeout_s=120)
    assert second.returncode == 0, second.stderr
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    roles = [message.role for message in prompt.messages]
    assert "tool" in roles, "the tool turn of the first run is there"
    assert "Go on." in prompt.messages[-1].text


@each_agent
def test_with_ask_the_tool_is_denied(agent: Agent, tmp_path: Path) -> None:
    """Nobody can be asked, so nothing is written, whatever the model calls."""
    project = scratch_repository(tmp_path)
    task = shell_task(agent)
    with serving(agent, playing(task, project)) as (_, words, extra):
        ftagent(*(*words, "-p", task.prompt, "--ask"), directory=project, extra=extra, timeout_s=120)
    assert not (project / "number.txt").exists()


@each_agent
def test_a_request_that_is_refused_makes_the_run_fail(agent: Agent, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)

    def refusing(request: GenerateRequest) -> Script:
        return [BadRequest("the engine will not have it", "messages")]

    with serving(agent, refusing) as (_, words, extra):
        done = ftagent(*(*words, "-p", "Run the command."), directory=project, extra=extra, timeout_s=120)
    assert done.returncode == 1
    assert "the engine will not have it" in done.stdout + done.stderr


@each_agent
def test_two_projects_share_the_beginning_of_their_prompts(agent: Agent, tmp_path: Path) -> None:
    """Tools are the same, and the first words of the system text: an engine keeps them for the next run."""
    heads: list[str] = []
    for name in ("one", "two"):
        project = scratch_repository(tmp_path / name)
        task = shell_task(agent)
        with serving(agent, playing(task, project)) as (engine, words, extra):
            done = ftagent(*(*words, "-p", task.prompt), directory=project, extra=extra, timeout_s=120)
        assert done.returncode == 0, done.stderr
        prompt = engine.requests[-1].prompt
        assert isinstance(prompt, Conversation)
        for span in adapters.get(agent.name).volatile:
            if "=" not in span.remedy:  # those with a switch are not there any more
                assert re.search(span.pattern, words_of(prompt), re.MULTILINE), span.pattern
        heads.append(str(prompt.tools) + prompt.messages[0].text)
    shared = next(
        (n for n, (one, two) in enumerate(zip(*heads, strict=False)) if one != two), min(map(len, heads))
    )
    assert shared >= 0.8 * len(heads[0])
