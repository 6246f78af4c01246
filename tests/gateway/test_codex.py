"""The real Codex, headless, on a scripted engine: what the Responses protocol has to do for it.

Needs `codex` on PATH, or its path in FTAGENT_CODEX.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.codex import ADAPTER
from ftagent.conversation import Conversation, Thinking, ToolCall
from ftagent.engine.api import GenerateRequest
from ftagent.events import Event, Failed, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from ftagent.gateway.reply import Timing
from tests.gateway.stage import TOKEN, Stage, done, staged
from tests.gateway.test_claude_code import conversations, results_in
from tests.support.scripted import Script

CODEX = os.environ.get("FTAGENT_CODEX") or shutil.which("codex")
pytestmark = [
    pytest.mark.agent,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CODEX is None, reason="Codex is not installed"),
]

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+  hello\n*** End Patch\n"
# An id that Codex knows: only then it offers its free-form tool, and searches among tools itself.
KNOWN = ("-m", "gpt-5.5")


def run_codex(stage: Stage, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One headless run of the adapter's command line in `directory`, with a home beside it."""
    assert CODEX is not None
    home = directory.parent / "home"
    home.mkdir(exist_ok=True)
    target = Target(stage.gateway.url, TOKEN, "ftagent-1", 65536)
    order = Order((CODEX,), target, home, directory, "Do it.", unattended=True, arguments=arguments)
    launch = ADAPTER.prepare(order)
    return subprocess.run(
        launch.arguments,
        cwd=directory,
        env={"PATH": os.environ["PATH"], **launch.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def calling(name: str, arguments: dict[str, Any]) -> list[Event]:
    text = json.dumps(arguments)
    return [
        ThinkingDelta("A tool is wanted."),
        ToolCallStart(0, "call_1", name),
        ToolCallDelta(0, text[:9]),
        ToolCallDelta(0, text[9:]),
        ToolCallEnd(0),
        done("tool_calls"),
    ]


def once(events: list[Event]) -> Any:
    """A script that says `events` first, and ends the turn when results are there."""

    def script(request: GenerateRequest) -> Script:
        assert isinstance(request.prompt, Conversation)
        return [TextDelta("All done."), done()] if results_in(request.prompt) else events

    return script


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def test_a_patch_is_applied(work: Path) -> None:
    with staged() as stage:
        stage.scripts[:] = [once(calling("apply_patch", {"input": PATCH}))]
        ended = run_codex(stage, work, *KNOWN)
        assert ended.returncode == 0, ended.stderr
        assert (work / "new.txt").read_text("utf-8") == "  hello\n"
        last = conversations(stage.engine.requests)[-1]
        blocks = [block for message in last.messages for block in message.blocks]
        assert ToolCall("call_1", "apply_patch", {"input": PATCH}) in blocks
        assert Thinking("A tool is wanted.") in blocks, "reasoning comes back as it was sent"


def test_a_tool_that_is_searched_for_stands_behind_the_others(work: Path) -> None:
    with staged() as stage:
        stage.scripts[:] = [once(calling("tool_search", {"query": "spawn agent", "limit": 2}))]
        ended = run_codex(stage, work, *KNOWN)
        assert ended.returncode == 0, ended.stderr
        first, last = conversations(stage.engine.requests)
        assert "multi_agent_v1__spawn_agent" not in {tool.name for tool in first.tools}
        assert last.tools[: len(first.tools)] == first.tools
        assert "multi_agent_v1__spawn_agent" in {tool.name for tool in last.tools[len(first.tools) :]}


def test_a_quiet_prefill_is_waited_for(work: Path) -> None:
    """Three times as long as the client bears silence; its own default is five minutes."""
    patience = ("-c", "model_providers.ftagent.stream_idle_timeout_ms=1500")
    no_second_try = ("-c", "model_providers.ftagent.stream_max_retries=0")
    with staged(Timing(keepalive=0.3, admission=0.2)) as stage:
        stage.play([4.5, TextDelta("All done."), done()])
        ended = run_codex(stage, work, *patience, *no_second_try)
        assert (ended.returncode, ended.stdout.strip()) == (0, "All done."), ended.stderr
        assert len(stage.engine.requests) == 1


def test_a_fault_in_the_middle_is_asked_again(work: Path) -> None:
    with staged() as stage:
        faults = iter([Failed("the device was lost")])

        def script(request: GenerateRequest) -> Script:
            fault = next(faults, None)
            return [ThinkingDelta("hm"), fault] if fault else [TextDelta("All is well."), done()]

        stage.scripts[:] = [script]
        ended = run_codex(stage, work)
        assert (ended.returncode, ended.stdout.strip()) == (0, "All is well."), ended.stderr
        first, second = conversations(stage.engine.requests)
        assert [message.text for message in second.messages] == [message.text for message in first.messages]
