"""The real Claude Code, three tasks in one directory one after the other: the later ones cost what is new.

Counted is what the protocol's own usage fields say, as the client adds them up in its last event.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.agents import CLIENT, TASKS, Task, needs_client, scratch_repository
from tests.end_to_end.test_serve import serving
from tests.support.command import ftagent
from tests.support.embedded import WEIGHTS

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_client,
    pytest.mark.skipif(
        not WEIGHTS.exists(),
        reason="the embedded model's weights are not here",
    ),
]
SHARE = 0.9  # of all prompt tokens of a task, from the second task on


@pytest.mark.parametrize("lean", ["--lean", "--no-lean"])
def test_on_one_engine(lean: str, tmp_path: Path) -> None:
    project = scratch_repository(tmp_path)
    with serving(tmp_path) as (_, ready):
        more = {"FTAGENT_TOKEN": ready["token"]}
        shares = [_share(task, project, more, lean, "--engine", ready["url"]) for task in TASKS]
    assert shares[0] > 0.4, "the second request of the first task"
    assert min(shares[1:]) >= SHARE, shares


def test_in_three_processes(tmp_path: Path) -> None:
    """Each loads the model anew: what was kept is in files."""
    project = scratch_repository(tmp_path)
    shares = [_share(task, project, {}) for task in TASKS]
    assert min(shares[1:]) >= SHARE, shares


def _share(task: Task, project: Path, more: dict[str, str], *flags: str) -> float:
    """Do a task, and say how much of its prompts was not computed."""
    assert CLIENT
    home = project.parent / "users"
    home.mkdir(exist_ok=True)
    extra = {"FTAGENT_CLAUDE": CLIENT, "OMP_NUM_THREADS": "2", "HOME": str(home), **more}
    arguments = ("run", "claude-code", "-p", task.prompt, "--json", *flags)
    done = ftagent(*arguments, directory=project, extra=extra, timeout_s=300)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.split("\n") if line]
    last: dict[str, Any] = [event["event"] for event in events if event["type"] == "agent"][-1]
    assert task.done(project, str(last["result"])), last
    usage = last["usage"]
    cached = usage["cache_read_input_tokens"]
    found: float = cached / (cached + usage["input_tokens"] + usage["cache_creation_input_tokens"])
    return found
