"""Prompts of a device that leave its pools and come back, from host memory and from files, under a real
scheduler: every reply is that of transformers, whatever came from where.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftagent.engine.context import disk, tiers
from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.tiers import PrefixStore
from ftagent.engine.job import Job
from ftagent.engine.options import EngineOptions
from ftagent.engine.prefixes import prefix_dir, store_for
from tests.engine.device.test_kept import SMALL, count_passes
from tests.engine.models.tiny import Oracle
from tests.engine.test_reuse import greedy
from tests.engine.test_scheduler import Bench, reply
from tests.support.device_twin import load_on, twin_options

FAMILIES = [pytest.param("qwen3_moe", marks=pytest.mark.slow), "qwen3_5_moe"]

pytestmark = pytest.mark.timeout(600)  # an interpreted step takes a second, and more where others work


class Started:
    """A device runner with its tiers under a scheduler, as the engine puts them together."""

    def __init__(self, device: torch.device, oracle: Oracle, options: EngineOptions) -> None:
        self.oracle = oracle
        self.runner = load_on(device, oracle.directory, options, torch.float32)
        store = store_for(self.runner, oracle.directory, options)
        assert store is not None
        self.store: PrefixStore = store
        self.bench = Bench(self.runner, chunk_tokens=options.chunk_tokens or 128)
        self.bench.prefix = PrefixCache(
            self.runner.kv, self.runner.recurrent, self.runner.kept.states, self.store
        )
        self.bench.scheduler.prefix = self.bench.prefix

    def submit(self, prompt: list[int], count: int = 2, marks: tuple[int, ...] = (), lasting: int = 0) -> Job:
        marks = tuple(sorted({*marks, *([lasting] if lasting else []), len(prompt)}))
        job = Job(
            "agent",
            list(prompt),
            len(prompt) + count,
            marks,
            agent=True,
            lasting=(lasting,) if lasting else (),
        )
        self.bench.scheduler.submit(job)
        return job

    def run(self, prompt: list[int], **more: int) -> Job:
        job = self.submit(prompt, **more)  # type: ignore[arg-type]
        self.bench.drain()
        self.check(job)
        return job

    def check(self, job: Job) -> None:
        prompt = job.tokens[: job.prompt]
        assert reply(job) == greedy(self.oracle, prompt, len(reply(job)))
        self.store._host.check_integrity()
        self.runner.contents.check_integrity()

    def close(self) -> None:
        self.store.close()
        self.runner.close()


@contextmanager
def started(
    device: torch.device, oracle: Oracle, options: EngineOptions, **changes: object
) -> Iterator[Started]:
    found = Started(device, oracle, replace(options, **changes))  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tiers, "LEAST_GAIN", 1)
    return prefix_dir()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_that_take_turns_come_back_from_host_memory(
    family: str, model: Path, device: torch.device
) -> None:
    """Three conversations where two have room: each turn costs what is new in it."""
    oracle = Oracle(family, model, 20, SMALL)
    options = twin_options("fused", context=256)
    with started(device, oracle, options, anchors="1MiB") as engine:
        talks = [oracle.tokens(100, seed) for seed in range(3)]
        for turn in range(2):
            for place, history in enumerate(talks):
                job = engine.run(history)
                assert job.cached == (101 if turn else 0)
                talks[place] = [*job.tokens, *oracle.tokens(4, 10 + place)]
        assert engine.store.restored_tokens >= 2 * 101


def test_two_requests_at_once_resume_one_prefix_from_host_memory(model: Path, device: torch.device) -> None:
    """Both find it, neither writes into what the other reads; one is cancelled while it decodes."""
    oracle = Oracle("qwen3_5_moe", model, 21, SMALL)
    options = twin_options("fused", context=256, max_running=2)
    with started(device, oracle, options, anchors="1MiB") as engine:
        history = oracle.tokens(90)
        first = engine.run(history)
        engine.bench.prefix.make_room(engine.runner.kv.total)  # all of it goes to host memory
        assert engine.bench.prefix.find(first.key(), 91).position == 0
        jobs = [engine.submit([*first.tokens, *oracle.tokens(5, seed)], 4) for seed in (1, 2, 1)]
        for _ in range(4):
            engine.bench.step()
        jobs[2].cancelled = True
        engine.bench.drain()
        for job in jobs[:2]:
            engine.check(job)
            assert job.cached == 91
        assert engine.store.restored_tokens == 91


@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_start_finds_the_prefix_in_files(
    family: str, model: Path, device: torch.device, cache: Path
) -> None:
    oracle = Oracle(family, model, 22, SMALL)
    options = replace(twin_options("fused", context=192), keep_prefixes=True)
    system = oracle.tokens(50)
    for start in range(2):
        prompt = [*system, *oracle.tokens(7, 1 + start)]
        with started(device, oracle, options) as engine:
            assert engine.run(prompt, count=1, lasting=50).cached == (50 if start else 0)
    (file,) = cache.glob("*/*.prefix")
    damaged = bytearray(file.read_bytes())
    damaged[-100] ^= 4
    file.write_bytes(damaged)
    with started(device, oracle, options) as engine:
        assert engine.run(prompt, count=1, lasting=50).cached == 0
    assert len(list(cache.glob("*/*.prefix"))) == 1, "it was written again"
    weights = model / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    with started(device, oracle, options) as engine:
        assert engine.run(prompt, count=1).cached == 0, "the weights may be others"


def test_a_file_of_another_version_is_dropped_with_one_line(
    model: Path,
    device: torch.device,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    oracle = Oracle("qwen3_5_moe", model, 23, SMALL)
    options = replace(twin_options("fused", context=128), keep_prefixes=True)
    prompt = oracle.tokens(55)
    with monkeypatch.context() as later, started(device, oracle, options) as engine:
        later.setattr(disk, "VERSION", disk.VERSION + 1)
        engine.run(prompt, count=1, lasting=50)
        engine.store.close()
    assert len(list(cache.glob("*/*.prefix"))) == 1
    with started(device, oracle, options) as engine:
        assert engine.run(prompt, count=1).cached == 0
    ours = [record for record in caplog.records if record.name.startswith("ftagent")]
    assert [record.levelname for record in ours] == ["WARNING"]
    assert not list(cache.glob("*/*.prefix"))


def test_two_engines_at_once_share_the_files(model: Path, device: torch.device, cache: Path) -> None:
    oracle = Oracle("qwen3_5_moe", model, 24, SMALL)
    options = replace(twin_options("fused", context=192), keep_prefixes=True)
    system = oracle.tokens(60)
    with started(device, oracle, options) as one, started(device, oracle, options) as two:
        jobs = [engine.submit([*system, *oracle.tokens(5, 3)], lasting=60) for engine in (one, two)]
        while any(engine.bench.step() for engine in (one, two)):
            pass
        for engine, job in zip((one, two), jobs, strict=True):
            engine.check(job)
        one.store._disk.close()  # type: ignore[union-attr]
        assert len(list(cache.glob("*/*.prefix"))) == 1
        two.bench.prefix.clear()
        assert two.run([*system, *oracle.tokens(5, 4)]).cached == 60, "what the other has written"


def test_twenty_boundaries_cost_one_pass_over_the_experts(model: Path, device: torch.device) -> None:
    """And each of them can be resumed."""
    oracle = Oracle("qwen3_5_moe", model, 25, SMALL)
    options = replace(twin_options("fused", context=256), chunk_tokens=256)
    with started(device, oracle, options, anchors="40") as engine:
        passes = count_passes(engine.runner)
        prompt, marks = oracle.tokens(210), tuple(range(10, 210, 10))
        engine.run(prompt, marks=marks, count=1)  # type: ignore[arg-type]
        assert passes == [210]
        again = engine.run([*prompt[:130], *oracle.tokens(9, 1)], count=1)
        assert again.cached == 130
        assert passes[1:] == [9]


def check_script(oracle: Oracle, device: torch.device, seed: int, turns: int) -> None:
    """Random edits of three conversations in pages for one and host memory for few: prompts come and go at
    every turn, requests run together and are cancelled.
    """
    dice = random.Random(seed)
    options = replace(twin_options("fused", context=256, max_running=2), chunk_tokens=dice.choice([24, 128]))
    size = dice.choice(["60KiB", "150KiB", "1MiB"])
    with started(device, oracle, options, anchors=size) as engine:
        talks = [oracle.tokens(70, 100 * seed + place) for place in range(3)]
        for turn in range(turns):
            chosen = dice.sample(range(3), 2)
            jobs = []
            for place in chosen:
                marks = tuple(dice.sample(range(10, len(talks[place])), 2))
                jobs.append(engine.submit(talks[place], 3, marks))
            for _ in range(dice.randrange(5)):
                engine.bench.step()
            jobs[0].cancelled = dice.random() < 0.3
            engine.bench.drain()
            for place, job in zip(chosen, jobs, strict=True):
                engine.check(job)
                kept = job.tokens[: dice.randrange(40, len(job.tokens) + 1)]
                talks[place] = [*kept, *oracle.tokens(dice.randrange(1, 12), seed + turn)][:110]
        engine.bench.prefix.clear()
        assert engine.runner.kv.free_count == engine.runner.kv.total


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("family", FAMILIES)
def test_warm_equals_cold_when_everything_comes_and_goes(
    family: str, seed: int, model: Path, device: torch.device
) -> None:
    check_script(Oracle(family, model, 26, SMALL), device, seed, 2 if seed == 1 else 10)
