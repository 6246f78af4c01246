"""Sampling against transformers' processors and against a brute-force twin in plain Python."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation import logits_process as hf

from ftagent.engine.api import SamplingParams
from ftagent.engine.logits import Best
from ftagent.engine.sampling import Sampler, SamplingDefaults, check_params, nucleus
from ftagent.errors import BadRequest, EngineError, LoadFailed

DEFAULTS = SamplingDefaults()


def rows(seed: int, vocab: int = 50, count: int = 1) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((count, vocab)) * 3).astype(np.float32)


def sampler(params: SamplingParams, prompt: tuple[int, ...] = (), seed: int = 0) -> Sampler:
    return Sampler(params, DEFAULTS, prompt, seed)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0, 1, 3, 20, 50, 99]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.3, 1.0, 1.7]),
)
def test_filters_equal_transformers(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    row = rows(seed)[0]
    scores = torch.from_numpy(row.copy())[None].double()
    ids = torch.zeros(1, 1, dtype=torch.long)
    processors: list[Any] = [hf.TemperatureLogitsWarper(temperature)]
    if top_k:
        processors.append(hf.TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(hf.TopPLogitsWarper(top_p))
    if min_p:
        processors.append(hf.MinPLogitsWarper(min_p))
    for processor in processors:
        scores = processor(ids, scores)
    expected = scores.softmax(-1)[0].numpy()
    kept, weights = nucleus(row / np.float32(temperature), top_k, top_p, min_p)
    found = np.zeros(len(row))
    found[slice(None) if kept is None else kept] = weights / weights.sum()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.3, 2.0]))
def test_repetition_penalty_equals_transformers(seed: int, penalty: float) -> None:
    dice = np.random.default_rng(seed)
    prompt = tuple(int(token) for token in dice.integers(0, 50, 12))
    ours = sampler(SamplingParams(temperature=0, repetition_penalty=penalty), prompt)
    seen = list(prompt)
    for row in rows(seed, count=15):
        scores = hf.RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([seen]), torch.from_numpy(row.copy())[None]
        )
        token = ours.choose(row.copy()).token
        assert token == int(scores.argmax())
        seen.append(token)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.floats(-2, 2), st.floats(-2, 2), st.sampled_from([1.0, 1.4]))
def test_penalties_equal_the_definition(
    seed: int, presence: float, frequency: float, repetition: float
) -> None:
    prompt = (1, 2, 3)
    params = SamplingParams(
        temperature=0,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
    )
    ours = sampler(params, prompt)
    reply: list[int] = []
    for row in rows(seed, vocab=12, count=80):
        expected = row.astype(np.float64)
        for token in range(12):
            if token in prompt or token in reply:
                expected[token] *= 1 / repetition if expected[token] > 0 else repetition
            expected[token] -= presence * (token in reply) + frequency * reply.count(token)
        token = ours.choose(row.copy()).token
        best = np.sort(expected)
        if best[-1] - best[-2] > 1e-4:  # float32 may decide a tie otherwise
            assert token == int(expected.argmax())
        reply.append(token)


def test_draws_follow_the_probabilities() -> None:
    row = np.log(np.asarray([0.5, 0.3, 0.15, 0.05], np.float32))
    ours = sampler(SamplingParams(temperature=1.0, seed=3))
    draws = [ours.choose(row.copy()).token for _ in range(20_000)]
    shares = np.bincount(draws, minlength=4) / len(draws)
    # three standard deviations of a share of 0.5 over 20,000 draws are 0.0106
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.011)


def test_same_seed_same_tokens_other_seed_other_tokens() -> None:
    made = rows(1, vocab=200, count=50)

    def tokens(seed: int) -> list[int]:
        ours = sampler(SamplingParams(temperature=1.2, seed=seed, top_p=0.95))
        return [ours.choose(row.copy()).token for row in made]

    assert tokens(-5) == tokens(-5)
    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


def test_temperature_zero_is_greedy_and_defaults_come_from_the_model() -> None:
    row = rows(2)[0]
    assert sampler(SamplingParams(temperature=0)).choose(row.copy()).token == int(row.argmax())
    greedy = Sampler(SamplingParams(), SamplingDefaults(top_k=1), (), 0)
    assert greedy.choose(row.copy()).token == int(row.argmax())


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    row = rows(3)[0]
    expected = torch.from_numpy(row.copy()).double().log_softmax(-1)
    params = SamplingParams(temperature=0.2, presence_penalty=1.0, top_k=2, top_logprobs=5, seed=1)
    choice = sampler(params).choose(row.copy())
    assert choice.logprob == pytest.approx(float(expected[choice.token]), abs=1e-5)
    best = expected.topk(5)
    assert [token for token, _ in choice.top] == best.indices.tolist()
    assert [logprob for _, logprob in choice.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    bare = sampler(SamplingParams(temperature=0, top_logprobs=0)).choose(row.copy())
    assert bare.top == ()
    assert bare.logprob == pytest.approx(float(expected.max()), abs=1e-5)


class Only:
    """A constraint that allows some ids."""

    finished = False

    def __init__(self, *allowed: int) -> None:
        self.allowed = allowed

    def apply(self, logits: NDArray[np.float32], /) -> None:
        mask = np.ones(len(logits), bool)
        mask[list(self.allowed)] = False
        logits[mask] = -np.inf

    def advance(self, token_id: int, /) -> None: ...


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("repetition", [1.0, 1.5])
def test_constraint_holds(temperature: float, repetition: float) -> None:
    params = SamplingParams(temperature=temperature, repetition_penalty=repetition, top_p=0.9, seed=0)
    ours = sampler(params, prompt=(4, 9, 30))
    for row in rows(5, count=30):
        assert ours.choose(row.copy(), Only(4, 9)).token in (4, 9)
    with pytest.raises(EngineError, match="allows no token"):
        ours.choose(rows(5)[0], Only())


def test_nan_is_an_error_not_a_token() -> None:
    row = rows(6)[0]
    row[10] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        sampler(SamplingParams()).choose(row)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("max_tokens", 0),
        ("repetition_penalty", 0),
        ("top_logprobs", 21),
        ("stop", ("a", "")),
    ],
)
def test_values_without_meaning_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadRequest) as refusal:
        check_params(SamplingParams(**{field: value}))  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert field in str(refusal.value)


def test_defaults_are_read_from_generation_config(tmp_path: Path) -> None:
    assert SamplingDefaults.from_directory(tmp_path) == SamplingDefaults()
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}))
    assert SamplingDefaults.from_directory(tmp_path) == SamplingDefaults(0.6, 0.95, 20, 0.0)
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert SamplingDefaults.from_directory(tmp_path).temperature == 0
    path.write_text("{")
    with pytest.raises(LoadFailed, match=r"generation_config\.json"):
        SamplingDefaults.from_directory(tmp_path)


@pytest.mark.parametrize("top_k", [1, 5, 40, 63, 64, 0])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("step", [0.0, 0.25])
def test_the_best_few_choose_as_the_whole_row_does(top_k: int, temperature: float, step: float) -> None:
    """`step` rounds logits to multiples, so that many tie, also at the last place of top-k."""
    random = np.random.default_rng(top_k)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=0.95, min_p=0.01, seed=3)
    whole = Sampler(params, SamplingDefaults(), [], 0)
    few = Sampler(params, SamplingDefaults(), [], 0)
    answered = 0
    for _ in range(60):
        row = random.standard_normal(3000).astype(np.float32) * 3
        row = np.round(row / step).astype(np.float32) * step if step else row
        ids = np.sort(np.lexsort((np.arange(len(row)), -row))[:64])
        choice = few.choose_best(Best(ids, row[ids]))
        expected = whole.choose(row.copy())
        if choice is None:
            few.choose(row.copy())  # takes its number from the generator as `whole` did
        else:
            answered += 1
            assert choice == expected
    possible = temperature == 0 or 0 < top_k < 64
    assert answered == (60 if possible and not step else answered if possible else 0)


def test_the_best_few_refuse_what_needs_more_than_them() -> None:
    best = Best(np.arange(64), np.linspace(0, 1, 64, dtype=np.float32))
    for params in (
        SamplingParams(temperature=0, top_logprobs=2),
        SamplingParams(temperature=0, presence_penalty=0.5),
        SamplingParams(temperature=1, top_k=0),
    ):
        assert Sampler(params, SamplingDefaults(), [], 0).choose_best(best) is None
    best.values[3] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        Sampler(SamplingParams(temperature=0), SamplingDefaults(), [], 0).choose_best(best)
