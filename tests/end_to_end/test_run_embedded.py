"""The real clients on the embedded model, headless: the effect on disk and the exit code decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.agents import AGENTS, TASKS, Agent, Task, needs_client, scratch_repository
from tests.support.command import ftagent
from tests.support.embedded import WEIGHTS

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not WEIGHTS.exists(),
        reason="the embedded model's weights are not here",
    ),
]


@needs_client
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_embedded_model_does_a_task_in_claude_code(task: Task, tmp_path: Path) -> None:
    _does(task, tmp_path)


@needs_client
def test_it_works_behind_the_clients_whole_prompt(tmp_path: Path) -> None:
    """Every tool offered, as plain users run the client: about 16,000 tokens of this vocabulary."""
    _does(TASKS[0], tmp_path, "--no-lean")


def other_case(agent: Agent, task: Task) -> object:
    marks = [pytest.mark.skipif(agent.found is None, reason=f"{agent.name} (npm) is not installed")]
    if (agent.name, task.name) == ("codex", "create"):
        reason = "the model takes write_stdin, which Codex always offers, for a tool that writes files"
        marks.append(pytest.mark.xfail(reason=reason, strict=True))
    return pytest.param(agent, task, id=f"{agent.name}-{task.name}", marks=marks)


@pytest.mark.parametrize(
    ("agent", "task"), [other_case(agent, task) for agent in AGENTS[1:] for task in TASKS]
)
def test_it_does_tasks_in_other_clients(agent: Agent, task: Task, tmp_path: Path) -> None:
    _does(task, tmp_path, agent=agent)


def _does(task: Task, directory: Path, *flags: str, agent: Agent = AGENTS[0]) -> None:
    project = scratch_repository(directory)
    assert agent.found
    arguments = ("run", agent.name, "-p", task.prompt, "--timeout", "500", *flags)
    extra = {agent.variable: agent.found, "OMP_NUM_THREADS": "2"}
    done = ftagent(*arguments, directory=project, extra=extra, timeout_s=560)
    assert done.returncode == 0, done.stderr
    assert task.done(project, done.stdout), done.stdout
