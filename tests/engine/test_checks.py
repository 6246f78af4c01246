"""`verify_anchors`: hits are computed cold beside, damage is found and named, and every reply is right."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftagent.conversation import Conversation, Message, Text
from ftagent.engine.api import GenerateRequest
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.checks import (
    TOLERANCE,
    TOLERANCE_BF16,
    AnchorChecker,
    row_difference,
    tolerance_for,
)
from ftagent.engine.context.tiers import LEAST_GAIN
from ftagent.engine.context.tree import Anchor
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.job import Job
from ftagent.engine.load import load_runner
from ftagent.engine.logits import Row
from ftagent.engine.options import EngineOptions
from ftagent.engine.stats import AnchorChecks
from ftagent.engine.steps import LoadedModel
from tests.engine.context.test_tiers import agent_job, tiered
from tests.engine.models.tiny import Oracle
from tests.engine.test_scheduler import Bench, prompt_of, reply
from tests.support.toy import ToyRunner, cold_tokens
from tests.support.toy_engine import FREE, ask, collect, last, run, toy_engine

ALL = EngineOptions(chunk_tokens=8, verify_anchors=1.0)


def checks_of(engine: LocalEngine) -> AnchorChecks:
    found = engine.scheduler.checker.counts()
    assert found is not None
    return found


def anchors_of(engine: LocalEngine) -> Iterator[Anchor]:
    for node in engine.scheduler.prefix._tree.nodes():
        yield from node.anchors


def damage_states(engine: LocalEngine, runner: ToyRunner) -> None:
    for anchor in anchors_of(engine):
        anchor.snapshot += 1


def damage_pages(engine: LocalEngine, runner: ToyRunner) -> None:
    runner._memory[:, 1] += 1


@pytest.mark.parametrize("damage", [damage_states, damage_pages])
@pytest.mark.parametrize("length", [20, 61])
def test_damage_is_found_named_and_dropped_and_the_reply_is_right(
    damage: Callable[[LocalEngine, ToyRunner], None], length: int, caplog: pytest.LogCaptureFixture
) -> None:
    runner = ToyRunner()
    with toy_engine(runner, ALL) as engine:
        first = last(run(engine, ask(prompt_of(0, length), 6)))
        kept = len(engine.scheduler.prefix)
        damage(engine, runner)
        prompt = [*prompt_of(0, length), *first.token_ids, 5, 6]
        second = last(run(engine, ask(prompt, 6)))
        assert list(second.token_ids) == cold_tokens(prompt, 6)
        found = checks_of(engine)
        assert (found.hits, found.checked, found.wrong) == (1, 1, 1)
        assert found.newest is not None
        assert (found.newest.turn, found.newest.position) == (2, length + 5)
        assert found.newest.token_cold == second.token_ids[0]
        assert engine.stats().anchor_checks == found
        (said,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert f"turn 2 of a conversation, resumed at token {length + 5} (" in said
        (dropped,) = re.findall(r"and (\d+) anchors that share its pages are dropped", said)
        assert int(dropped) >= kept
        third = [*prompt, *second.token_ids, 7]
        again = last(run(engine, ask(third, 6)))
        assert list(again.token_ids) == cold_tokens(third, 6)
        assert (checks_of(engine).checked, checks_of(engine).wrong) == (2, 1)


def test_the_anchor_is_named_by_what_stands_there(caplog: pytest.LogCaptureFixture) -> None:
    question = Message("user", (Text("a question that is long enough to be worth an anchor"),))
    runner = ToyRunner(pages=200, context=600)
    with toy_engine(runner, ALL) as engine:
        run(engine, GenerateRequest(Conversation((question,)), FREE_8))
        damage_states(engine, runner)
        edited = Conversation((question, Message("user", (Text("and one more"),))))
        run(engine, GenerateRequest(edited, FREE_8))
    assert "inside user[0]" in caplog.text or "template" in caplog.text
    assert checks_of(engine).wrong == 1


FREE_8 = FREE.__class__(ignore_eos=True, max_tokens=8)


@pytest.mark.parametrize("talks", [2, 6])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_right_is_never_called_wrong_and_nobody_is_harmed(seed: int, talks: int) -> None:
    """Several conversations at once on pools that are sometimes too small for a check."""
    dice = random.Random(seed)
    runner = ToyRunner(pages=dice.choice([45, 80, 300]), slots=dice.choice([2, 4]), context=170)
    options = EngineOptions(chunk_tokens=16, verify_anchors=dice.choice([0.3, 1.0]), max_waiting=99)

    async def talk(engine: LocalEngine, number: int) -> None:
        history = prompt_of(number % 3, 30)
        for turn in range(5):
            prompt = history
            events = await collect(engine.generate(ask(prompt, dice.randrange(1, 9))))
            ids = list(last(events).token_ids)
            assert ids == cold_tokens(prompt, len(ids))
            history = [*prompt, *ids, *prompt_of(100 * number + turn, dice.randrange(1, 15))][:150]

    async def all_of_them(engine: LocalEngine) -> None:
        await asyncio.gather(*(talk(engine, number) for number in range(talks)))

    with toy_engine(runner, options) as engine:
        asyncio.run(all_of_them(engine))
        found = checks_of(engine)
    assert found.wrong == 0
    assert 0 < found.hits
    assert found.checked <= found.hits
    if (talks, runner.kv.total, runner.recurrent.total) == (2, 300, 4):
        assert found.checked > 0


def test_a_check_gives_way_to_a_request_that_needs_its_room() -> None:
    checker = AnchorChecker(1.0, TOLERANCE)
    bench = Bench(ToyRunner(slots=2), chunk_tokens=8)
    bench.scheduler.checker = checker
    bench.submit(prompt_of(0, 40), 4)
    bench.drain()
    job = bench.submit([*prompt_of(0, 40), *prompt_of(1, 60)], 4)
    bench.scheduler.plan()
    assert [running.shadow for running in bench.scheduler.running] == [False, True]
    assert job.check is not None
    other = bench.submit(prompt_of(2, 10), 3)
    bench.scheduler.plan()
    assert [running.shadow for running in bench.scheduler.running] == [False, False]
    assert other in bench.scheduler.running
    bench.drain()
    assert reply(job) == cold_tokens(job.tokens[: job.prompt], 4)
    assert reply(other) == cold_tokens(prompt_of(2, 10), 3)


def test_what_the_store_has_of_a_wrong_prompt_goes_too(tmp_path: Path) -> None:
    bench = tiered(ToyRunner(pages=40, context=190), tmp_path / "toy", chunk_tokens=64)
    prompt = prompt_of(0, 100)

    def submit() -> Job:
        job = agent_job(prompt, 70)
        bench.scheduler.submit(job)
        bench.drain()
        return job

    submit()
    bench.prefix.clear()
    store = bench.prefix._store
    assert store is not None
    store._disk._writer.submit(lambda: None).result()  # type: ignore[union-attr]
    assert submit().cached >= LEAST_GAIN, "it comes back from the file"
    assert bench.prefix.distrust(job_key := Job("x", prompt, 100).key(), 100) > 0
    assert not list((tmp_path / "toy").iterdir())
    assert bench.prefix.find(job_key, 100).matched == 0
    bench.scheduler.check_integrity()
    assert submit().cached == 0
    store.close()


@given(st.floats(0.01, 1.0), st.integers(1, 300))
def test_the_share_is_evenly_spread(share: float, hits: int) -> None:
    checker = AnchorChecker(share, TOLERANCE)
    taken = []
    for _ in range(hits):
        taken.append(checker.wants())
        if taken[-1]:
            checker.begun()
    assert taken[0]
    for end in range(1, hits + 1):
        assert abs(sum(taken[:end]) - share * end) <= 1.001


def test_a_hit_without_room_is_made_up_for() -> None:
    checker = AnchorChecker(0.25, TOLERANCE)
    assert checker.wants()  # and there was no room
    assert checker.wants()
    checker.begun()
    assert [checker.wants() for _ in range(3)].count(True) <= 1
    nothing = AnchorChecker(0.0, TOLERANCE)
    assert not any(nothing.wants() for _ in range(50))
    assert nothing.counts() is None


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(0.0, 0.5))
def test_differences_are_in_units_of_the_spread(seed: int, scale: float, noise: float) -> None:
    dice = np.random.default_rng(seed)
    cold = dice.standard_normal(2000).astype(np.float32)
    warm = (cold + noise * dice.standard_normal(2000)).astype(np.float32)
    found = row_difference(np.float32(scale) * warm, np.float32(scale) * cold)
    assert found == pytest.approx(noise, rel=0.1, abs=1e-6)
    other = dice.standard_normal(2000).astype(np.float32)
    assert row_difference(other, cold) > 1.2 > TOLERANCE_BF16
    other[5] = np.nan
    assert row_difference(other, cold) == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe"])
def test_real_layers_agree_in_both_dtypes_and_damage_shows(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Random weights, in other chunks: far inside the tolerance. The state of another prompt: outside."""
    oracle = Oracle(family, tmp_path, 1, {})
    runner = load_runner(tmp_path, EngineOptions(threads=1, context=512, max_running=3), dtype)
    stem, tail = oracle.tokens(150), oracle.tokens(40, seed=5)
    cold = _last_row(runner, [[*stem, *tail]], 64)
    limit = tolerance_for(runner.info.dtype)
    assert limit == (TOLERANCE if dtype is torch.float32 else TOLERANCE_BF16)
    assert row_difference(_last_row(runner, [stem, [*stem, *tail]], 17), cold) < limit / 2
    other = row_difference(_last_row(runner, [[*oracle.tokens(150, seed=9), *tail]], 64), cold)
    assert other > (TOLERANCE if family == "qwen3_5_moe" else limit)  # whose tiny state says little


def _last_row(runner: LoadedModel, prompts: list[list[int]], chunk: int) -> Row:
    """The logits behind the last of `prompts`, each resumed where the one before it ended."""
    rows: list[torch.Tensor] = []

    class Recording(Bench):
        def run_step(self, chunks: list[Chunk]) -> torch.Tensor:
            rows.append(runner.step(chunks))
            return rows[-1]

    bench = Recording(runner, chunk_tokens=chunk)
    for prompt in prompts:
        job = bench.submit(prompt, 1)
        bench.drain()
    assert job.cached == (len(prompts[0]) if len(prompts) > 1 else 0)
    bench.prefix.clear()
    found: Row = rows[-1][-1].float().numpy()
    return found


def test_the_embedded_model_agrees_with_itself_and_sees_a_damaged_state() -> None:
    options = EngineOptions(threads=1, context=4096, verify_anchors=1.0)
    engine = start_engine(options)
    try:
        talk = [Message("system", (Text("You are terse. " * 60),))]
        for turn in range(4):
            talk.append(Message("user", (Text(f"Question {turn}: what is ftagent?"),)))
            events = run(engine, GenerateRequest(Conversation(tuple(talk)), FREE_8))
            last(events)
            talk.append(Message("assistant", (Text("It is this program."),)))
        found = checks_of(engine)
        assert (found.checked, found.wrong) == (3, 0)
        for anchor in anchors_of(engine):
            anchor.snapshot.recurrent.mul_(0.5)
        talk.append(Message("user", (Text("And now?"),)))
        run(engine, GenerateRequest(Conversation(tuple(talk)), FREE_8))
        assert checks_of(engine).wrong == 1
    finally:
        engine.close()
    engine.scheduler.check_integrity()
