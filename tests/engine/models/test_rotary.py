"""Stretched rotary frequencies against transformers' own functions, for released configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ftagent.engine.models.registry import model_config
from ftagent.engine.models.rotary import frequencies
from ftagent.errors import LoadFailed
from tests.engine.models.test_published import RELEASES

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama3": {},
    "yarn": {"rope_scaling": YARN},
    "yarn, context given outside": {
        "rope_scaling": {"rope_type": "yarn", "factor": 16.0},
        "original_max_position_embeddings": 8192,
    },
    "yarn, an amplitude": {"rope_scaling": {**YARN, "attention_factor": 0.8}},
    "yarn, other borders": {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False}},
}


def written(directory: Path, values: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(values))
    return directory


@pytest.mark.parametrize("name", CASES)
def test_llama_with_each_kind(name: str, tmp_path: Path) -> None:
    values = {**RELEASES["Llama-3.1-8B"].values, **CASES[name]}
    rotary = model_config(written(tmp_path, values)).rotary
    theirs: Any = transformers.LlamaConfig(**values)
    kind = theirs.rope_parameters["rope_type"]
    expected, amplitude = ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    torch.testing.assert_close(frequencies(*rotary), expected, rtol=1e-6, atol=0)
    assert rotary.scaling is not None
    assert rotary.scaling.amplitude == pytest.approx(amplitude)


def test_deepseek_as_released(tmp_path: Path) -> None:
    """Cos and sin stay as they are; the scores grow instead."""
    values = RELEASES["DeepSeek-V3"].values
    config = model_config(written(tmp_path, values))
    expected, amplitude = ROPE_INIT_FUNCTIONS["yarn"](transformers.DeepseekV3Config(**values), None)
    torch.testing.assert_close(frequencies(*config.rotary), expected, rtol=1e-6, atol=0)
    assert config.rotary.scaling is not None
    assert config.rotary.scaling.amplitude == pytest.approx(amplitude) == 1
    assert config.score_scale == pytest.approx(1.8738, abs=1e-4)  # (0.1 ln 40 + 1) squared


@pytest.mark.parametrize(("name", "size"), [("GLM-4.5", 64), ("MiniMax-M2", 64), ("Qwen3-Next-80B-A3B", 64)])
def test_only_a_share_of_a_head_is_turned(name: str, size: int, tmp_path: Path) -> None:
    config = model_config(written(tmp_path, RELEASES[name].values))
    assert (config.rotary.size, config.rotary.scaling) == (size, None)
    assert config.rotary.theta == RELEASES[name].values["rope_theta"]


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "su", 3])
def test_other_kinds_are_refused(kind: object, tmp_path: Path) -> None:
    values = {**RELEASES["Llama-3.1-8B"].values, "rope_scaling": {"rope_type": kind, "factor": 2.0}}
    with pytest.raises(LoadFailed, match="rope_type"):
        model_config(written(tmp_path, values))
