"""Families whose layers the kernels know: the device's whole step against transformers, as in test_twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.options import Mode
from tests.engine.device.test_twin import SMALL, TOKENS, worst
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options

CASES: list[tuple[str, Mode, str | None, dict[str, Any]]] = [
    ("qwen3", "auto", None, {"tie_word_embeddings": True}),
    ("llama", "auto", None, {}),
    ("mistral", "auto", None, {}),
    ("mistral", "auto", None, {"sliding_window": 64}),
    ("qwen3_5", "auto", None, {"full_attention_interval": 2}),
    ("qwen2", "auto", None, {}),
    ("mixtral", "hybrid", "4", {}),
    ("qwen2_moe", "hybrid", "4", {}),
    ("qwen3_next", "hybrid", "4", {"linear_num_value_heads": 4, "linear_num_key_heads": 2}),
    ("qwen3_next", "fused", None, {"mlp_only_layers": [0], "intermediate_size": 40}),
]


@pytest.mark.parametrize(("family", "mode", "experts", "changes"), CASES)
def test_logits_are_the_oracles(
    family: str,
    mode: Mode,
    experts: str | None,
    changes: dict[str, Any],
    tmp_path: Path,
    device: torch.device,
) -> None:
    if "next" not in family:
        changes = {**changes, "num_hidden_layers": 2, "initializer_range": 0.1}
    else:
        changes = {**SMALL, **changes}
    oracle = Oracle(family, tmp_path, 3, changes)
    tokens = oracle.tokens(TOKENS)
    expected = oracle.logits(tokens)
    runner = load_on(device, tmp_path, twin_options(mode, experts), torch.float32)
    try:
        assert worst(runner, tokens, expected) < 2e-4
        assert (runner.experts is None) == (family not in ("mixtral", "qwen2_moe", "qwen3_next"))
        if runner.experts is not None:
            runner.experts.check_integrity()
            assert "way of prompts" not in (runner.experts.stats().mode_reason or "")
    finally:
        runner.close()
