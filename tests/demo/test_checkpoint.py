"""The directory that ships: complete, small, sound, and of the shape that training used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ftagent import demo
from ftagent.demo.training import export
from ftagent.demo.training.network import Network
from ftagent.demo.training.shape import Shape
from ftagent.engine.convert import convert
from tests.support.embedded import as_safetensors, tensors

FILES = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model-00001-of-00001.ftw",
}


def read(name: str) -> Any:
    return json.loads((demo.directory() / name).read_text(encoding="utf-8"))


def test_the_directory_is_complete_and_at_most_16_mib() -> None:
    sizes = {path.name: path.stat().st_size for path in demo.directory().iterdir()}
    assert set(sizes) == FILES
    assert sum(sizes.values()) <= 16 * 2**20


def test_the_configuration_is_the_shapes() -> None:
    ids = {entry["content"]: entry["id"] for entry in read("tokenizer.json")["added_tokens"]}
    assert read("config.json") == Shape().config() | {"eos_token_id": ids["<|im_end|>"]}
    assert read("generation_config.json")["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]


def test_every_tensor_of_the_shape_is_there_and_finite() -> None:
    expected = {name: (t.shape, t.dtype) for name, t in export.tensors(Network(Shape())).items()}
    found = {}
    for name, tensor in tensors().items():
        found[name] = (tensor.shape, tensor.dtype)
        assert bool(torch.isfinite(tensor.float()).all()), name
        assert name.endswith("weight_scale_inv") or bool(tensor.float().any()), name
    assert found == expected


def test_what_ships_is_what_training_would_be_converted_to(tmp_path: Path) -> None:
    convert(as_safetensors(tmp_path / "trained"), tmp_path / "converted")
    for name in FILES:
        assert (tmp_path / "converted" / name).read_bytes() == (demo.directory() / name).read_bytes(), name
