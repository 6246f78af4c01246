"""`ftagent run` with a program in the agent's place: what the wrapper itself does, for every adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.gateway.server import Gateway, start_gateway
from tests.support.command import ftagent
from tests.support.scripted import ScriptedEngine

FAKE = """#!/bin/sh
[ "$1" = --version ] && echo 9.9.9 && exit 0
env > env.txt
printf '%s\\n' "$@" > words.txt
exit 7
"""
SECRETS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with start_gateway(ScriptedEngine(lambda request: ())) as gateway:
        yield gateway


@pytest.mark.parametrize("name", adapters.names())
def test_the_exit_code_is_the_agents_and_no_key_reaches_it(
    name: str, gateway: Gateway, tmp_path: Path
) -> None:
    fake = tmp_path / "fake"
    fake.write_text(FAKE, encoding="utf-8")
    fake.chmod(0o755)
    project = tmp_path / "project"
    project.mkdir()
    setting = adapters.get(name).setting
    extra = {"FTAGENT_TOKEN": gateway.token or "", **dict.fromkeys(SECRETS, "real-key")}
    if setting:
        extra[f"FTAGENT_{setting.upper()}"] = str(fake)
    words = ("--", "--resume") if setting else ("--", str(fake), "{task}", "--resume")
    done = ftagent(
        *("run", name, "--engine", gateway.url, "-p", "do it", *words), directory=project, extra=extra
    )
    assert done.returncode == 7, done.stderr
    assert f"{name} works unattended" in done.stderr
    seen = (project / "env.txt").read_text("utf-8")
    assert "real-key" not in seen
    assert gateway.url in seen + (project / "words.txt").read_text("utf-8") + told_in_files(project)
    assert {"--resume", "do it"} <= set((project / "words.txt").read_text("utf-8").split("\n"))


def told_in_files(project: Path) -> str:
    """What the agent's own directory holds after the run."""
    state = project / "home" / ".local" / "state" / "ftagent" / "agents"
    return "".join(path.read_text("utf-8") for path in state.rglob("*") if path.is_file())


def test_an_unknown_agent_is_answered_with_the_list(tmp_path: Path) -> None:
    done = ftagent("run", "claud", "-p", "x", directory=tmp_path)
    assert done.returncode == 2
    assert (
        "did you mean claude-code? known agents: claude-code, codex, opencode, pi, qwen-code" in done.stderr
    )
