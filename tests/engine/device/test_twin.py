"""The device's whole step against transformers: prefill, decode chain, conductor, in every mode.

Without a GPU the same code runs on CPU tensors by Triton's interpreter, with a loopback link: few cases of a
small model. What takes a real device stands in test_runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ftagent.engine.options import Mode
from ftagent.engine.steps import LoadedModel
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options

SIZES = [5, 2]  # a prompt and a suffix; the rest is decoded
TOKENS = 10
SMALL = {"num_hidden_layers": 2, "full_attention_interval": 2, "initializer_range": 0.1}
CASES: list[tuple[str, Mode, str | None]] = [
    ("qwen3_moe", "fused", None),
    ("qwen3_moe", "offload", "5"),
    ("qwen3_moe", "hybrid", "4"),
    ("qwen3_5_moe", "hybrid", "4"),
]
SLOW: list[tuple[str, Mode, str | None]] = [
    ("qwen3_moe", "hybrid", "0.5"),
    ("qwen3_moe", "cpu", "1"),
    ("qwen3_moe", "auto", "7"),
    ("qwen3_5_moe", "fused", None),
    ("qwen3_5_moe", "offload", "5"),
    ("qwen3_5_moe", "cpu", "1"),
]


def worst(runner: LoadedModel, tokens: Sequence[int], expected: torch.Tensor) -> float:
    """Largest distance to the oracle's logits at the positions that are computed."""
    found = logits_by_chunks(runner, tokens, SIZES)
    return max(float((row.cpu() - expected[position]).abs().max()) for position, row in found.items())


@pytest.mark.parametrize(
    ("family", "mode", "experts"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_every_mode_gives_the_oracles_logits(
    family: str, mode: Mode, experts: str | None, tmp_path: Path, device: torch.device
) -> None:
    oracle = Oracle(family, tmp_path, 3, SMALL)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options(mode, experts), torch.float32)
    try:
        assert worst(runner, tokens, expected) < 2e-4
        assert runner.experts is not None
        runner.experts.check_integrity()
        stats = runner.experts.stats()
        assert stats.hits + stats.misses > 0
        assert (stats.misses == 0) == (mode == "fused")
    finally:
        runner.close()
