"""The engine's Snapshot for machines: Prometheus text and JSON.

https://prometheus.io/docs/instrumenting/exposition_formats/. An unknown figure is left out, never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from ftagent.engine.stats import ExpertStats, PoolStats, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    name: str
    kind: str  # "gauge" or "counter"
    help: str
    value: float | None
    labels: tuple[tuple[str, str], ...] = ()


def prometheus_text(snapshot: Snapshot) -> str:
    """All figures in the text format; samples of one name stand together under one header."""
    families: dict[str, list[Sample]] = {}
    for sample in _samples(snapshot):
        if sample.value is not None:
            families.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, samples in families.items():
        lines += [f"# HELP {name} {samples[0].help}", f"# TYPE {name} {samples[0].kind}"]
        lines += [f"{name}{_labels(sample.labels)} {sample.value!r}" for sample in samples]
    return "\n".join(lines) + "\n"


def plain(value: Any) -> Any:
    """Dataclasses and named tuples as JSON objects, other tuples as arrays."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _samples(snapshot: Snapshot) -> Iterator[Sample]:
    yield Sample("ftagent_steps_total", "counter", "Steps of the engine.", snapshot.step)
    yield Sample("ftagent_requests_running", "gauge", "Requests being generated.", snapshot.running)
    yield Sample("ftagent_requests_waiting", "gauge", "Requests in the queue.", snapshot.waiting)
    rate = "Tokens per second over the last 5 s."
    yield Sample("ftagent_decode_tokens_per_second", "gauge", rate, snapshot.decode_tokens_per_s)
    yield Sample("ftagent_prefill_tokens_per_second", "gauge", rate, snapshot.prefill_tokens_per_s)
    yield Sample(
        "ftagent_prompt_tokens_total", "counter", "Prompt tokens, cached ones too.", snapshot.prompt_tokens
    )
    yield Sample(
        "ftagent_cached_tokens_total", "counter", "Prompt tokens not computed.", snapshot.cached_tokens
    )
    yield Sample(
        "ftagent_completion_tokens_total", "counter", "Tokens generated.", snapshot.completion_tokens
    )
    yield Sample("ftagent_context_used_tokens", "gauge", "Longest running request.", snapshot.context_used)
    skipped = "States not kept because their pool was full."
    yield Sample("ftagent_anchors_skipped_total", "counter", skipped, snapshot.anchors_skipped)
    for kind, count in snapshot.divergences:
        text = "Prompts that changed where the one before should have been continued, by kind of block."
        yield Sample("ftagent_prompt_divergences_total", "counter", text, count, (("block", kind),))
    if snapshot.anchor_checks is not None:
        checks = snapshot.anchor_checks
        text = "Resumed prompts that were computed cold as well and compared."
        yield Sample("ftagent_anchor_checks_total", "counter", text, checks.checked)
        text = "Resumed prompts that were found to be wrong."
        yield Sample("ftagent_anchor_mismatches_total", "counter", text, checks.wrong)
    for pool in snapshot.pools:
        yield from _pool_samples(pool)
    if snapshot.experts is not None:
        yield from _expert_samples(snapshot.experts)


def _pool_samples(pool: PoolStats) -> Iterator[Sample]:
    labels = (("pool", pool.name),)
    yield Sample("ftagent_pool_used_units", "gauge", "Units held.", pool.used, labels)
    yield Sample("ftagent_pool_total_units", "gauge", "Units there are.", pool.total, labels)
    yield Sample("ftagent_pool_unit_bytes", "gauge", "Bytes of one unit.", pool.unit_bytes, labels)


def _expert_samples(experts: ExpertStats) -> Iterator[Sample]:
    yield Sample("ftagent_expert_hits_total", "counter", "Experts found in a slot.", experts.hits)
    yield Sample("ftagent_expert_misses_total", "counter", "Experts not found in a slot.", experts.misses)
    yield Sample(
        "ftagent_expert_evictions_total", "counter", "Experts dropped from a slot.", experts.evictions
    )
    share = "Share of look-ups found in a slot over the last 64 steps."
    yield Sample("ftagent_expert_hit_ratio", "gauge", share, experts.hit_rate)
    for layer, rate in enumerate(experts.layer_hit_rate):
        labels = (("layer", str(layer)),)
        yield Sample("ftagent_expert_layer_hit_ratio", "gauge", share, rate, labels)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
