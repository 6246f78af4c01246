"""The engine's figures as words for the side column, the status row and /stats. Knows no widget.

Unknown is a dash, never zero. Old figures carry their age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ftagent.engine.api import Health, ModelInfo
from ftagent.engine.stats import PoolStats, Snapshot
from ftagent.events import Usage

UNKNOWN = "–"
STALE_AFTER_S = 2.0
_PHASES = {"idle": "○ idle", "prefill": "◐ prefill", "decode": "● decode", "mixed": "◉ mixed"}


class Row(NamedTuple):
    """A figure and its name. Without a value (None) the label has the line; an empty one makes a heading."""

    label: str
    value: str | None


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """What the chat itself knows of its newest turn."""

    first_token_s: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """One tick's worth. `stale_s` is the age in whole seconds if the figures are too old to trust."""

    rows: tuple[Row, ...]
    brief: tuple[str, ...]  # the same for one row, the most telling first
    stale_s: int | None = None


def figures(
    snapshot: Snapshot | None, model: ModelInfo, health: Health, turn: TurnFigures, now: float
) -> Figures:
    """Words for `snapshot` at `now` (time.monotonic); None when the engine gave none."""
    phase = _PHASES[snapshot.phase] if snapshot else UNKNOWN
    if health != "ok":
        phase = f"✕ {health}"
    speed = number(snapshot.decode_tokens_per_s if snapshot else None, "tok/s")
    prefill = number(snapshot.prefill_tokens_per_s if snapshot else None, "tok/s")
    hits = percent(snapshot.experts.hit_rate if snapshot and snapshot.experts else None)
    slots = _units(_pool(snapshot, "experts"))
    kv = _tokens(_pool(snapshot, "kv"))
    limit = f"{model.context:,}" if model.context else UNKNOWN
    context = f"{_context_used(snapshot, turn)} / {limit}"
    rows = (
        Row("phase", phase),
        Row("decode", speed),
        Row("prefill", prefill),
        Row("expert hits", hits),
        Row("expert slots", slots),
        Row("KV tokens", kv),
        Row("context", context),
        Row("first token", number(turn.first_token_s, "s", digits=2)),
        Row("cached", _cached(turn.usage)),
    )
    brief = (phase, speed, f"hits {hits}", f"slots {slots}", f"KV {kv}", f"context {context}")
    return Figures(rows, brief, _stale_s(snapshot, health, now))


def fit(parts: tuple[str, ...], width: int, separator: str = "  ") -> str:
    """As many whole `parts` as fit into `width` columns."""
    line = ""
    for part in parts:
        longer = f"{line}{separator}{part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


def details(snapshot: Snapshot) -> list[Row]:
    """Everything a snapshot says, for /stats."""
    rows = [
        Row("step", f"{snapshot.step:,}"),
        Row("requests", f"{snapshot.running} running, {snapshot.waiting} waiting"),
        Row(
            "prompt tokens", f"{snapshot.prompt_tokens:,} since start, {snapshot.cached_tokens:,} from cache"
        ),
        Row("generated", f"{snapshot.completion_tokens:,} tokens since start"),
    ]
    for pool in snapshot.pools:
        whole = size(pool.total * pool.unit_bytes)
        rows.append(
            Row(f"pool {pool.name}", f"{pool.used:,} / {pool.total:,} of {size(pool.unit_bytes)}, {whole}")
        )
    if experts := snapshot.experts:
        rows.append(
            Row(
                "experts",
                f"{experts.hits:,} hits, {experts.misses:,} misses, {experts.evictions:,} evictions",
            )
        )
        layers = " ".join(percent(rate) for rate in experts.layer_hit_rate)
        rows.append(Row("hits by layer", layers or UNKNOWN))
    rows.append(Row("skipped anchors", f"{snapshot.anchors_skipped:,}"))
    return rows


def _stale_s(snapshot: Snapshot | None, health: Health, now: float) -> int | None:
    if snapshot is None:
        return None
    age = now - snapshot.time
    # An idle engine takes no steps: its last figures stay true however old they are.
    busy = snapshot.phase != "idle"
    return int(age) if health != "ok" or (busy and age > STALE_AFTER_S) else None


def _pool(snapshot: Snapshot | None, name: str) -> PoolStats | None:
    return next((pool for pool in snapshot.pools if pool.name == name), None) if snapshot else None


def _units(pool: PoolStats | None) -> str:
    return f"{pool.used:,} / {pool.total:,}" if pool else UNKNOWN


def _tokens(pool: PoolStats | None) -> str:
    if pool is None or not pool.tokens_per_unit:
        return _units(pool)
    return f"{pool.used * pool.tokens_per_unit:,} / {pool.total * pool.tokens_per_unit:,}"


def _context_used(snapshot: Snapshot | None, turn: TurnFigures) -> str:
    """Tokens of the running request, else of the turn that ended last."""
    if snapshot and snapshot.running and snapshot.context_used:
        return f"{snapshot.context_used:,}"
    if turn.usage:
        return f"{turn.usage.prompt_tokens + turn.usage.completion_tokens:,}"
    return UNKNOWN


def _cached(usage: Usage | None) -> str:
    return f"{usage.cached_tokens:,} / {usage.prompt_tokens:,}" if usage else UNKNOWN


def number(value: float | None, unit: str, digits: int = 1) -> str:
    """A quantity with its unit."""
    return f"{value:,.{digits}f} {unit}" if value is not None else UNKNOWN


def percent(share: float | None) -> str:
    """A share of 0 to 1."""
    return f"{100 * share:.1f} %" if share is not None else UNKNOWN


def size(count: int) -> str:
    """Bytes in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"
