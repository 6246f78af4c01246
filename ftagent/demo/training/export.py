"""Writes a trained network as a Hugging Face checkpoint: FP8 linear weights with block scales, the rest BF16.

Tensor names and layout are those of transformers' `Qwen3_5MoeForCausalLM`. Knows no training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ftagent.demo.training.network import Attention, DeltaNet, Experts, Layer, Network, quantize


def _linear(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    codes, scales = quantize(weight.detach())
    yield f"{name}.weight", codes
    yield f"{name}.weight_scale_inv", scales


def _plain(name: str, weight: Tensor) -> tuple[str, Tensor]:
    return name, weight.detach().to(torch.bfloat16)


def _mixer(prefix: str, mixer: DeltaNet | Attention) -> Iterator[tuple[str, Tensor]]:
    if isinstance(mixer, Attention):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from _linear(f"{prefix}.self_attn.{name}", getattr(mixer, name))
        yield _plain(f"{prefix}.self_attn.q_norm.weight", mixer.q_norm)
        yield _plain(f"{prefix}.self_attn.k_norm.weight", mixer.k_norm)
        return
    prefix += ".linear_attn"
    for name in ("in_proj_qkv", "in_proj_z", "out_proj"):
        yield from _linear(f"{prefix}.{name}", getattr(mixer, name))
    yield _plain(f"{prefix}.in_proj_b.weight", mixer.in_proj_b)
    yield _plain(f"{prefix}.in_proj_a.weight", mixer.in_proj_a)
    yield _plain(f"{prefix}.conv1d.weight", mixer.conv1d[:, None, :])
    # The decay's constants act over the whole context: float32, as released hybrids keep them.
    yield f"{prefix}.A_log", mixer.A_log.detach().float()
    yield f"{prefix}.dt_bias", mixer.dt_bias.detach().float()
    yield _plain(f"{prefix}.norm.weight", mixer.norm)


def _experts(prefix: str, mlp: Experts) -> Iterator[tuple[str, Tensor]]:
    yield _plain(f"{prefix}.gate.weight", mlp.gate)
    yield _plain(f"{prefix}.shared_expert_gate.weight", mlp.shared_expert_gate)
    for name, fused in [("shared_expert", (mlp.shared_gate_up, mlp.shared_down))] + [
        (f"experts.{e}", (mlp.gate_up_proj[e], mlp.down_proj[e])) for e in range(mlp.shape.experts)
    ]:
        gate, up = fused[0].chunk(2)
        yield from _linear(f"{prefix}.{name}.gate_proj", gate)
        yield from _linear(f"{prefix}.{name}.up_proj", up)
        yield from _linear(f"{prefix}.{name}.down_proj", fused[1])


def tensors(network: Network) -> dict[str, Tensor]:
    """All tensors by their Hugging Face names."""
    found = dict(
        [_plain("model.embed_tokens.weight", network.embed), _plain("model.norm.weight", network.norm)]
    )
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        prefix = f"model.layers.{number}"
        found.update([_plain(f"{prefix}.input_layernorm.weight", layer.input_layernorm)])
        found.update([_plain(f"{prefix}.post_attention_layernorm.weight", layer.post_attention_layernorm)])
        found.update(_mixer(prefix, layer.mixer))
        found.update(_experts(f"{prefix}.mlp", layer.mlp))
    return {name: tensor.contiguous().cpu() for name, tensor in found.items()}


def write(network: Network, directory: Path, end_of_turn: int, end_of_text: int) -> None:
    """model.safetensors, config.json and generation_config.json in `directory`."""
    save_file(tensors(network), directory / "model.safetensors", metadata={"format": "pt"})
    config = network.shape.config() | {"eos_token_id": end_of_turn}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"do_sample": False, "temperature": 0.0, "eos_token_id": [end_of_turn, end_of_text]}
    (directory / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n", encoding="utf-8"
    )
