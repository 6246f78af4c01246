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
from typing import NamedTuple, Protocol

from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.errors import ConfigError, EngineError
from ftagent.events import Event, Failed, Finished, Progress

_SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


class Measurable(Protocol):
    """What is needed of `engine.LocalEngine`."""

    @property
    def model(self) -> ModelInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    def encode(self, text: str) -> list[int]: ...


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
    times = [asyncio.run(_run(engine, prompt, tokens)) for prompt in prompts][1:]
    rates = tuple((tokens - 1) / (run.end - run.first) for run in times)
    return DecodeResult(
        model=engine.model.id,
        device=engine.model.device,
        context=context,
        tokens=tokens,
        tokens_per_s=statistics.median(rates),
        runs=rates,
        peak_rss_bytes=peak_rss_bytes(),
    )


def bench_prefill(engine: Measurable, *, tokens: int = 20_000, repeats: int = 3) -> PrefillResult:
    """Time to the first token behind a cold prompt of `tokens` tokens, `repeats` times after a short warm-up.

    Raises ConfigError when that does not fit the model's context, EngineError when the engine fails.
    """
    _check(engine, tokens + 1, repeats)
    prompts = _prompts(engine, tokens, repeats)
    asyncio.run(_run(engine, prompts[0][-min(tokens, 1024) :], 1))
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
    )


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
