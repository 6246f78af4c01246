"""Decode chains of families with windows, sinks and biases: against transformers, as in test_twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.options import Mode
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options

WINDOW = 64
SIZES = [4, 1, 1, WINDOW - 3, 1]  # decode steps before the window is full, at its border and behind it
TOKENS = WINDOW + 9
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.1, "sliding_window": WINDOW}
Case = tuple[str, Mode, str | None, dict[str, Any]]
CASES: list[Case] = [
    ("gpt_oss", "fused", None, SMALL),
    ("gpt_oss", "hybrid", "4", {**SMALL, "swiglu_limit": 0.7}),
]
SLOW: list[Case] = [
    ("gpt_oss", "offload", "5", {**SMALL, "attention_bias": False}),
    ("gpt_oss", "cpu", "1", SMALL),
    ("llama", "auto", None, {"attention_bias": True, "num_hidden_layers": 2, "initializer_range": 0.1}),
]


@pytest.mark.parametrize(
    ("family", "mode", "experts", "changes"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_logits_are_the_oracles(
    family: str,
    mode: Mode,
    experts: str | None,
    changes: dict[str, Any],
    tmp_path: Path,
    device: torch.device,
) -> None:
    oracle = Oracle(family, tmp_path, 3, changes)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options(mode, experts), torch.float32)
    try:
        for position, row in logits_by_chunks(runner, tokens, SIZES).items():
            assert float((row.cpu() - expected[position]).abs().max()) < 2e-4, position
        if runner.experts is not None:
            runner.experts.check_integrity()
            stats = runner.experts.stats()
            assert "way of prompts" not in (stats.mode_reason or "")
            assert (stats.misses == 0) == (mode == "fused")
    finally:
        runner.close()
