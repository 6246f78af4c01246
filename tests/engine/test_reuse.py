"""Reuse on real layers: warm replies equal those of a twin that keeps nothing, and those of transformers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.context.replays import Book
from tests.engine.models.tiny import Oracle
from tests.engine.test_scheduler import Bench, reply

OPTIONS = EngineOptions(threads=1, context=512, max_running=3)


def greedy(oracle: Oracle, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(oracle.logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("anchors", [12, 64])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe"])
def test_warm_equals_cold_and_transformers(family: str, anchors: int, tmp_path: Path) -> None:
    """With room for all anchors each turn reuses what a brute-force twin says can be reused, at least."""
    oracle = Oracle(family, tmp_path, 1, {})
    warm = Bench(load_runner(tmp_path, OPTIONS), anchors=anchors, chunk_tokens=48)
    cold = Bench(load_runner(tmp_path, OPTIONS), anchors=0, chunk_tokens=48)
    book = Book(stateful=family == "qwen3_5_moe")
    dice = random.Random(family)
    history = oracle.tokens(90)
    cached = reusable = 0
    for turn in range(8):
        history = [*history[: dice.randrange(20, len(history) + 1)], *oracle.tokens(30, seed=turn)][:300]
        marks = tuple(sorted(dice.sample(range(1, len(history)), 3)))
        best, most = book.reusable(history)
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
        assert again.cached <= most
        assert anchors == 12 or again.cached >= best
        book.note(again, len(again.tokens) - 1)
        cached += again.cached
        reusable += most if family == "qwen3_moe" else best
        history = again.tokens
    # Twelve anchors are what three turns leave here, so some have to go: 194 tokens of 244 are reused then.
    # What goes first is worth least: in turn 4 the place 66 is gone and 61, five tokens before it, is there.
    assert cached >= (194 / 244 if anchors == 12 else 1.0) * reusable
    assert reusable >= 200
