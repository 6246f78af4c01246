"""Reuse where pages hold something else than keys and values, or nothing: warm replies equal cold ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ftagent.engine.load import load_runner
from tests.engine.models.tiny import Oracle
from tests.engine.test_reuse import OPTIONS, greedy
from tests.engine.test_scheduler import Bench, reply

CASES: dict[str, dict[str, Any]] = {
    "gpt_oss": {},  # windows beside pages
    "mistral": {"sliding_window": 20},  # windows alone
    "deepseek_v3": {},  # latents
    "deepseek_v32": {},  # latents and the indexer's keys
    "glm_moe_dsa": {"indexer_types": ["full", "shared", "full", "shared"]},
}


@pytest.mark.parametrize("family", CASES)
def test_warm_equals_cold_and_transformers(family: str, tmp_path: Path) -> None:
    oracle = Oracle(family, tmp_path, 1, CASES[family])
    warm = Bench(load_runner(tmp_path, OPTIONS), anchors=12, chunk_tokens=48)
    cold = Bench(load_runner(tmp_path, OPTIONS), anchors=0, chunk_tokens=48)
    dice = random.Random(family)
    history = oracle.tokens(90)
    cached = 0
    for turn in range(6):
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
    assert cached > 100
