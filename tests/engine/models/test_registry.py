"""Which families there are, and what is said of one that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.load import open_model
from ftagent.engine.models.registry import FAMILIES, model_config
from ftagent.engine.options import EngineOptions
from ftagent.errors import ConfigError, LoadFailed
from tests.engine.models.tiny import Oracle

KNOWN = [name for family in FAMILIES for name in family.MODEL_TYPES]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "models.md"


def test_no_model_type_is_claimed_twice() -> None:
    assert len(KNOWN) == len(set(KNOWN))


@pytest.mark.parametrize("model_type", ["gpt2", "qwen4", "", None, 7, "GPT_OSS"])
def test_an_unknown_family_is_refused_with_the_known_ones(model_type: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(LoadFailed) as refused:
        model_config(tmp_path)
    message = str(refused.value)
    assert repr(model_type) in message
    assert str(tmp_path / "config.json") in message
    assert all(name in message for name in KNOWN)
    assert "\n" not in message


def test_every_family_has_its_row_in_the_documentation() -> None:
    table, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## ")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    cells = [row.split("|")[1] for row in rows]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell) if name != "model_type"]
    assert sorted(named) == sorted(KNOWN)


def test_the_tests_that_the_documentation_names_are_there() -> None:
    tests = PAGE.parents[1] / "tests"
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert named
    places = (tests, tests / "engine")
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


def test_layers_within_a_window_need_a_family_that_has_them(tmp_path: Path) -> None:
    kinds = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", **kinds}))
    with pytest.raises(LoadFailed, match="layers of qwen3_moe with sliding_attention are not supported"):
        model_config(tmp_path)


def test_gpt_oss_as_released(tmp_path: Path) -> None:
    """The configuration of the 20b, its sizes as OpenAI states them."""
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "num_local_experts": 32,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = model_config(tmp_path)
    assert found.layers.count("sliding_attention") == found.layers.count("full_attention") == 12
    assert found.layers[0] == "sliding_attention"
    assert (found.window, found.experts_per_token, found.context) == (128, 4, 131072)
    assert found.rotary.scaling is not None
    assert found.rotary.scaling.amplitude == pytest.approx(1.34657, abs=1e-5)
    del config["rope_scaling"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_config(tmp_path).rotary == found.rotary


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 12}, "attention heads of 12"),
        ({"head_dim": 264}, "attention heads of 264"),
        ({"num_attention_heads": 34, "num_key_value_heads": 2}, "17 query heads on a KV head"),
    ],
)
def test_a_gpu_is_refused_with_the_reason_before_a_weight_is_read(
    changes: dict[str, int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftagent.engine.load.choose_device", lambda asked, weights: torch.device("cuda", 0))
    Oracle("llama", tmp_path, 0, {"num_hidden_layers": 1, "hidden_size": 68, **changes})
    assert open_model(tmp_path, EngineOptions(device="auto")).device.type == "cpu"
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ConfigError, match=f"llama does not run on a GPU yet.*{reason}.*--device cpu"):
        open_model(tmp_path, EngineOptions(device="cuda:0"))


@pytest.mark.parametrize("heads", [1, 2, 15, 16, 17, 32])
@pytest.mark.parametrize("head_dim", [8, 16, 20, 24, 128, 256, 264])
def test_what_is_refused_is_what_the_kernels_refuse(heads: int, head_dim: int, tmp_path: Path) -> None:
    shape = {"num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": head_dim}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **shape}))
    refused = model_config(tmp_path).cpu_only
    try:
        AttentionSpec(heads, 1, head_dim, head_dim, 1.0, 1e-6, False)
    except ValueError:
        assert refused is not None
    else:
        assert refused is None
