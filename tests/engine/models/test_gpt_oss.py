"""gpt-oss against transformers, fp32, for prompts longer than the window; and its MXFP4 checkpoints against
the values of their bits.

At random weights of 0.2 the clamped experts are ill-conditioned: transformers' own float32 is as far as 1e-4
from its float64. Logits are held to 1e-4 at 0.1, and at 0.2 to a multiple of transformers' own error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftagent.engine.load import load_runner, open_model
from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.weights.formats import MXFP4
from ftagent.errors import LoadFailed
from tests.engine.models.driving import Request, logits_by_chunks
from tests.engine.models.test_logits import TOKENS, runs, worst
from tests.engine.models.tiny import Oracle
from tests.engine.weights.test_mxfp4 import exact

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "truncate": False}
CASES: list[dict[str, Any]] = [
    {},
    {"sliding_window": 1, "num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 72},
    {"sliding_window": 64, "num_local_experts": 5, "num_experts_per_tok": 1, "intermediate_size": 17},
    {"sliding_window": 300, "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 32},
    {"layer_types": ["sliding_attention"] * 4, "attention_bias": False, "num_experts_per_tok": 8},
    {
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
        "rope_parameters": {**YARN, "rope_theta": 1e4},
        "swiglu_limit": 0.7,
        "swiglu_alpha": 1.1,
        "rms_norm_eps": 1e-3,
        "vocab_size": 97,
    },
]
Reading = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PACKABLE = {"hidden_size": 96, "intermediate_size": 64, "num_local_experts": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize("case", range(len(CASES)))
def test_logits_equal_transformers(case: int, tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path, seed=case, changes={"initializer_range": 0.1, **CASES[case]})
    tokens = oracle.tokens(TOKENS, case)
    expected = oracle.logits(tokens)
    assert float(expected.std()) > 0.5, "the oracle's logits must be able to show a difference"
    for found in runs(tmp_path, tokens, case):
        assert worst(found, expected) <= 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_at_large_weights_it_is_as_near_to_float64_as_transformers(seed: int, tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path, seed=seed, changes={})
    tokens = oracle.tokens(TOKENS, seed)
    expected = oracle.logits(tokens)
    oracle.model.double()
    exact_logits = oracle.logits(tokens)
    theirs = float((expected - exact_logits).abs().max())
    for found in runs(tmp_path, tokens, seed):
        assert worst(found, exact_logits) <= 4 * theirs


def test_the_limit_is_reached_in_the_case_that_lowers_it(tmp_path: Path) -> None:
    """Else the case above would show nothing of it."""
    oracle = Oracle("gpt_oss", tmp_path, seed=5, changes=CASES[5])
    tokens = oracle.tokens(50)
    clamped = oracle.logits(tokens)
    for layer in oracle.model.model.layers:
        layer.mlp.experts.limit = 1e9
    assert float((oracle.logits(tokens) - clamped).abs().max()) > 0.1


def by_the_definition(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [E, out, in] of blocks [E, out, in / 32, 16]; slow."""
    pairs = zip(packed.flatten(2), scales, strict=True)
    return torch.stack([exact(*pair) for pair in pairs]).float()


def by_transformers(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    read: Any = convert_moe_packed_tensors
    values: torch.Tensor = read(packed, scales, dtype=torch.float32)
    return values.transpose(1, 2)


def pack(oracle: Oracle, seed: int, read: Reading = by_the_definition) -> None:
    """Give the model's experts random MXFP4 codes, in memory the values of their bits, and write the
    checkpoint as releases are: blocks [E, out, in / 32, 16] and scales.
    """
    torch.manual_seed(seed)
    file = oracle.directory / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        packed = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        size = 127 - round(math.log2(columns) / 2)  # values as wide as their number asks for
        scales = torch.randint(size - 3, size + 1, (experts, rows, columns // 32), dtype=torch.uint8)
        oracle.model.get_parameter(name).data.copy_(read(packed, scales).transpose(1, 2))
        tensors[name + "_blocks"], tensors[name + "_scales"] = packed, scales
    save_file(tensors, file)


@pytest.mark.parametrize(("mode", "experts"), [("fused", None), ("offload", "3"), ("cpu", None)])
def test_a_checkpoint_in_mxfp4_has_the_logits_of_its_values(
    mode: Mode, experts: str | None, tmp_path: Path
) -> None:
    oracle = Oracle("gpt_oss", tmp_path, 3, PACKABLE)
    pack(oracle, 3)
    tokens = oracle.tokens(60)
    expected = oracle.logits(tokens)
    runner = load_runner(tmp_path, EngineOptions(mode=mode, experts=experts))
    assert worst(logits_by_chunks(runner, tokens, [40]), expected) <= 1e-4
    assert runner.experts is not None
    runner.experts.check_integrity()


def test_the_same_bits_from_mxfp4_and_from_its_values_written_out(tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path / "packed", 4, PACKABLE)
    pack(oracle, 4)
    oracle.model.save_pretrained(tmp_path / "plain")
    tokens = oracle.tokens(60)
    packed, plain = (
        logits_by_chunks(load_runner(tmp_path / form, EngineOptions()), tokens, [40])
        for form in ("packed", "plain")
    )
    assert all(torch.equal(packed[position], plain[position]) for position in plain)


def test_transformers_reads_such_a_checkpoint_alike(tmp_path: Path) -> None:
    """The layout above is that of releases: transformers loads it to the same logits."""
    import transformers
    from transformers.utils.quantization_config import Mxfp4Config

    oracle = Oracle("gpt_oss", tmp_path, 5, PACKABLE)
    pack(oracle, 5)
    tokens = oracle.tokens(30)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    read: Any = transformers.GptOssForCausalLM.from_pretrained
    quantised: Any = Mxfp4Config
    theirs = read(tmp_path, dtype=torch.float32, quantization_config=quantised(dequantize=True))
    theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        found = theirs(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(found, oracle.logits(tokens), rtol=0, atol=1e-4)
    ours = logits_by_chunks(load_runner(tmp_path, EngineOptions()), tokens, [30])
    torch.testing.assert_close(ours[29], found[29], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_widths_of_the_20b(tmp_path: Path) -> None:
    """90 blocks to a row, 64 heads on 8, the released window and rotary embedding."""
    changes = {
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "initializer_range": 0.02,
    }
    oracle = Oracle("gpt_oss", tmp_path, 7, changes)
    pack(oracle, 7, by_transformers)
    tokens = oracle.tokens(300)
    expected = oracle.logits(tokens)
    runner = load_runner(tmp_path, EngineOptions(mode="cpu", context=512), dtype=torch.float32)
    assert float(expected.std()) > 0.5
    assert worst(logits_by_chunks(runner, tokens, [150, 140]), expected) <= 1e-4


def test_banks_keep_four_bits_and_window_layers_the_window(tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path, 0, {**PACKABLE, "num_hidden_layers": 4, "sliding_window": 16})
    pack(oracle, 0)
    opened = open_model(tmp_path, EngineOptions())
    assert [stored.dtype for stored in opened.formats] == [MXFP4] * 4
    runner = load_runner(tmp_path, EngineOptions())
    keys_values = 2 * 2 * 16 * 4  # bytes of a token in a layer: keys and values of two heads of 16, float32
    assert runner.kv.page_bytes == 2 * 64 * keys_values
    assert runner.recurrent.slot_bytes == 2 * 16 * keys_values
    request = Request(runner)
    request.feed(oracle.tokens(200))
    assert runner.recurrent.snapshot(request.slot).nbytes == 2 * 16 * keys_values


def test_blocks_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    Oracle("gpt_oss", tmp_path, 0, {**PACKABLE, "intermediate_size": 40})
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        stem = f"model.layers.{layer}.mlp.experts."
        for part, rows, blocks in (("gate_up", 80, 3), ("down", 96, 1)):
            del tensors[f"{stem}{part}_proj"]
            tensors[f"{stem}{part}_proj_blocks"] = torch.zeros(4, rows, blocks, 16, dtype=torch.uint8)
            tensors[f"{stem}{part}_proj_scales"] = torch.zeros(4, rows, blocks, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadFailed, match=r"down_proj: 40 columns do not divide into blocks of 32"):
        load_runner(tmp_path, EngineOptions())


@pytest.mark.parametrize(
    "name",
    ["self_attn.sinks", "mlp.router.bias", "mlp.experts.down_proj_scales", "mlp.experts.gate_up_proj_bias"],
)
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path, 0, PACKABLE)
    pack(oracle, 0)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.{name}"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadFailed, match=f"tensors missing: model.layers.1.{name}"):
        load_runner(tmp_path, EngineOptions())


def test_experts_in_fp8_are_refused(tmp_path: Path) -> None:
    Oracle("gpt_oss", tmp_path, 0, PACKABLE)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = torch.ones(4, 1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadFailed, match="stored in FP8, which is not read of this family; use its release"):
        load_runner(tmp_path, EngineOptions())


def test_scales_of_another_dtype_are_refused(tmp_path: Path) -> None:
    oracle = Oracle("gpt_oss", tmp_path, 0, PACKABLE)
    pack(oracle, 0)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name].float()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadFailed, match=f"{name} has dtype F32, bytes are needed"):
        load_runner(tmp_path, EngineOptions())
