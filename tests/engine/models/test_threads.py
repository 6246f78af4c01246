"""How many threads a step takes, and that it leaves the process's setting alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from ftagent.engine.runner import Runner
from tests.engine.models.driving import Request
from tests.engine.models.tiny import Oracle


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_short_decode_steps_take_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle("qwen3_moe", tmp_path, 0, {})
    torch.set_num_threads(2)
    runner = load_runner(tmp_path, EngineOptions())
    assert isinstance(runner, Runner)
    seen: list[int] = []
    forward = runner._model.forward

    def spy(chunks: Sequence[Chunk]) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return forward(chunks)

    monkeypatch.setattr(runner._model, "forward", spy)
    request = Request(runner)
    request.feed([1, 2, 3])
    request.feed([4])
    assert seen == [2, 1]
    assert torch.get_num_threads() == 2


def test_waiting_threads_spin_briefly_and_children_do_not_inherit_the_setting(tmp_path: Path) -> None:
    Oracle("qwen3_moe", tmp_path, 0, {"num_hidden_layers": 1})
    program = (
        "import os, sys; import ftagent.engine; assert int(os.environ['GOMP_SPINCOUNT']) < 100000\n"
        "from pathlib import Path; from ftagent.engine.load import load_runner\n"
        "from ftagent.engine.options import EngineOptions; load_runner(Path(sys.argv[1]), EngineOptions())\n"
        "assert 'GOMP_SPINCOUNT' not in os.environ"
    )
    environment = {
        key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60, env=environment)
