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
    _does(task, tmp_path)


def test_it_works_behind_the_clients_whole_prompt(tmp_path: Path) -> None:
    """Every tool offered, as plain users run the client: about 16,000 tokens of this vocabulary."""
    _does(TASKS[0], tmp_path, "--no-lean")


def _does(task: Task, directory: Path, *flags: str) -> None:
    project = scratch_repository(directory)
    assert CLIENT
    arguments = ("run", "claude-code", "-p", task.prompt, "--timeout", "500", *flags)
    extra = {"FTAGENT_CLAUDE": CLIENT, "OMP_NUM_THREADS": "2"}
    done = ftagent(*arguments, directory=project, extra=extra, timeout_s=560)
    assert done.returncode == 0, done.stderr
    assert task.done(project, done.stdout), done.stdout
