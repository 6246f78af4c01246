"""`ftagent statusline`: an engine's figures in one line, for the status lines of agents, shells and tmux."""

from __future__ import annotations

import click

from ftagent.commands.common import emit, errors_as_events, json_flag
from ftagent.commands.figures import as_json as report_json
from ftagent.commands.figures import engine_flags, where
from ftagent.gateway.client import Reader, Report

_PHASES = {"idle": "○", "prefill": "◐", "decode": "●", "mixed": "◉"}


@click.command()
@engine_flags
@click.option("--once", is_flag=True, help="One line, then end: what it does in any case.")
@json_flag
def command(engine_url: str | None, pid: int | None, once: bool, as_json: bool) -> int:
    """Print the engine's figures in one line, such as `● 61.8 tok/s  experts 83%  cache 97%`.

    For Claude Code: `"statusLine": {"type": "command", "command": "ftagent statusline"}` in its settings.
    """
    with errors_as_events(as_json):
        report = Reader().fetch(*where(engine_url, pid))
    if as_json:
        emit(report_json(report))
    else:
        click.echo(line(report))
    return 0


def line(report: Report) -> str:
    """What is known, the most telling first; what is unknown is left out."""
    if report.health != "ok" or report.snapshot is None:
        return f"✕ {report.health}"
    snapshot = report.snapshot
    speed = snapshot.decode_tokens_per_s
    parts = [f"{_PHASES[snapshot.phase]} {snapshot.phase if speed is None else f'{speed:.1f} tok/s'}"]
    if snapshot.experts is not None and snapshot.experts.hit_rate is not None:
        parts.append(f"experts {100 * snapshot.experts.hit_rate:.0f}%")
    if snapshot.experts is not None and snapshot.experts.q is not None:
        parts.append(f"q* {snapshot.experts.q:.2f}")
    if snapshot.prompt_tokens:
        parts.append(f"cache {100 * snapshot.cached_tokens / snapshot.prompt_tokens:.0f}%")
    if snapshot.context_used:
        parts.append(f"context {snapshot.context_used:,}/{report.model.context:,}")
    if snapshot.waiting:
        parts.append(f"{snapshot.waiting} waiting")
    return "  ".join(parts)
