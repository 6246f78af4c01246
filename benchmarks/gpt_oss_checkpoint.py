"""Write a checkpoint of random weights in gpt-oss's shape and layout, to measure speed and memory with:

    python -m benchmarks.gpt_oss_checkpoint --out CK [--layers 24] [--experts 32]

Its experts are random MXFP4 codes under scales that keep activations near one, so every kernel does its work;
what it says means nothing. One shard for each layer. Experts are chosen evenly, which is harder on the slots
than a trained router.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.walk.vocabulary import end_id, write_tiny_tokenizer

BLOCK = 32  # codes under one scale


@dataclass(frozen=True)
class Shape:
    """Published sizes; both releases have these, and 24 layers of 32 or 36 layers of 128 experts."""

    layers: int = 24
    experts: int = 32
    hidden: int = 2880
    inner: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    per_token: int = 4
    window: int = 128
    vocab: int = 201_088


TINY = Shape(2, 4, hidden=96, inner=64, heads=4, kv_heads=2, head_dim=16, per_token=2, window=8, vocab=4096)


def write(out: Path, shape: Shape, seed: int = 0) -> int:
    """Write everything that a checkpoint directory holds; returns the bytes of its tensors."""
    out.mkdir(parents=True, exist_ok=True)
    write_tiny_tokenizer(out)
    draw = torch.Generator().manual_seed(seed)
    where: dict[str, str] = {}
    total = 0
    for number, tensors in enumerate(_shards(shape, draw)):
        name = f"model-{number:05d}.safetensors"
        save_file(tensors, out / name)
        where |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (out / "config.json").write_text(json.dumps(config_json(shape, end_id(out))), encoding="utf-8")
    return total


def config_json(shape: Shape, end: int) -> dict[str, Any]:
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)]
    rope = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": shape.layers,
        "layer_types": kinds,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.per_token,
        "sliding_window": shape.window,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 131_072,
        "rope_theta": 150_000,
        "rope_scaling": {**rope, "original_max_position_embeddings": 4096},
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    }


def _shards(shape: Shape, draw: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    def normal(*size: int, scale: float) -> torch.Tensor:
        return (torch.randn(*size, generator=draw) * scale).bfloat16()

    table = (shape.vocab, shape.hidden)
    yield {
        "model.embed_tokens.weight": normal(*table, scale=1.0),
        "model.norm.weight": 1 + normal(shape.hidden, scale=0.1),
        "lm_head.weight": normal(*table, scale=shape.hidden**-0.5),
    }
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"q": (queries, shape.hidden), "k": (keys, shape.hidden), "v": (keys, shape.hidden)}
    for layer in range(shape.layers):
        stem = f"model.layers.{layer}."
        found: dict[str, torch.Tensor] = {}
        for part, (rows, columns) in {**sizes, "o": (shape.hidden, queries)}.items():
            found[f"{stem}self_attn.{part}_proj.weight"] = normal(rows, columns, scale=columns**-0.5)
            found[f"{stem}self_attn.{part}_proj.bias"] = normal(rows, scale=0.1)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{stem}{norm}.weight"] = 1 + normal(shape.hidden, scale=0.1)
        found[stem + "self_attn.sinks"] = normal(shape.heads, scale=1.0)
        found[stem + "mlp.router.weight"] = normal(shape.experts, shape.hidden, scale=shape.hidden**-0.5)
        found[stem + "mlp.router.bias"] = normal(shape.experts, scale=0.1)
        matrices = {"gate_up": (2 * shape.inner, shape.hidden), "down": (shape.hidden, shape.inner)}
        for part, (rows, columns) in matrices.items():
            name = f"{stem}mlp.experts.{part}_proj"
            blocks = (shape.experts, rows, columns // BLOCK)
            codes = torch.randint(0, 256, (*blocks, BLOCK // 2), dtype=torch.uint8, generator=draw)
            # Codes spread by 2.8 or so: this makes a row of them about one long.
            scale = 127 - round(math.log2(2.8 * columns**0.5))
            found[name + "_blocks"] = codes
            found[name + "_scales"] = torch.full(blocks, scale, dtype=torch.uint8)
            found[name + "_bias"] = normal(shape.experts, rows, scale=0.1)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--experts", type=int, default=Shape.experts)
    parser.add_argument("--tiny", action="store_true", help="a small model of the same kind, for tests")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    shape = TINY if given.tiny else Shape(layers=given.layers, experts=given.experts)
    print(f"{given.out}: {write(given.out, shape, given.seed) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
