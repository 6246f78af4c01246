"""What the end-to-end tests share: the real clients, a repository, tasks, an engine that plays them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ftagent.conversation import Conversation, Message, Text, ToolResult
from ftagent.engine.api import GenerateRequest
from ftagent.events import (
    Finished,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from tests.support.scripted import Script

CLIENT = os.environ.get("FTAGENT_CLAUDE") or shutil.which("claude")
needs_client = pytest.mark.skipif(CLIENT is None, reason="Claude Code (npm) is not installed")


@dataclass(frozen=True, slots=True)
class Agent:
    """A client as npm ships it, and its tool that runs a command."""

    name: str
    executable: str
    variable: str  # that names it to ftagent
    tool: str
    arguments: Callable[[str], dict[str, object]]

    @property
    def found(self) -> str | None:
        return os.environ.get(self.variable) or shutil.which(self.executable)


AGENTS = (
    Agent(
        "claude-code",
        "claude",
        "FTAGENT_CLAUDE",
        "Bash",
        lambda command: {"command": command, "description": "Run"},
    ),
    Agent("codex", "codex", "FTAGENT_CODEX", "exec_command", lambda command: {"cmd": command}),
    Agent(
        "opencode",
        "opencode",
        "FTAGENT_OPENCODE",
        "bash",
        lambda command: {"command": command, "description": "Run"},
    ),
    Agent("pi", "pi", "FTAGENT_PI", "bash", lambda command: {"command": command}),
    Agent(
        "qwen-code",
        "qwen",
        "FTAGENT_QWEN",
        "run_shell_command",
        lambda command: {"command": command, "description": "Run", "is_background": False},
    ),
)


def each_agent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test with each client; those that are not installed are skipped."""
    cases = [
        pytest.param(
            agent,
            id=agent.name,
            marks=pytest.mark.skipif(agent.found is None, reason=f"{agent.name} (npm) is not installed"),
        )
        for agent in AGENTS
    ]
    marked: Callable[..., Any] = pytest.mark.parametrize("agent", cases)(function)
    return marked


@dataclass(frozen=True, slots=True)
class Task:
    """A task, the call that does it, and how to see that it was done.

    `done` looks at the project and at what the agent said last.
    """

    name: str
    prompt: str
    tool: str
    arguments: Callable[[Path], Mapping[str, object]]
    done: Callable[[Path, str], bool]


def holds(file: Path, text: str) -> bool:
    """Whether the file is there with this text, blank space around it aside."""
    return file.is_file() and file.read_text("utf-8", errors="replace").strip() == text


TASKS = (
    Task(
        "create",
        "Create a file named greeting.txt with the text 'hello from the engine'.",
        "Write",
        lambda project: {"file_path": str(project / "greeting.txt"), "content": "hello from the engine"},
        lambda project, said: holds(project / "greeting.txt", "hello from the engine"),
    ),
    Task(
        "run",
        "Run `echo 4711 > number.txt` and report the result.",
        "Bash",
        lambda project: {"command": "echo 4711 > number.txt", "description": "Write the number"},
        lambda project, said: holds(project / "number.txt", "4711"),
    ),
    Task(
        "read",
        "Read settings.ini and tell me the value of port.",
        "Read",
        lambda project: {"file_path": str(project / "settings.ini")},
        lambda project, said: "48231" in said,
    ),
)


def scratch_repository(directory: Path) -> Path:
    """A git repository with one committed file, as a user's project."""
    project = directory / "project"
    project.mkdir(parents=True)
    (project / "settings.ini").write_text("host = localhost\nport = 48231\nname = blue\n", encoding="utf-8")
    git = ("git", "-c", "user.name=T", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Start")):
        subprocess.run((*git, *arguments), cwd=project, check=True, capture_output=True, timeout=60)
    return project


def playing(task: Task, project: Path) -> Callable[[GenerateRequest], Script]:
    """A script for ScriptedEngine: call the task's tool once, then repeat what came back."""

    def script(request: GenerateRequest) -> Script:
        conversation = request.prompt
        assert isinstance(conversation, Conversation)
        if task.tool not in {tool.name for tool in conversation.tools}:
            return (TextDelta("A title"), _finished("stop"))
        results = [
            block for message in conversation.messages for block in message.blocks if _is_result(block)
        ]
        if results:
            return (ThinkingDelta("Done."), TextDelta(f"It says: {_text(results[-1])}"), _finished("stop"))
        arguments = json.dumps(task.arguments(project))
        half = len(arguments) // 2
        return (
            ThinkingDelta("I use a tool."),
            ToolCallStart(0, f"toolu_{os.urandom(6).hex()}", task.tool),
            ToolCallDelta(0, arguments[:half]),
            ToolCallDelta(0, arguments[half:]),
            ToolCallEnd(0),
            _finished("tool_calls"),
        )

    return script


def words_of(conversation: Conversation) -> str:
    """All text of a conversation, system messages included."""
    return "\n".join(_text(block) for message in conversation.messages for block in _blocks(message))


def _blocks(message: Message) -> list[object]:
    return list(message.blocks)


def _is_result(block: object) -> bool:
    return isinstance(block, ToolResult)


def _text(block: object) -> str:
    if isinstance(block, ToolResult):
        return "".join(_text(part) for part in block.content)
    return block.text if isinstance(block, Text) else ""


def _finished(reason: str) -> Finished:
    assert reason in ("stop", "tool_calls")
    return Finished("stop" if reason == "stop" else "tool_calls", Usage(100, 10))
