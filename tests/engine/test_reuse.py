"""Reuse on real layers: warm replies equal those of a twin that keeps nothing, and those of transformers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.models.tiny import Oracle
from tests.engine.test_scheduler import Bench, reply

OPTIONS = EngineOptions(threads=1, context=512, max_running=3)


def greedy(oracle: Oracle, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(oracle.logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gpt_oss", "deepseek_v3", "deepseek_v32"])
def test_warm_equals_cold_and_transformers(family: str, tmp_path: Path) -> None:
    oracle = Oracle(family, tmp_path, 1, {})
    warm = Bench(load_runner(tmp_path, OPTIONS), anchors=12, chunk_tokens=48)
    cold = Bench(load_runner(tmp_path, OPTIONS), anchors=0, chunk_tokens=48)
    dice = random.Random(family)
    history = oracle.tokens(90)
    cached = 0
    for turn in range(8):
        history = [*history[: dice.randrange(20, len(history) + 1)], *oracle.tokens(30, seed=turn)][:300]
        marks = tuple(sorted(dice.sample(range(1, len(history)), 3)))
        again, anew = (bench.submit(history, 6, marks) for bench in (warm, cold))
        beside = warm.submit([*history[:15], *oracle.tokens(20, seed=100 + turn)], 4)
        for _ in range(dice.randrange(4)):
            warm.step()
        beside.cancelled = dice.random() < 0.5
        warm.drain()
        cold.drain()
        assert reply(again) == reply(anew)
        if turn < 2:
            assert reply(anew) == greedy(oracle, history, 6)
        cached += again.cached
        history = again.tokens
    assert cached > 150
