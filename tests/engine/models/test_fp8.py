"""FP8 checkpoints, in both expert layouts and under both prefixes, against the plain values of the same
tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle

BIG: dict[str, Any] = {
    "hidden_size": 160,
    "moe_intermediate_size": 144,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}
BIG |= {"initializer_range": 0.05}


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 with one scale for each 128 x 128 block, block by block: [out, in] and its grid."""
    rows, columns = weight.shape
    grid = torch.empty(-(-rows // 128), -(-columns // 128))
    stored = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            place = (slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128))
            grid[i, j] = weight[place].abs().max() / 448
            stored[place] = (weight[place] / grid[i, j]).to(torch.float8_e4m3fn)
    return stored, grid


def plain(stored: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    values = stored.float()
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            values[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128] *= grid[i, j].float()
    return values


def rewrite(directory: Path, stacked: bool, prefix: str, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Quantise every projection of a checkpoint in place; returns the plain values under their old names."""
    tensors = load_file(directory / "model.safetensors")
    values: dict[str, torch.Tensor] = {}
    written: dict[str, torch.Tensor] = {"mtp.fc.weight": torch.zeros(2, 2), "model.visual.x": torch.zeros(1)}
    for name, tensor in tensors.items():
        new = name.replace("model.", prefix, 1) if name.startswith("model.") else name
        if (
            tensor.dim() == 2
            and ("proj" in name)
            and not name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
        ):
            stored, grid = quantise(tensor)
            grid = grid.to(scale_dtype)
            values[name] = plain(stored, grid)
            written[new], written[new + "_scale_inv"] = stored, grid
        elif tensor.dim() == 3 and "experts" in name:
            pairs = [quantise(matrix) for matrix in tensor]
            pairs = [(stored, grid.to(scale_dtype)) for stored, grid in pairs]
            values[name] = torch.stack([plain(*pair) for pair in pairs])
            written[new] = torch.stack([stored for stored, _ in pairs])
            written[new + "_scale_inv"] = torch.stack([grid for _, grid in pairs])
        else:
            values[name] = written[new] = tensor
    assert stacked == any(name.endswith("experts.gate_up_proj") for name in written)
    save_file(written, directory / "model.safetensors")
    return values


def stack_experts(directory: Path) -> None:
    """Turn per-expert tensors into the stacked layout."""
    tensors = load_file(directory / "model.safetensors")
    for stem in {name.split(".experts.")[0] + ".experts" for name in tensors if ".experts.0." in name}:
        count = sum(name.startswith(stem) and name.endswith("down_proj.weight") for name in tensors)
        parts = [
            {part: tensors.pop(f"{stem}.{expert}.{part}_proj.weight") for part in ("gate", "up", "down")}
            for expert in range(count)
        ]
        tensors[f"{stem}.gate_up_proj"] = torch.stack([torch.cat((p["gate"], p["up"])) for p in parts])
        tensors[f"{stem}.down_proj"] = torch.stack([p["down"] for p in parts])
    save_file(tensors, directory / "model.safetensors")


def is_stacked(directory: Path) -> bool:
    return any(name.endswith("gate_up_proj") for name in load_file(directory / "model.safetensors"))


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_fp8_equals_its_plain_values(
    stacked: bool, prefix: str, scale_dtype: torch.dtype, tmp_path: Path
) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 0, BIG)
    if stacked and not is_stacked(tmp_path):
        stack_experts(tmp_path)
    values = rewrite(tmp_path, stacked, prefix, scale_dtype)
    state = oracle.model.state_dict()
    for name, value in values.items():
        if name in state:
            state[name].copy_(value)
        elif ".experts." in name:
            stem, expert, part = name.split(".experts.")[0], *name.split(".experts.")[1].split(".")[:2]
            half = BIG["moe_intermediate_size"]
            place = {"gate_proj": slice(0, half), "up_proj": slice(half, None), "down_proj": slice(None)}[
                part
            ]
            kind = "down_proj" if part == "down_proj" else "gate_up_proj"
            state[f"{stem}.experts.{kind}"][int(expert), place].copy_(value)
    tokens = oracle.tokens(60)
    expected = oracle.logits(tokens)
    for mode, experts in (("fused", None), ("offload", "3"), ("cpu", None)):
        runner = load_runner(tmp_path, EngineOptions(mode=mode, experts=experts))  # type: ignore[arg-type]
        for position, logits in logits_by_chunks(runner, tokens, [40]).items():
            torch.testing.assert_close(logits, expected[position], rtol=0, atol=1e-4)
        assert runner.experts is not None
        runner.experts.check_integrity()


def test_transformers_reads_the_same_values() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    stored, grid = quantise(torch.randn(256, 384))
    reader: Any = Fp8Dequantize
    theirs = reader(None)._dequantize_one(stored, grid, torch.float32)
    assert torch.equal(theirs, plain(stored, grid))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_are_read_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 0, {})
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    for parameter in oracle.model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    tokens = oracle.tokens(30)
    found = logits_by_chunks(load_runner(tmp_path, EngineOptions()), tokens, [30])
    torch.testing.assert_close(found[29], oracle.logits(tokens)[29], rtol=0, atol=1e-4)


def test_bfloat16_compute_stays_near_float32(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_5_moe", tmp_path, 0, {"initializer_range": 0.05, "num_experts_per_tok": 8})
    tokens = oracle.tokens(80)
    expected = oracle.logits(tokens)
    found = logits_by_chunks(load_runner(tmp_path, EngineOptions(), dtype=torch.bfloat16), tokens, [70])
    for position, logits in found.items():
        error = (logits - expected[position]).norm() / expected[position].norm()
        assert float(error) < 0.1
