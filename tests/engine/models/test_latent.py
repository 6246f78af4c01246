"""Latent attention beyond its logits: its two forms, long pasts in pieces, pages, FP8, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ftagent.engine.context.pages import PAGE_TOKENS
from ftagent.engine.load import load_runner
from ftagent.engine.models import batch, latent_attention, sparse_attention, sparse_index
from ftagent.engine.models.config import LatentShape
from ftagent.engine.models.latent_attention import expand_from
from ftagent.engine.models.registry import model_config
from ftagent.engine.options import EngineOptions
from ftagent.errors import LoadFailed
from tests.engine.kernels.blas import assert_same
from tests.engine.models.driving import Request, logits_by_chunks
from tests.engine.models.test_batching import alone, together
from tests.engine.models.test_fp8 import BIG, rewrite
from tests.engine.models.test_logits import worst
from tests.engine.models.tiny import Oracle
from tests.engine.test_load import change_config

EVEN: dict[str, Any] = {  # see test_batching
    "n_routed_experts": 32,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
SIZES = [70, 3, 40, 1, 50]


def multiplications(shape: LatentShape, rows: int, tokens: int, expanded: bool) -> int:
    """Of a head, for scores and sums over values of `rows` queries that all see `tokens` earlier tokens."""
    if not expanded:
        return rows * tokens * (shape.stored + shape.stored)
    wide = max(shape.head_dim, shape.value_dim)
    made = tokens * shape.rank * (shape.plain_dim + shape.value_dim)
    return made + rows * tokens * 2 * wide


@pytest.mark.parametrize(
    "shape",
    [LatentShape(1536, 512, 128, 64, 128), LatentShape(0, 24, 12, 8, 14), LatentShape(0, 512, 128, 64, 256)],
)
def test_the_form_with_fewer_multiplications_is_taken(shape: LatentShape) -> None:
    border = expand_from(shape)
    for rows, cheaper in ((border - 1, False), (border + 1, True)):
        costs = [multiplications(shape, rows, 1000, expanded) for expanded in (False, True)]
        assert (costs[1] < costs[0]) == cheaper


def test_what_saves_nothing_is_never_expanded() -> None:
    assert expand_from(LatentShape(0, 8, 64, 8, 64)) > 2**30


@pytest.mark.parametrize("border", [1, 2**31])
def test_long_pasts_are_read_in_pieces(border: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form, with pieces that end inside pages and inside chunks."""
    monkeypatch.setattr(batch, "SEGMENT", 48)
    monkeypatch.setattr(latent_attention, "SEGMENT", 48)
    monkeypatch.setattr(latent_attention, "expand_from", lambda shape: border)
    oracle = Oracle("deepseek_v3", tmp_path, 1, {})
    tokens = oracle.tokens(200)
    found = logits_by_chunks(load_runner(tmp_path, EngineOptions()), tokens, SIZES)
    assert worst(found, oracle.logits(tokens)) <= 1e-4


@pytest.mark.parametrize(("family", "values"), [("deepseek_v3", 24 + 8), ("deepseek_v32", 24 + 8 + 12)])
def test_a_token_leaves_one_latent_and_one_rotary_key_a_layer(
    family: str, values: int, tmp_path: Path
) -> None:
    """And behind them the indexer's key, where there is one."""
    Oracle(family, tmp_path, 1, {})
    runner = load_runner(tmp_path, EngineOptions(context=512))
    assert runner.kv.page_bytes == 4 * values * 4 * PAGE_TOKENS  # layers, values, bytes of float32
    assert runner.contents is not None
    assert runner.contents.page_bytes == runner.kv.page_bytes


def test_scattered_pages_give_the_bits_of_consecutive_ones(tmp_path: Path) -> None:
    oracle = Oracle("deepseek_v3", tmp_path, 3, {})
    runner = load_runner(tmp_path, EngineOptions())
    prompt = oracle.tokens(300)
    tokens, logits = alone(runner, prompt, [100, 110], 6)
    runner.kv.release(runner.kv.allocate(runner.kv.total)[::2])  # no two free pages are neighbours
    scattered_tokens, scattered_logits = alone(runner, prompt, [100, 110], 6)
    assert scattered_tokens == tokens
    for found, expected in zip(scattered_logits, logits, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("seed", range(3))
def test_requests_in_company_give_the_bits_they_give_alone(seed: int, tmp_path: Path) -> None:
    oracle = Oracle("deepseek_v3", tmp_path, seed, EVEN)
    runner = load_runner(tmp_path, EngineOptions())
    prompts = [oracle.tokens(20 + 37 * i, seed * 10 + i) for i in range(4)]
    cuts = [[11], [], [20, 21], [64]]
    tokens, logits = together(runner, prompts, cuts, 8, seed)
    for i, prompt in enumerate(prompts):
        expected_tokens, expected_logits = alone(runner, prompt, cuts[i], 8)
        assert tokens[i] == expected_tokens
        for found, expected in zip(logits[i], expected_logits, strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_fp8_blocks_equal_their_plain_values(scale_dtype: torch.dtype, tmp_path: Path) -> None:
    """As the releases are stored; the matrix to latents has rows that are no multiple of a block."""
    oracle = Oracle("deepseek_v3", tmp_path, 0, {**BIG, "kv_lora_rank": 136, "intermediate_size": 130})
    values = rewrite(tmp_path, False, "model.", scale_dtype)
    state, half = oracle.model.state_dict(), BIG["moe_intermediate_size"]
    for name, value in values.items():
        if name in state:
            state[name].copy_(value)
            continue
        stem, rest = name.split(".experts.")
        expert, part = rest.split(".")[:2]
        place = {"gate_proj": slice(0, half), "up_proj": slice(half, None), "down_proj": slice(None)}[part]
        kind = "down_proj" if part == "down_proj" else "gate_up_proj"
        state[f"{stem}.experts.{kind}"][int(expert), place].copy_(value)
    tokens = oracle.tokens(60)
    found = logits_by_chunks(load_runner(tmp_path, EngineOptions()), tokens, [40])
    assert worst(found, oracle.logits(tokens)) <= 1e-4


def test_a_copied_page_holds_the_same_latents(tmp_path: Path) -> None:
    oracle = Oracle("deepseek_v3", tmp_path, 2, {})
    runner = load_runner(tmp_path, EngineOptions(context=512))
    request = Request(runner)
    request.feed(oracle.tokens(50))
    expected = request.feed([7])
    (page,) = request.pages
    (other,) = runner.kv.allocate(1)
    runner.copy_page(page, other)
    request.pages, request.length = [other], 50
    assert torch.equal(request.feed([7]), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "deepseek_v4"}, "deepseek_v4.*compressed"),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "must name 4 layers of full"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "SFSF"}, "the first layer has no indexer"),
        ({"model_type": "deepseek_v32", "q_lora_rank": None}, "q_lora_rank must be given"),
        ({"model_type": "deepseek_v32", "index_head_dim": 4}, "index_head_dim = 4 is less"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    Oracle("deepseek_v3", tmp_path, 1, {})
    change_config(tmp_path, **changes)
    with pytest.raises(LoadFailed, match=words):
        load_runner(tmp_path, EngineOptions())


SHARED = {"indexer_types": ["full", "shared", "full", "shared"]}


@pytest.mark.parametrize(
    ("family", "changes"), [("deepseek_v32", {}), ("glm_moe_dsa", {}), ("glm_moe_dsa", SHARED)]
)
def test_choices_in_blocks_are_the_choices(
    family: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores and gathered latents in blocks of few rows, chunks that begin before and behind the border."""
    monkeypatch.setattr(sparse_index, "SCORE_BYTES", 40_000)
    monkeypatch.setattr(sparse_attention, "GATHER_BYTES", 10_000)
    oracle = Oracle(family, tmp_path, 4, changes)
    tokens = oracle.tokens(200)
    found = logits_by_chunks(load_runner(tmp_path, EngineOptions()), tokens, SIZES)
    assert worst(found, oracle.logits(tokens)) <= 1e-4


@pytest.mark.parametrize(
    ("given", "following"),
    [
        ({"index_topk_freq": 2}, {2, 4}),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, {1, 2, 4, 5}),
        ({"index_topk_pattern": "FSSFFS"}, {1, 2, 5}),
        ({"indexer_types": ["full"] * 5 + ["shared"]}, {5}),
        ({}, set()),
    ],
)
def test_which_layers_share_an_indexer(given: dict[str, Any], following: set[int], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "glm_moe_dsa", "num_hidden_layers": 6, **given})
    )
    latent = model_config(tmp_path).latent
    assert latent is not None
    assert latent.indexer is not None
    assert latent.indexer.following == following
    theirs = transformers.GlmMoeDsaConfig(num_hidden_layers=6, **given)
    assert {i for i, kind in enumerate(theirs.indexer_types or ()) if kind == "shared"} == following


def test_requests_with_a_shared_indexer_do_not_see_each_other(tmp_path: Path) -> None:
    """Choices are kept for the rows of a step: two requests decode and a third one's prompt is computed."""
    oracle = Oracle("glm_moe_dsa", tmp_path, 5, SHARED)
    runner = load_runner(tmp_path, EngineOptions(max_running=3))
    texts = [oracle.tokens(60 + 10 * n, n) for n in range(3)]
    requests = [Request(runner) for _ in texts]
    for request, tokens in zip(requests[:2], texts, strict=False):
        request.feed(tokens[:40])
    for step in range(10):
        chunks = [r.chunk([t[40 + step]]) for r, t in zip(requests[:2], texts, strict=False)]
        chunks.append(requests[2].chunk(texts[2][7 * step : 7 * step + 7]))
        for row, request, tokens in zip(runner.step(chunks), requests, texts, strict=True):
            expected = oracle.logits(tokens[: request.length])[-1]
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-4)
