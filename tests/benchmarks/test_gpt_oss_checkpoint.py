"""The synthetic gpt-oss checkpoint: transformers and the engine read it alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers.utils.quantization_config import Mxfp4Config

from benchmarks.gpt_oss_checkpoint import TINY, Shape, config_json, write
from ftagent.engine.load import load_runner
from ftagent.engine.models.registry import model_config
from ftagent.engine.models.sizes import parameters
from ftagent.engine.options import EngineOptions
from ftagent.engine.prompt.tokenizer import Tokenizer
from tests.engine.models.driving import logits_by_chunks


def test_transformers_and_the_engine_read_it_alike(tmp_path: Path) -> None:
    files = write(tmp_path, TINY)
    assert files == sum(
        sum(tensor.nbytes for tensor in load_file(file).values()) for file in tmp_path.glob("*.safetensors")
    )
    tokens = torch.randint(0, TINY.vocab, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    read: Any = transformers.GptOssForCausalLM.from_pretrained
    quantised: Any = Mxfp4Config
    model = read(tmp_path, dtype=torch.float32, quantization_config=quantised(dequantize=True))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
    assert 0.3 < float(expected.std()) < 3
    runner = load_runner(tmp_path, EngineOptions(), dtype=torch.float32)
    for position, row in logits_by_chunks(runner, tokens, [25, 10]).items():
        torch.testing.assert_close(row, expected[position], rtol=0, atol=1e-4)
    assert Tokenizer.from_directory(tmp_path).eos_ids


def test_its_sizes_are_the_published_ones(tmp_path: Path) -> None:
    """20.91 and 116.83 billion weights, by transformers' own count; biases and norms are 0.1 % of them."""
    for shape, billions in ((Shape(), 20.91), (Shape(layers=36, experts=128), 116.83)):
        (tmp_path / "config.json").write_text(json.dumps(config_json(shape, 1)))
        assert abs(parameters(model_config(tmp_path)) / 1e9 - billions) < 0.002 * billions
