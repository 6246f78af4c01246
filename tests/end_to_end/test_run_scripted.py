"""The real Claude Code under `ftagent run`, on an engine that plays a script: wrapper and protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftagent.conversation import Conversation
from ftagent.gateway.server import start_gateway
from tests.end_to_end.agents import CLIENT, TASKS, Task, needs_client, playing, scratch_repository, words_of
from tests.support.command import ftagent
from tests.support.scripted import ScriptedEngine

pytestmark = [pytest.mark.agent, pytest.mark.slow, needs_client]


@contextmanager
def scripted(task: Task, project: Path) -> Iterator[tuple[ScriptedEngine, dict[str, str]]]:
    """A gateway that plays `task`, and the environment that points ftagent at it."""
    engine = ScriptedEngine(playing(task, project))
    with start_gateway(engine) as gateway:
        assert gateway.token
        assert CLIENT
        yield engine, {"FTAGENT_TOKEN": gateway.token, "FTAGENT_CLAUDE": CLIENT, "ENGINE": gateway.url}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_has_its_effect_and_exit_code_0(task: Task, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    with scripted(task, project) as (engine, extra):
        done = ftagent(
            "run",
            "claude-code",
            "-p",
            task.prompt,
            "--engine",
            extra["ENGINE"],
            directory=project,
            extra=extra,
        )
    assert done.returncode == 0, done.stderr
    assert task.done(project, done.stdout), done.stdout
    assert "It says: " in done.stdout
    assert "unattended" in done.stderr
    assert engine.active == 0
    assert len(engine.requests) >= 2


def test_json_events_come_in_order(tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    task = TASKS[0]
    with scripted(task, project) as (_, extra):
        arguments = ("run", "claude-code", "-p", task.prompt, "--engine", extra["ENGINE"], "--json", "--lean")
        done = ftagent(*arguments, directory=project, extra=extra)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert (events[0]["type"], events[0]["model"], events[0]["context"]) == ("session", "scripted", 65536)
    assert events[0]["agent_version"].startswith("2.")
    assert (events[-1]["type"], events[-1]["code"], events[-1]["signal"]) == ("exit", 0, None)
    agent = [event["event"] for event in events if event["type"] == "agent"]
    assert agent[-1]["type"] == "result"
    assert agent[-1]["is_error"] is False
    assert {event["type"] for event in events[1:-1]} <= {"agent", "output"}


def test_the_users_own_files_and_keys_stay_out(tmp_path: Path) -> None:
    """A home full of traps: its Claude files are neither read nor written, and no key reaches a tool."""
    home = tmp_path / "home"
    project = scratch_repository(home)
    own = home / ".claude"
    own.mkdir()
    (own / "CLAUDE.md").write_text("TRAP-MEMORY", encoding="utf-8")
    (own / "settings.json").write_text('{"env":{"TRAP_SETTING":"1"}}', encoding="utf-8")
    (home / ".claude.json").write_text('{"trap":true}', encoding="utf-8")
    # A project that names another server and another provider: neither may win.
    (project / ".claude").mkdir()
    trap = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "CLAUDE_CODE_USE_BEDROCK": "1"}
    (project / ".claude" / "settings.json").write_text(json.dumps({"env": trap}), encoding="utf-8")
    before = {path: path.read_bytes() for path in (*own.rglob("*"), home / ".claude.json")}
    task = Task(
        "environment",
        "Run `env > env.txt`.",
        "Bash",
        lambda _: {"command": "env > env.txt; git log --oneline > log.txt", "description": "Show"},
        lambda _, said: True,
    )
    with scripted(task, project) as (engine, extra):
        keys = {
            "ANTHROPIC_API_KEY": "real-key",
            "OPENAI_API_KEY": "real-key",
            "AWS_SECRET_ACCESS_KEY": "real-key",
        }
        done = ftagent(
            "run",
            "claude-code",
            "-p",
            task.prompt,
            "--engine",
            extra["ENGINE"],
            directory=project,
            extra={**extra, **keys, "HOME": str(home)},
        )
    assert done.returncode == 0, done.stderr
    seen = (project / "env.txt").read_text("utf-8")
    assert "real-key" not in seen
    assert "TRAP_SETTING" not in seen
    assert f"HOME={home}\n" in seen
    assert "Start" in (project / "log.txt").read_text("utf-8"), "git must work in the agent's shell"
    prompts = [request.prompt for request in engine.requests]
    assert not any(
        "TRAP-MEMORY" in words_of(prompt) for prompt in prompts if isinstance(prompt, Conversation)
    )
    after = {path: path.read_bytes() for path in (*own.rglob("*"), home / ".claude.json")}
    assert after == before
    state = home / ".local" / "state" / "ftagent" / "agents" / "claude-code"
    assert next(path.name for path in state.iterdir()).startswith("project-")
    assert list(state.glob("*/run-*.json")) == [], "the file with the token goes with the run"


def test_two_runs_in_two_projects_share_the_prefix_of_their_prompts(tmp_path: Path) -> None:
    """System text and tools do not depend on the project, so an engine can keep them for the next run."""
    systems: list[str] = []
    for name in ("one", "two"):
        project = scratch_repository(tmp_path / name)
        with scripted(TASKS[2], project) as (engine, extra):
            done = ftagent(
                "run",
                "claude-code",
                "-p",
                TASKS[2].prompt,
                "--engine",
                extra["ENGINE"],
                directory=project,
                extra=extra,
            )
        assert done.returncode == 0, done.stderr
        prompt = engine.requests[0].prompt
        assert isinstance(prompt, Conversation)
        assert prompt.messages[0].role == "system"
        systems.append(prompt.messages[0].text + str(prompt.tools))
    assert systems[0] == systems[1]


def test_an_engine_that_fails_makes_the_run_fail(tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    with scripted(TASKS[0], project) as (_, extra):
        url = extra["ENGINE"]
    done = ftagent("run", "claude-code", "-p", "x", "--engine", url, directory=project, extra=extra)
    assert done.returncode == 3
    assert "not reachable" in done.stderr


def test_a_wrong_token_is_named(tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    with scripted(TASKS[0], project) as (_, extra):
        arguments = ("run", "claude-code", "-p", "x", "--engine", extra["ENGINE"])
        done = ftagent(*arguments, directory=project, extra={**extra, "FTAGENT_TOKEN": "wrong"})
    assert done.returncode == 2
    assert "FTAGENT_TOKEN" in done.stderr
