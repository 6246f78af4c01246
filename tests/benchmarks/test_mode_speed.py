"""The contest of modes runs on a device's twin too: every mode has its turns, and counts what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import mode_speed
from ftagent.engine.options import Mode
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options


@pytest.mark.slow
def test_every_mode_has_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TURN": 3, "SETTLE": 1, "BEHIND": 9}.items():
        monkeypatch.setattr(mode_speed, name, value)
    Oracle("qwen3_moe", tmp_path, 2, {"num_hidden_layers": 2})
    runner = load_on(torch.device("cpu"), tmp_path, twin_options("hybrid", "0.3"), torch.float32)
    modes: list[Mode] = ["hybrid", "offload", "cpu"]
    try:
        found = mode_speed.Contest(runner, list(range(5, 40))).run(modes, rounds=1)
    finally:
        runner.close()
    for times in found.values():
        assert len(times.seconds) == 2
        assert times.misses > 0
    assert found["offload"].bytes_cpu == 0 < found["offload"].bytes_link
    assert found["cpu"].bytes_cpu > 0
