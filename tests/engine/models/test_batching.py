"""Requests in one step do not see each other: the bits of a row do not depend on its company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from ftagent.engine.steps import LoadedModel
from tests.engine.kernels.blas import assert_same
from tests.engine.models.driving import Request
from tests.engine.models.tiny import Oracle

# Multiples of 32: vectorised loops, which take two registers of up to 64 bytes at a time, leave no scalar
# tail, so elementwise functions round alike in any company.
EVEN: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 32,
    "linear_value_head_dim": 16,
}


def alone(
    runner: LoadedModel, prompt: list[int], cuts: list[int], new: int
) -> tuple[list[int], list[torch.Tensor]]:
    """Greedy continuation of a prompt cut at `cuts`, with the logits of every step."""
    request = Request(runner)
    logits = [request.feed(prompt[a:b]) for a, b in zip([0, *cuts], [*cuts, len(prompt)], strict=True)]
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < new:
        logits.append(request.feed([tokens[-1]]))
        tokens.append(int(logits[-1].argmax()))
    request.close()
    return tokens, logits


def together(
    runner: LoadedModel, prompts: list[list[int]], cuts: list[list[int]], new: int, seed: int
) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
    """The same for several requests in mixed steps; a random subset advances in each step."""
    generator = random.Random(seed)
    requests = [Request(runner) for _ in prompts]
    pieces = [
        [prompt[a:b] for a, b in zip([0, *cut], [*cut, len(prompt)], strict=True)]
        for prompt, cut in zip(prompts, cuts, strict=True)
    ]
    tokens: list[list[int]] = [[] for _ in prompts]
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(len(found) < new for found in tokens):
        open_ = [index for index, found in enumerate(tokens) if len(found) < new]
        chosen = generator.sample(open_, generator.randint(1, len(open_)))
        chunks = [requests[i].chunk(pieces[i].pop(0) if pieces[i] else [tokens[i][-1]]) for i in chosen]
        for i, row in zip(chosen, runner.step(chunks), strict=True):
            logits[i].append(row)
            if not pieces[i]:
                tokens[i].append(int(row.argmax()))
    for request in requests:
        request.close()
    return tokens, logits


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gpt_oss"])
@pytest.mark.parametrize("seed", range(3))
def test_four_requests_together_give_the_bits_they_give_alone(family: str, seed: int, tmp_path: Path) -> None:
    changes = {"intermediate_size": 32} if family == "gpt_oss" else EVEN
    if family == "qwen3_moe":
        changes = {key: value for key, value in EVEN.items() if not key.startswith(("l", "s"))}
    oracle = Oracle(family, tmp_path, seed, changes)
    runner = load_runner(tmp_path, EngineOptions())
    generator = random.Random(seed)
    prompts = [oracle.tokens(generator.randint(5, 150), seed * 10 + i) for i in range(4)]
    cuts = [sorted(generator.sample(range(1, len(p)), generator.randint(0, 3))) for p in prompts]
    tokens, logits = together(runner, prompts, cuts, 12, seed)
    for i, prompt in enumerate(prompts):
        expected_tokens, expected_logits = alone(runner, prompt, cuts[i], 12)
        assert tokens[i] == expected_tokens
        for found, expected in zip(logits[i], expected_logits, strict=True):
            assert_same(found, expected)
    runner.kv.check_integrity()
    runner.recurrent.check_integrity()
    assert runner.experts is not None
    runner.experts.check_integrity()


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gpt_oss"])
def test_odd_sizes_give_the_same_tokens_and_nearly_the_same_logits(family: str, tmp_path: Path) -> None:
    inner = "intermediate_size" if family == "gpt_oss" else "moe_intermediate_size"
    oracle = Oracle(family, tmp_path, 5, {inner: 17, "initializer_range": 0.1})
    runner = load_runner(tmp_path, EngineOptions())
    prompts = [oracle.tokens(30 + 17 * i, i) for i in range(4)]
    tokens, logits = together(runner, prompts, [[11], [], [20, 21], [64]], 12, 0)
    for i, cuts in enumerate([[11], [], [20, 21], [64]]):
        expected_tokens, expected_logits = alone(runner, prompts[i], cuts, 12)
        assert tokens[i] == expected_tokens
        for found, expected in zip(logits[i], expected_logits, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_scattered_pages_give_the_bits_of_consecutive_ones(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_5_moe", tmp_path, 3, EVEN)
    runner = load_runner(tmp_path, EngineOptions())
    prompt = oracle.tokens(300)
    tokens, logits = alone(runner, prompt, [100, 200], 6)
    # Hold every other page, so that no two free pages are neighbours.
    pages = runner.kv.allocate(runner.kv.total)
    runner.kv.release(pages[::2])
    scattered_tokens, scattered_logits = alone(runner, prompt, [100, 200], 6)
    runner.kv.release(pages[1::2])
    assert scattered_tokens == tokens
    for found, expected in zip(scattered_logits, logits, strict=True):
        assert torch.equal(found, expected)


def test_a_snapshot_taken_between_chunks_resumes_exactly(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_5_moe", tmp_path, 4, {})
    runner = load_runner(tmp_path, EngineOptions())
    first, left, right = oracle.tokens(70, 1), oracle.tokens(40, 2), oracle.tokens(40, 3)
    request = Request(runner)
    request.feed(first)
    snapshot = runner.recurrent.snapshot(request.slot)
    expected = request.feed(left)
    request.length = len(first)
    runner.recurrent.restore(request.slot, snapshot)
    request.feed(right)
    request.length = len(first)
    runner.recurrent.restore(request.slot, snapshot)
    assert torch.equal(request.feed(left), expected)
