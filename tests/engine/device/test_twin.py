"""The device's whole step against transformers: prefill, decode chain, conductor, in every mode.

Without a GPU the same code runs on CPU tensors by Triton's interpreter, with a loopback link.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.options import EngineOptions, Mode
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on

SIZES = [9, 2]  # a prompt and a suffix; the rest is decoded
TOKENS = 14
CASES: list[tuple[Mode, str | None]] = [
    ("fused", None),
    ("offload", "5"),
    ("hybrid", "4"),
    ("hybrid", "0.5"),
    ("cpu", "1"),
    ("auto", "7"),
]


def options(mode: Mode, experts: str | None, **more: int) -> EngineOptions:
    return EngineOptions(mode=mode, experts=experts, context=128, threads=1, max_running=2, **more)  # type: ignore[arg-type]


def worst(runner: DeviceRunner, tokens: Sequence[int], expected: torch.Tensor) -> float:
    """Largest distance to the oracle's logits at the positions that are computed."""
    found = logits_by_chunks(runner, tokens, SIZES)
    return max(float((row.cpu() - expected[position]).abs().max()) for position, row in found.items())


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe"])
@pytest.mark.parametrize(("mode", "experts"), CASES)
def test_every_mode_gives_the_oracles_logits(
    family: str, mode: Mode, experts: str | None, tmp_path: Path, device: torch.device
) -> None:
    oracle = Oracle(family, tmp_path, 3, {"initializer_range": 0.1})
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, options(mode, experts), torch.float32)
    try:
        assert worst(runner, tokens, expected) < 2e-4
        assert runner.experts is not None
        runner.experts.check_integrity()
        stats = runner.experts.stats()
        assert stats.hits + stats.misses > 0
        assert (stats.misses == 0) == (mode == "fused")
    finally:
        runner.close()
