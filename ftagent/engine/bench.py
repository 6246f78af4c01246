"""Decode and prefill speed of a running engine, measured through its own face, as a client would see it.

Prompts are pieces of Python's own documentation and sources, since random token ids would ask for experts
as no text does. Every run starts at another place of that text, so no run resumes another's state. Knows no
command line.
"""

from __future__ import annotations

import asyncio
import pydoc_data.topics
import resource
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.engine.stats import ExpertStats, Snapshot
from ftagent.errors import ConfigError, EngineError
from ftagent.events import Event, Failed, Finished, Progress

if TYPE_CHECKING:
    from ftagent.engine.machine.record_threads import ExpertSizes

_SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


class Measurable(Protocol):
    """What is needed of `engine.LocalEngine`."""

    @property
    def model(self) -> ModelInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    def encode(self, text: str) -> list[int]: ...

    def stats(self) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class ExpertFigures:
    """What the experts did in the measured runs; None where the engine does not count it.

    Counts, bytes and times are those of the runs together, warm-up left out; `hit_rate` is of all look-ups in
    them, 0..1. `q`, `q_optimum` and the mode are the engine's last: of its last 64 steps.
    """

    hit_rate: float | None
    hits: int
    misses: int
    evictions: int
    fetched: int | None
    cpu_computed: int | None
    split: int | None
    backfilled: int | None
    guessed: int | None
    bytes_link: int | None
    bytes_cpu: int | None
    link_ns: int | None
    cpu_ns: int | None
    q: float | None
    q_optimum: float | None
    mode: str | None
    mode_reason: str | None
    layer_hit_rate: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Tokens/s behind a prompt of `context` tokens; `tokens_per_s` is the median of `runs`."""

    model: str
    device: str
    context: int
    tokens: int
    tokens_per_s: float
    runs: tuple[float, ...]
    peak_rss_bytes: int
    experts: ExpertFigures | None = None


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Seconds from request to first token for a cold prompt; `seconds` is the median of `runs`."""

    model: str
    device: str
    tokens: int
    seconds: float
    tokens_per_s: float
    runs: tuple[float, ...]
    peak_rss_bytes: int
    experts: ExpertFigures | None = None


class _Times(NamedTuple):
    start: float
    first: float
    end: float


def bench_decode(
    engine: Measurable, *, context: int = 512, tokens: int = 256, repeats: int = 3
) -> DecodeResult:
    """Greedy decode of `tokens` tokens behind `context` tokens, `repeats` times after one warm-up.

    Raises ConfigError when that does not fit the model's context, EngineError when the engine fails.
    """
    _check(engine, context + tokens, repeats)
    if tokens < 2:
        raise ConfigError("tokens must be at least 2: the first one belongs to the prefill")
    prompts = _prompts(engine, context, repeats + 1)
    asyncio.run(_run(engine, prompts[0], tokens))
    before = engine.stats().experts
    times = [asyncio.run(_run(engine, prompt, tokens)) for prompt in prompts[1:]]
    rates = tuple((tokens - 1) / (run.end - run.first) for run in times)
    return DecodeResult(
        model=engine.model.id,
        device=engine.model.device,
        context=context,
        tokens=tokens,
        tokens_per_s=statistics.median(rates),
        runs=rates,
        peak_rss_bytes=peak_rss_bytes(),
        experts=expert_figures(before, engine.stats().experts),
    )


def bench_prefill(engine: Measurable, *, tokens: int = 20_000, repeats: int = 3) -> PrefillResult:
    """Time to the first token behind a cold prompt of `tokens` tokens, `repeats` times after a short warm-up.

    Raises ConfigError when that does not fit the model's context, EngineError when the engine fails.
    """
    _check(engine, tokens + 1, repeats)
    prompts = _prompts(engine, tokens, repeats)
    asyncio.run(_run(engine, prompts[0][-min(tokens, 1024) :], 1))
    before = engine.stats().experts
    times = [asyncio.run(_run(engine, prompt, 1)) for prompt in prompts]
    seconds = tuple(run.first - run.start for run in times)
    median = statistics.median(seconds)
    return PrefillResult(
        model=engine.model.id,
        device=engine.model.device,
        tokens=tokens,
        seconds=median,
        tokens_per_s=tokens / median,
        runs=seconds,
        peak_rss_bytes=peak_rss_bytes(),
        experts=expert_figures(before, engine.stats().experts),
    )


def expert_figures(before: ExpertStats | None, after: ExpertStats | None) -> ExpertFigures | None:
    """What happened between two looks; None for a model without experts."""
    if after is None:
        return None
    first = before or ExpertStats(0, 0, 0, 0, 0, ())
    hits, misses = after.hits - first.hits, after.misses - first.misses

    def grown(now: int | None, then: int | None) -> int | None:
        return None if now is None else now - (then or 0)

    return ExpertFigures(
        hit_rate=hits / (hits + misses) if hits + misses else None,
        hits=hits,
        misses=misses,
        evictions=after.evictions - first.evictions,
        fetched=grown(after.fetched, first.fetched),
        cpu_computed=grown(after.cpu_computed, first.cpu_computed),
        split=grown(after.split, first.split),
        backfilled=grown(after.backfilled, first.backfilled),
        guessed=grown(after.guessed, first.guessed),
        bytes_link=grown(after.bytes_link, first.bytes_link),
        bytes_cpu=grown(after.bytes_cpu, first.bytes_cpu),
        link_ns=grown(after.link_ns, first.link_ns),
        cpu_ns=grown(after.cpu_ns, first.cpu_ns),
        q=after.q,
        q_optimum=after.q_optimum,
        mode=after.mode,
        mode_reason=after.mode_reason,
        layer_hit_rate=after.layer_hit_rate,
    )


def model_expert_sizes(model: str) -> ExpertSizes:
    """Sizes of the experts of `model` (a directory, or demo) in the dtype that the engine computes in.

    Raises LoadFailed for what is no model, ConfigError for a model without experts.
    """
    from ftagent import demo
    from ftagent.engine.load import SMALL_MODEL_BYTES
    from ftagent.engine.machine.record_pool import expert_sizes
    from ftagent.engine.models.registry import model_config
    from ftagent.engine.models.sizes import parameters

    directory = demo.directory_of(model)
    config = model_config(directory)
    if not config.experts:
        raise ConfigError(f"{directory}: a model without experts; give --hidden and --intermediate")
    dtype = "float32" if 4 * parameters(config) <= SMALL_MODEL_BYTES else "bfloat16"
    return expert_sizes(config.hidden, config.expert_intermediate, dtype)


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB, macOS in bytes


def _check(engine: Measurable, tokens: int, repeats: int) -> None:
    context = engine.model.context
    if tokens > context:
        raise ConfigError(f"{tokens} tokens do not fit the context of {context}: ask for fewer tokens")
    if repeats < 1:
        raise ConfigError("repeats must be at least 1")


def _prompts(engine: Measurable, tokens: int, count: int) -> list[list[int]]:
    """`count` stretches of `tokens` ids, each beginning elsewhere in the text (round and round)."""
    text = "\n".join(body for _, body in sorted(pydoc_data.topics.topics.items()))
    ids = engine.encode(text)
    copies = -(-(tokens + len(ids)) // len(ids))
    step = max(1, len(ids) // count)
    endless = ids * copies
    return [endless[place * step : place * step + tokens] for place in range(count)]


async def _run(engine: Measurable, prompt: Sequence[int], tokens: int) -> _Times:
    start = time.perf_counter()
    first: float | None = None
    request = GenerateRequest(prompt, replace(_SAMPLING, max_tokens=tokens))
    async for event in engine.generate(request):
        if isinstance(event, Failed):
            raise EngineError(event.message)
        if first is None and not isinstance(event, Progress):
            first = time.perf_counter()
        if isinstance(event, Finished):
            count = event.usage.completion_tokens
            if count != tokens:
                raise EngineError(f"the engine made {count} tokens instead of {tokens}")
    if first is None:
        raise EngineError("the engine gave no answer")
    return _Times(start, first, time.perf_counter())
