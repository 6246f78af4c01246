"""The real Claude Code on the embedded model, headless: the effect on disk and the exit code decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftagent import demo
from tests.end_to_end.agents import CLIENT, TASKS, Task, needs_client, scratch_repository
from tests.support.command import ftagent

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_client,
    pytest.mark.skipif(
        not (demo.directory() / "model.safetensors").exists(),
        reason="the embedded model's weights are not here",
    ),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_embedded_model_does_a_task_in_claude_code(task: Task, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    assert CLIENT
    done = ftagent(
        "run",
        "claude-code",
        "-p",
        task.prompt,
        "--timeout",
        "500",
        directory=project,
        extra={"FTAGENT_CLAUDE": CLIENT, "OMP_NUM_THREADS": "2"},
        timeout_s=560,
    )
    assert done.returncode == 0, done.stderr
    assert task.done(project, done.stdout), done.stdout
