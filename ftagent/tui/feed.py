"""Where the figures come from: the engine in this process, or one elsewhere that is asked over HTTP.

A screen takes one immutable `Tick` per quarter second and never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ftagent.engine.api import Engine, Health, ModelInfo
from ftagent.engine.stats import Snapshot
from ftagent.errors import FtError
from ftagent.gateway.client import Reader, Report

TICK_S = 0.25
SAMPLES = 240  # a minute of ticks
LOST_S = 1.0  # an engine that has not answered for so long counts as lost


@dataclass(frozen=True, slots=True)
class Tick:
    """What is known of an engine at `now` (time.monotonic of this process, as in the snapshot).

    `lost_s` is how long it has not answered, None while it does. `why` says what is wrong then.
    """

    model: ModelInfo | None
    health: Health
    snapshot: Snapshot | None
    now: float
    lost_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The last minute, oldest first; None where a figure was unknown."""

    decode: tuple[float | None, ...] = ()
    hits: tuple[float | None, ...] = ()


class Feed(Protocol):
    """A source of ticks. `close` may be called twice."""

    def tick(self) -> Tick: ...

    def close(self) -> None: ...


class LocalFeed:
    """The engine of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tick(self) -> Tick:
        try:
            snapshot = self._engine.stats()
        except FtError:
            snapshot = None
        return Tick(self._engine.model, self._engine.health, snapshot, time.monotonic())

    def close(self) -> None: ...


class RemoteFeed:
    """An engine behind its gateway, asked by a thread."""

    def __init__(
        self, url: str, token: str | None, fetch: Callable[[str, str | None], Report] | None = None
    ) -> None:
        self._url, self._token, self._fetch = url, token, fetch or Reader().fetch
        self._tick = Tick(None, "loading", None, time.monotonic())
        self._answered = time.monotonic()
        self._why = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="ftagent-figures", daemon=True)
        self._thread.start()

    def tick(self) -> Tick:
        now = time.monotonic()
        silent = now - self._answered
        lost = silent if silent > LOST_S else None
        return replace(self._tick, now=now, lost_s=lost, why=self._why if lost is not None else "")

    def close(self) -> None:
        self._stop.set()

    def _ask(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                report = self._fetch(self._url, self._token)
            except FtError as error:
                self._why = str(error)
                continue
            now = time.monotonic()
            snapshot = report.snapshot
            if snapshot is not None:  # its time is by the other process's clock
                snapshot = replace(snapshot, time=now - report.age_s)
            self._tick = Tick(report.model, report.health, snapshot, now)
            self._answered = now


class History:
    """Keeps the last minute of ticks for sparklines."""

    def __init__(self) -> None:
        self._decode: deque[float | None] = deque(maxlen=SAMPLES)
        self._hits: deque[float | None] = deque(maxlen=SAMPLES)

    def add(self, tick: Tick) -> Trace:
        """Take a tick; returns the minute that ends with it."""
        known = tick.snapshot if tick.lost_s is None else None
        self._decode.append(known.decode_tokens_per_s if known else None)
        self._hits.append(known.experts.hit_rate if known and known.experts else None)
        return Trace(tuple(self._decode), tuple(self._hits))
