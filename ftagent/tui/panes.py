"""The engine's figures for the screens that show little else: sections, sparklines, bars. Knows no widget.

Every section is there only while the engine tells its figures; unknown is a dash, never zero. Nothing is said
by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftagent.engine.stats import ExpertStats, PoolStats, RequestStats, Snapshot
from ftagent.events import Usage
from ftagent.tui.feed import Tick, Trace
from ftagent.tui.figures import UNKNOWN, Figures, Row, TurnFigures, figures, number, percent, size

COLUMNS, ROWS = 100, 20  # of a terminal that has room for an agent and figures beside it
_EIGHTHS = "▁▂▃▄▅▆▇█"
_POOL_NAMES = {"kv": "KV", "experts": "experts", "recurrent": "states"}
_SHOWN_REQUESTS = 5


def run_figures(tick: Tick, trace: Trace, width: int) -> Figures:
    """The column for the run screen and `ftagent top`, `width` columns wide, and the row for narrow ones."""
    snapshot, model = tick.snapshot, tick.model
    if model is None:
        words = tick.why or "waiting for the engine"
        return Figures((Row(words[:width], None),), (words,), _lost(tick))
    newest = snapshot.recent_requests[-1] if snapshot and snapshot.recent_requests else None
    plain = figures(snapshot, model, tick.health, _turn(newest), tick.now)
    values = dict(plain.rows)
    rows = [Row("Now", "")]
    rows += [Row(label, values[label]) for label in ("phase", "decode", "prefill", "context", "first token")]
    if snapshot:
        rows.append(Row("requests", f"{snapshot.running} + {snapshot.waiting} waiting"))
        rows.append(Row(sparkline(trace.decode, width), None))
        rows += _cache_rows(snapshot, newest, width)
        if snapshot.experts:
            rows += _expert_rows(snapshot, snapshot.experts, trace, width)
        rows += _pool_rows(snapshot.pools, width)
        rows += _request_rows(snapshot.recent_requests)
    shown = replace(plain, rows=tuple(rows))
    if tick.lost_s is None:
        return shown
    return replace(shown, brief=("✕ no answer", *plain.brief[1:]), stale_s=_lost(tick))


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """The last `width` values as bars from zero to `top`, or the largest; a gap where one is unknown."""
    values = values[-width:] if width > 0 else ()
    if top is None:
        top = max((value for value in values if value is not None), default=0.0)
    return "".join(_eighth(value, top) for value in values)


def bar(used: float, total: float, width: int) -> str:
    """`used` of `total` as a bar; what is free is dotted, so that an empty bar is a bar."""
    if total <= 0 or width < 1:
        return ""
    full = min(width, round(width * used / total))
    return "█" * full + "·" * (width - full)


def _eighth(value: float | None, top: float) -> str:
    if value is None:
        return " "
    return _EIGHTHS[min(7, int(8 * value / top))] if top else _EIGHTHS[0]


def _lost(tick: Tick) -> int | None:
    return int(tick.lost_s) if tick.lost_s is not None else None


def _turn(newest: RequestStats | None) -> TurnFigures:
    if newest is None:
        return TurnFigures()
    usage = Usage(newest.prompt_tokens, newest.completion_tokens, newest.cached_tokens)
    return TurnFigures(newest.first_token_s, usage)


def _cache_rows(snapshot: Snapshot, newest: RequestStats | None, width: int) -> list[Row]:
    share = snapshot.cached_tokens / snapshot.prompt_tokens if snapshot.prompt_tokens else None
    rows = [Row("Prompt cache", ""), Row("reused", percent(share))]
    if newest:
        fresh = newest.prompt_tokens - newest.cached_tokens
        rows.append(Row("last turn", f"{newest.cached_tokens:,} kept, {fresh:,} new"))
    if parted := snapshot.divergence:
        words = f"turn {parted.turn} parts at {parted.token:,}"
        rows += [Row(words[:width], None), Row(f"  in {parted.block}, {parted.lost:,} lost"[:width], None)]
    return rows


def _expert_rows(snapshot: Snapshot, experts: ExpertStats, trace: Trace, width: int) -> list[Row]:
    rows = [
        Row("Experts", ""),
        Row("hits", percent(experts.hit_rate)),
        Row(sparkline(trace.hits, width, top=1.0), None),
    ]
    if slots := next((pool for pool in snapshot.pools if pool.name == "experts"), None):
        rows.append(Row("slots", f"{slots.used:,} / {slots.total:,}"))
    if any(rate is not None for rate in experts.layer_hit_rate):
        strip = "".join(_eighth(rate, 1.0) for rate in experts.layer_hit_rate)
        rows.append(Row("by layer", strip[: max(0, width - 10)]))
    if experts.mode:
        rows.append(Row("mode", experts.mode))
    if experts.q is not None:
        best = f", best {experts.q_optimum:.2f}" if experts.q_optimum is not None else ""
        rows.append(Row("q* by link", f"{experts.q:.2f}{best}"))
    return rows + _split_rows(experts, width)


def _split_rows(experts: ExpertStats, width: int) -> list[Row]:
    """What the link brought and what the CPU read of the experts that were missing."""
    over_link, on_cpu = experts.bytes_link or 0, experts.bytes_cpu or 0
    if not over_link + on_cpu:
        return []
    cells = round(width * over_link / (over_link + on_cpu))
    return [
        Row("█ link", _rate(experts.bytes_link, experts.link_ns)),
        Row("▒ CPU", _rate(experts.bytes_cpu, experts.cpu_ns)),
        Row("█" * cells + "▒" * (width - cells), None),
    ]


def _rate(count: int | None, ns: int | None) -> str:
    return f"{size(int(count / (ns / 1e9)))}/s" if count and ns else UNKNOWN


def _pool_rows(pools: Sequence[PoolStats], width: int) -> list[Row]:
    if not pools:
        return []
    rows = [Row("Memory", "")]
    for pool in pools:
        # An engine that is not ours tells a share alone.
        whole = size(pool.total * pool.unit_bytes) if pool.unit_bytes else percent(pool.used / pool.total)
        name = _POOL_NAMES.get(pool.name, pool.name)
        rows.append(Row(name, f"{bar(pool.used, pool.total, max(4, width - 20))} {whole:>10}"))
    return rows


def _request_rows(requests: Sequence[RequestStats]) -> list[Row]:
    if not requests:
        return []
    rows = [Row("Requests", "")]
    for request in reversed(requests[-_SHOWN_REQUESTS:]):
        first = number(request.first_token_s, "s")
        rows.append(Row(f"{request.prompt_tokens:,} in", f"{request.completion_tokens:,} out  {first}"))
    return rows
