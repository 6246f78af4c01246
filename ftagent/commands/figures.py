"""What `ftagent top` and `ftagent statusline` share: which engine, and its figures as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ftagent.errors import EngineError
from ftagent.gateway.announce import announced
from ftagent.gateway.client import Report
from ftagent.gateway.metrics import plain

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def engine_flags(function: Decorated) -> Decorated:
    """Add the flags that say which engine: `engine_url` and `pid`."""
    url = click.option(
        "--engine",
        "engine_url",
        metavar="URL",
        help="The engine to ask; FTAGENT_TOKEN is its token. Default: the one started last on this machine.",
    )
    pid = click.option("--pid", type=int, help="The engine of this ftagent process.")
    return url(pid(function))


def where(engine_url: str | None, pid: int | None) -> tuple[str, str | None]:
    """URL and token of the engine that is meant. Raises EngineError when none runs."""
    if engine_url:
        return engine_url, os.environ.get("FTAGENT_TOKEN")
    notes = [note for note in announced() if pid is None or note.pid == pid]
    if not notes:
        which = f"process {pid} is no ftagent with an engine" if pid else "no engine runs on this machine"
        raise EngineError(f"{which}; start one with `ftagent serve`, or name one with --engine URL")
    return notes[0].url, notes[0].token


def as_json(report: Report) -> dict[str, Any]:
    """A report as one JSON object."""
    model, snapshot = plain(report.model), plain(report.snapshot)
    return {"health": report.health, "age_s": report.age_s, "model": model, "snapshot": snapshot}
