"""An exported network of random weights against transformers' Qwen3.5-MoE, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FineGrainedFP8Config, Qwen3_5MoeForCausalLM

from ftagent.demo.training import export, network
from ftagent.demo.training.shape import Shape

# Sizes are 128 at most or multiples of it: transformers cuts other matrices into blocks of another size.
TINY = Shape(
    vocab=160,
    hidden=256,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    rotary=0.25,
    key_heads=2,
    value_heads=2,
    key_dim=16,
    value_dim=16,
    experts=6,
    top_k=2,
    intermediate=112,
    shared=24,
    context=512,
)


def test_the_exported_network_equals_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "COMPUTE", torch.float32)
    torch.manual_seed(0)
    ours = network.Network(TINY)
    with torch.no_grad():
        for name, p in ours.named_parameters():
            # Norms start at their neutral value; the checkpoint holds BF16 of what FP8 does not round.
            p.copy_((p + torch.randn_like(p) * 0.05) if p.ndim == 1 else p)
            if not name.endswith(("A_log", "dt_bias")):
                p.copy_(p.to(torch.bfloat16).float())
    export.write(ours, tmp_path, 1, 0)
    theirs: Any = Qwen3_5MoeForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=FineGrainedFP8Config(dequantize=True),
    )
    ids = torch.randint(0, TINY.vocab, (2, 77))
    with torch.no_grad():
        expected = theirs(ids).logits
        found = ours(ids)
    assert expected.std() > 0.01, "logits that are all alike would prove nothing"
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
