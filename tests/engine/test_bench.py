"""The benchmark's arithmetic, against an engine whose clock the test sets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from ftagent import demo
from ftagent.engine import bench
from ftagent.engine.api import GenerateRequest, ModelInfo
from ftagent.engine.stats import ExpertStats, Snapshot
from ftagent.errors import ConfigError, EngineError, LoadFailed
from ftagent.events import Event, Failed, Finished, Progress, TextDelta, Usage
from tests.support.scripted import ScriptedEngine


class Clocked:
    """Takes `prefill` seconds for a prompt and then `per_token` seconds for each further token."""

    model = ModelInfo(id="clocked", family="toy", context=5000, vocab=256)

    def __init__(self, prefills: list[float], per_token: list[float]) -> None:
        self.now = 100.0
        self.prefills = prefills
        self.per_token = per_token
        self.prompts: list[tuple[int, ...]] = []
        self.fails = False
        self.experts: ExpertStats | None = None

    def stats(self) -> Snapshot:
        blank = ScriptedEngine(lambda request: []).stats()
        return replace(blank, experts=self.experts)

    def clock(self) -> float:
        return self.now

    def encode(self, text: str) -> list[int]:
        return list(text[:3000].encode())

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        assert isinstance(request.prompt, list)
        assert request.sampling.ignore_eos
        self.prompts.append(tuple(request.prompt))
        yield Progress("prefill", 1, 2)
        self.now += self.prefills.pop(0)
        if self.fails:
            yield Failed("out of memory")
            return
        tokens = request.sampling.max_tokens or 0
        rate = self.per_token.pop(0)
        for index in range(tokens):
            self.now += rate if index else 0
            yield TextDelta("x")
        if self.experts is not None:
            known = self.experts
            link = None if known.bytes_link is None else known.bytes_link + 100
            self.experts = known._replace(hits=known.hits + 30, misses=known.misses + 10, bytes_link=link)
        yield Finished("length", Usage(len(request.prompt), tokens))


def engine_of(monkeypatch: pytest.MonkeyPatch, prefills: list[float], per_token: list[float]) -> Clocked:
    engine = Clocked(prefills, per_token)
    monkeypatch.setattr("ftagent.engine.bench.time.perf_counter", engine.clock)
    return engine


def test_decode_rate_leaves_out_prefill_and_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, [3.0] * 4, [9.0, 0.5, 0.01, 0.1])
    result = bench.bench_decode(engine, context=64, tokens=11, repeats=3)
    assert result.runs == pytest.approx((2, 100, 10))
    assert result.tokens_per_s == pytest.approx(10)
    assert (result.model, result.context, result.tokens) == ("clocked", 64, 11)
    assert result.peak_rss_bytes > 1 << 20
    assert {len(prompt) for prompt in engine.prompts} == {64}
    assert len({prompt[:8] for prompt in engine.prompts}) == 4  # no run can resume another


def test_prefill_is_the_time_to_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, [50.0, 4.0, 2.0, 8.0], [1.0] * 4)
    result = bench.bench_prefill(engine, tokens=4000, repeats=3)
    assert result.runs == pytest.approx((4, 2, 8))
    assert result.seconds == pytest.approx(4)
    assert result.tokens_per_s == pytest.approx(1000)
    assert [len(prompt) for prompt in engine.prompts] == [1024, 4000, 4000, 4000]
    assert len({prompt[:16] for prompt in engine.prompts}) == 4


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, [1.0], [1.0])
    with pytest.raises(ConfigError, match="5001 tokens do not fit the context of 5000"):
        bench.bench_prefill(engine, tokens=5000)
    with pytest.raises(ConfigError, match="at least 2"):
        bench.bench_decode(engine, tokens=1)
    with pytest.raises(ConfigError, match="repeats"):
        bench.bench_decode(engine, repeats=0)
    engine.fails = True
    with pytest.raises(EngineError, match="out of memory"):
        bench.bench_prefill(engine, tokens=100, repeats=1)


def test_experts_are_counted_over_the_measured_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, [1.0] * 8, [1.0] * 8)
    result = bench.bench_decode(engine, context=64, tokens=4, repeats=2)
    assert result.experts is None
    engine.experts = ExpertStats(500, 7, 9, 9, 3, (0.5,), bytes_link=1000, q=0.25, mode="hybrid")
    found = bench.bench_decode(engine, context=64, tokens=4, repeats=2).experts  # and one run to warm up
    assert found is not None
    assert (found.hits, found.misses, found.evictions, found.bytes_link) == (60, 20, 0, 200)
    assert found.hit_rate == 0.75
    assert (found.q, found.q_optimum, found.mode, found.bytes_cpu) == (0.25, None, "hybrid", None)
    assert found.layer_hit_rate == (0.5,)
    prefill = bench.bench_prefill(engine, tokens=100, repeats=1).experts
    assert prefill is not None
    assert (prefill.hits, prefill.misses, prefill.bytes_link) == (30, 10, 100)


def test_the_experts_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    sizes = bench.model_expert_sizes("demo")
    assert sizes == bench.model_expert_sizes(str(demo.directory()))
    assert sizes.dtype == "float32"
    assert sizes.row_bytes % 4096 == 0
    assert 0 <= sizes.row_bytes - 12 * sizes.hidden * sizes.intermediate < 4096
    with pytest.raises(LoadFailed, match="no such model directory"):
        bench.model_expert_sizes(str(tmp_path / "none"))
