"""Prefill with the kernels of a device: the same logits as transformers and as the layers on the CPU.

Without a device the kernels are interpreted, on the same path. Routed experts are plain here, so that a
failure is one of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.pages import KvStorage, PagePool
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.models import batch as batch_module
from ftagent.engine.models.decoder import Decoder, Pools, build_weights, kv_shape, make_rope
from ftagent.engine.models.gated_delta_net import state_shape
from ftagent.engine.models.registry import model_config
from ftagent.engine.weights.safetensors import open_checkpoint
from ftagent.engine.weights.source import Reader, find_prefix
from tests.engine.models.tiny import Oracle

FAMILIES = ["qwen3_moe", "qwen3_5_moe"]
CHANGES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_hidden_layers": 2, "norm_topk_prob": True},
    "qwen3_5_moe": {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "initializer_range": 0.1,
    },
}
CPU = torch.device("cpu")


class PlainExperts:
    """Routed experts of a transformers model on any device; no bank, no slots."""

    def __init__(self, oracle: Oracle, device: torch.device, dtype: torch.dtype) -> None:
        blocks = [layer.mlp for layer in oracle.model.model.layers if hasattr(layer.mlp, "experts")]
        self._weights = [
            (
                block.experts.gate_up_proj.detach().to(device, dtype),
                block.experts.down_proj.detach().to(device, dtype),
            )
            for block in blocks
        ]

    def forward(
        self, layer: int, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, decode: int
    ) -> torch.Tensor:
        gate_up, down = self._weights[layer]
        out = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(len(gate_up)):
            share = torch.where(chosen == expert, weights, 0).float().sum(dim=1, keepdim=True)
            gate, up = F.linear(x, gate_up[expert]).chunk(2, dim=-1)
            out += share * F.linear(F.silu(gate) * up, down[expert]).float()
        return out.to(x.dtype)


class Model:
    """A decoder with its pools, built from an oracle's checkpoint."""

    def __init__(self, oracle: Oracle, device: torch.device, dtype: torch.dtype, fused: bool) -> None:
        checkpoint = open_checkpoint(oracle.directory)
        config = model_config(oracle.directory)
        weights = build_weights(config, Reader(checkpoint, find_prefix(checkpoint), dtype, device))
        shape = kv_shape(config)
        self.pages = PagePool(16)
        self.states = StatePool(2, state_shape(config), device)
        kv = KvStorage(shape, 16, dtype, device)
        for layer in range(shape.layers):
            kv.layer(layer).fill_(float("nan"))
        experts = PlainExperts(oracle, device, dtype)
        rope = make_rope(config, 1024, device)
        self.decoder = Decoder(weights, rope, Pools(kv, self.states, experts))
        self.decoder.fused = fused

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], sizes: Sequence[int]) -> dict[int, torch.Tensor]:
        """Position to the logits after it, for the last token of each chunk; pages lie apart."""
        slot = self.states.allocate()
        pages = self.pages.allocate(self.pages.total)[::-2]
        found, start = {}, 0
        for size in sizes:
            chunk = Chunk(tuple(tokens[start : start + size]), start, pages, slot, True)
            start += size
            found[start - 1] = self.decoder.forward([chunk])[0].cpu()
        return found


def check_float32(family: str, directory: Path, device: torch.device, tokens: int, sizes: list[int]) -> None:
    oracle = Oracle(family, directory, 3, CHANGES[family])
    prompt = oracle.tokens(tokens)
    expected = oracle.logits(prompt)
    assert float(expected.std()) > 0.5, "the oracle's logits must be able to show a difference"
    found = Model(oracle, device, torch.float32, fused=True).logits(prompt, sizes)
    on_cpu = Model(oracle, CPU, torch.float32, fused=False).logits(prompt, sizes)
    assert len(found) == len(sizes)
    for position, logits in found.items():
        torch.testing.assert_close(logits, expected[position], rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, on_cpu[position], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [[70], [64, 1, 2, 3]])
def test_logits_equal_the_reference(
    family: str, sizes: list[int], device: torch.device, tmp_path: Path
) -> None:
    check_float32(family, tmp_path, device, 70, sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chunk_cut_into_spans_gives_the_same_logits(
    family: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "FUSED_ROWS", 64)
    check_float32(family, tmp_path, device, 100, [100])


@pytest.mark.parametrize("family", FAMILIES)
def test_two_requests_in_one_step_do_not_see_each_other(
    family: str, device: torch.device, tmp_path: Path
) -> None:
    oracle = Oracle(family, tmp_path, 4, CHANGES[family])
    prompts = [oracle.tokens(70, 1), oracle.tokens(20, 2)]
    model = Model(oracle, device, torch.float32, fused=True)
    slots = [model.states.allocate() for _ in prompts]
    pages = [model.pages.allocate(model.pages.pages_for(len(prompt))) for prompt in prompts]
    chunks = [
        Chunk(tuple(prompt), 0, held, slot, True)
        for prompt, held, slot in zip(prompts, pages, slots, strict=True)
    ]
    with torch.inference_mode():
        found = model.decoder.forward(chunks).cpu()
    for prompt, logits in zip(prompts, found, strict=True):
        torch.testing.assert_close(logits, oracle.logits(prompt)[-1], rtol=0, atol=1e-4)


def test_a_step_that_wants_no_logits_gives_none(device: torch.device, tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 5, {"num_hidden_layers": 1})
    model = Model(oracle, device, torch.float32, fused=True)
    chunk = Chunk((1, 2, 3), 0, model.pages.allocate(1), model.states.allocate(), False)
    with torch.inference_mode():
        assert model.decoder.forward([chunk]).shape == (0, oracle.vocab)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_as_near_to_float32_as_on_the_cpu(
    family: str, device: torch.device, tmp_path: Path
) -> None:
    """Rounding may choose another expert, so all are chosen. The CPU's bfloat16 is the measure of error."""
    changes = {**CHANGES[family], "initializer_range": 0.05, "num_experts_per_tok": 8}
    oracle = Oracle(family, tmp_path, 6, changes)
    tokens = oracle.tokens(80)
    expected = oracle.logits(tokens)
    found = Model(oracle, device, torch.bfloat16, fused=True).logits(tokens, [50, 30])
    on_cpu = Model(oracle, CPU, torch.bfloat16, fused=False).logits(tokens, [50, 30])
    for position, logits in found.items():
        size = expected[position].norm()
        error, measure = (
            float((some - expected[position]).norm() / size) for some in (logits, on_cpu[position])
        )
        assert error < max(2 * measure, 0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnADevice:
    """Longer chunks than the interpreter takes."""

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("sizes", [[500], [64, 1, 199, 236]])
    def test_float32_logits_equal_the_cpu(self, family: str, sizes: list[int], tmp_path: Path) -> None:
        check_float32(family, tmp_path, torch.device("cuda"), 500, sizes)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_bfloat16_with_flash_attention(self, family: str, head_dim: int, tmp_path: Path) -> None:
        changes = {**CHANGES[family], "initializer_range": 0.05, "num_experts_per_tok": 8}
        oracle = Oracle(family, tmp_path, 7, {**changes, "head_dim": head_dim})
        tokens = oracle.tokens(500)
        expected = oracle.logits(tokens)
        sizes = [300, 1, 199]
        found = Model(oracle, torch.device("cuda"), torch.bfloat16, fused=True).logits(tokens, sizes)
        for position, logits in found.items():
            error = (logits - expected[position]).norm() / expected[position].norm()
            assert float(error) < 0.1

    def test_a_step_does_not_wait_for_the_device(self, tmp_path: Path) -> None:
        oracle = Oracle("qwen3_5_moe", tmp_path, 8, CHANGES["qwen3_5_moe"])
        model = Model(oracle, torch.device("cuda"), torch.bfloat16, fused=True)
        tokens = oracle.tokens(200)
        model.logits(tokens, [200])
        slot = model.states.allocate()
        batch = batch_module.make_batch(
            [Chunk(tuple(tokens), 0, range(4), slot, True)], torch.device("cuda"), fused=True
        )
        from ftagent.engine.models.prefill import prefill

        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode():
                prefill(model.decoder.weights, model.decoder.rope, model.decoder.pools, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
