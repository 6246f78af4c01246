"""The real Claude Code, headless, on a scripted engine: the whole loop of a tool call over the wire.

Needs `claude` on PATH, or its path in FTAGENT_CLAUDE.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ftagent.conversation import Conversation, Thinking, ToolCall, ToolResult
from ftagent.engine.api import GenerateRequest
from ftagent.errors import PromptTooLong
from ftagent.events import Failed, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from tests.gateway.stage import TOKEN, Stage, done, staged
from tests.support.scripted import Script

CLAUDE = os.environ.get("FTAGENT_CLAUDE") or shutil.which("claude")
pytestmark = [pytest.mark.agent, pytest.mark.skipif(CLAUDE is None, reason="Claude Code is not installed")]


def run_claude(stage: Stage, home: Path, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One headless run with an environment and a configuration of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "ANTHROPIC_BASE_URL": stage.gateway.url,
        "ANTHROPIC_API_KEY": TOKEN,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    assert CLAUDE is not None
    command = [CLAUDE, "--model", "ftagent-1", "--dangerously-skip-permissions", *arguments]
    return subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def conversations(requests: Sequence[GenerateRequest]) -> list[Conversation]:
    return [request.prompt for request in requests if isinstance(request.prompt, Conversation)]


def results_in(conversation: Conversation) -> list[ToolResult]:
    return [
        block
        for message in conversation.messages
        for block in message.blocks
        if isinstance(block, ToolResult)
    ]


def write_then_close(path: Path, words: str) -> Callable[[GenerateRequest], Script]:
    arguments = json.dumps({"file_path": str(path), "content": words})

    def script(request: GenerateRequest) -> Script:
        assert isinstance(request.prompt, Conversation)
        if results_in(request.prompt) or not request.prompt.tools:
            return [ThinkingDelta("It is there."), TextDelta("The file is written."), done()]
        return [
            ThinkingDelta("A file is wanted."),
            TextDelta("I write it."),
            ToolCallStart(0, "call_write", "Write"),
            ToolCallDelta(0, arguments[:25]),
            ToolCallDelta(0, arguments[25:]),
            ToolCallEnd(0),
            done("tool_calls"),
        ]

    return script


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A home for the agent and a directory to work in."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    return home, work


def test_a_file_is_written(places: tuple[Path, Path]) -> None:
    home, work = places
    words = "hello\n  indented\n"
    with staged() as stage:
        stage.scripts[:] = [write_then_close(work / "notes.txt", words)]
        ended = run_claude(stage, home, work, "-p", "Create notes.txt", "--output-format", "json")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert (work / "notes.txt").read_text() == words
        told = json.loads(ended.stdout)
        assert told["result"] == "The file is written."
        assert told["usage"]["cache_read_input_tokens"] == 1800  # two requests of 900 each
        first, last = conversations(stage.engine.requests)
        assert last.messages[: len(first.messages)] == first.messages
        [assistant] = [message for message in last.messages if message.role == "assistant"]
        assert [type(block) for block in assistant.blocks if isinstance(block, Thinking | ToolCall)] == [
            Thinking,
            ToolCall,
        ]
        [result] = results_in(last)
        assert (result.call_id, result.is_error) == ("call_write", False)
        assert {request.session for request in stage.engine.requests} != {""}


def test_a_prompt_that_is_too_long_starts_compaction(places: tuple[Path, Path]) -> None:
    home, work = places
    with staged() as stage:
        write = write_then_close(work / "notes.txt", "hello\n")
        refusals = iter([PromptTooLong(70000, 65536)])

        def script(request: GenerateRequest) -> Script:
            assert isinstance(request.prompt, Conversation)
            if not results_in(request.prompt):
                return write(request)
            refusal = next(refusals, None)
            return [refusal] if refusal else [TextDelta("<summary>The file is there.</summary>"), done()]

        stage.scripts[:] = [script]
        ended = run_claude(stage, home, work, "-p", "Create notes.txt")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        asked = conversations(stage.engine.requests)
        assert len(asked) >= 3
        assert "summary" in asked[2].messages[-1].text


def test_a_fault_in_the_middle_is_asked_again(places: tuple[Path, Path]) -> None:
    home, work = places
    with staged() as stage:
        faults = iter([Failed("the device was lost")])

        def script(request: GenerateRequest) -> Script:
            fault = next(faults, None)
            return [ThinkingDelta("hm"), fault] if fault else [TextDelta("All is well."), done()]

        stage.scripts[:] = [script]
        ended = run_claude(stage, home, work, "-p", "Say hello")
        assert (ended.returncode, ended.stdout.strip()) == (0, "All is well."), ended.stderr
        first, second = conversations(stage.engine.requests)
        assert first == second
