"""The figures of engines that are not ours, from their Prometheus metrics: vLLM, SGLang, llama.cpp's server.

What an engine does not export is unknown. Names of metrics: https://docs.vllm.ai/en/latest/usage/metrics/,
https://docs.sglang.ai/references/production_metrics.html, llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ftagent.engine.api import ModelInfo
from ftagent.engine.stats import Phase, PoolStats, Snapshot
from ftagent.errors import EngineError

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")
_SHARE_UNITS = 1000  # a share of the KV cache as a pool: thousandths, of unknown size


class Names(NamedTuple):
    """What an engine calls its figures; the first of several names that it exports counts."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    generated: tuple[str, ...]  # counters of tokens
    prompt: tuple[str, ...]
    cached: tuple[str, ...] = ()  # counter of prompt tokens that were not computed
    kv_share: tuple[str, ...] = ()  # 0..1
    decode_speed: tuple[str, ...] = ()


ENGINES: Mapping[str, Names] = {
    "vllm": Names(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        generated=("vllm:generation_tokens_total",),
        prompt=("vllm:prompt_tokens_total",),
        cached=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        kv_share=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    "sglang": Names(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        generated=("sglang:generation_tokens_total",),
        prompt=("sglang:prompt_tokens_total",),
        cached=("sglang:cached_tokens_total",),
        kv_share=("sglang:token_usage",),
        decode_speed=("sglang:gen_throughput",),
    ),
    "llamacpp": Names(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        generated=("llamacpp:tokens_predicted_total",),
        prompt=("llamacpp:prompt_tokens_total",),
        kv_share=("llamacpp:kv_cache_usage_ratio",),
    ),
}


def samples(text: str) -> dict[str, float]:
    """Values of a Prometheus text by name; samples that differ by labels are added up."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            try:
                values[match[1]] = values.get(match[1], 0.0) + float(match[2])
            except ValueError:
                continue
    return values


class MetricsReader:
    """Turns one engine's metrics into snapshots; rates come from the counters of two readings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: tuple[float, int, int] | None = None  # time, tokens generated, prompt tokens
        self._readings = 0

    def snapshot(self, text: str) -> Snapshot:
        """The figures in `text`. Raises EngineError when no engine that we know exports them."""
        values = samples(text)
        names = next((names for names in ENGINES.values() if _first(values, names.running) is not None), None)
        if names is None:
            known = ", ".join(ENGINES)
            raise EngineError(f"/metrics has the figures of no engine that ftagent knows ({known})")
        now, self._readings = self._clock(), self._readings + 1
        generated, prompt = int(_first(values, names.generated) or 0), int(_first(values, names.prompt) or 0)
        before, self._before = self._before, (now, generated, prompt)
        speed = prefill = None
        if before is not None and now > before[0]:
            speed = max(0, generated - before[1]) / (now - before[0])
            prefill = max(0, prompt - before[2]) / (now - before[0])
        told = _first(values, names.decode_speed)
        running = int(_first(values, names.running) or 0)
        share = _first(values, names.kv_share)
        return Snapshot(
            time=now,
            step=self._readings,
            phase=_phase(running, speed, prefill),
            running=running,
            waiting=int(_first(values, names.waiting) or 0),
            decode_tokens_per_s=told if told is not None else speed,
            prefill_tokens_per_s=prefill,
            prompt_tokens=prompt,
            cached_tokens=int(_first(values, names.cached) or 0),
            completion_tokens=generated,
            pools=() if share is None else (PoolStats("kv", round(share * _SHARE_UNITS), _SHARE_UNITS, 0),),
            experts=None,
        )


def model_of(listed: object, url: str) -> ModelInfo:
    """The first model of /v1/models; a context length that is not told is 0. Raises EngineError."""
    try:
        entry = listed["data"][0]  # type: ignore[index]
        context = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx_train") or 0
        return ModelInfo(id=str(entry["id"]), family="", context=int(context), vocab=0, device="")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{url}: /v1/models is not a list of models; is it an engine?") from error


def _first(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _phase(running: int, speed: float | None, prefill: float | None) -> Phase:
    if not running:
        return "idle"
    if prefill and speed:
        return "mixed"
    return "prefill" if prefill else "decode"
