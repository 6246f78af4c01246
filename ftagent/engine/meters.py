"""Counts and rates of a running engine, and the Snapshot made of them after each step.

Knows numbers only. Rates are tokens per second of step time over the last WINDOW_S seconds: time in which
nothing ran does not lower them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from ftagent.engine.stats import AnchorChecks, ExpertStats, Phase, PoolStats, RequestStats, Snapshot

WINDOW_S = 5.0
RECENT_REQUESTS = 32


class _Rate:
    """Tokens of one kind and the time of the steps that carried them, over the window."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int]] = deque()  # end, seconds, tokens
        self._seconds = 0.0
        self._tokens = 0

    def add(self, end: float, seconds: float, tokens: int) -> None:
        if tokens:
            self._steps.append((end, seconds, tokens))
            self._seconds += seconds
            self._tokens += tokens

    def read(self, now: float) -> float | None:
        while self._steps and self._steps[0][0] < now - WINDOW_S:
            _, seconds, tokens = self._steps.popleft()
            self._seconds -= seconds
            self._tokens -= tokens
        if not self._steps:
            self._seconds = 0.0  # what subtraction left over
            return None
        return self._tokens / self._seconds if self._seconds > 0 else None


class StepWork(NamedTuple):
    """What one step did: tokens of each kind, and time.monotonic() before and after it."""

    begin: float
    end: float
    decode: int
    prefill: int

    @property
    def phase(self) -> Phase:
        if self.decode and self.prefill:
            return "mixed"
        return "decode" if self.decode else "prefill" if self.prefill else "idle"


class Queues(NamedTuple):
    """How many requests run and wait, the longest running one in tokens, states that found no room, and hits
    that were checked.
    """

    running: int = 0
    waiting: int = 0
    longest: int = 0
    skipped: int = 0
    checks: AnchorChecks | None = None


class Meters:
    """Adds up steps and requests. One writer; the snapshots may be read from anywhere."""

    def __init__(self) -> None:
        self._decode = _Rate()
        self._prefill = _Rate()
        self._recent: deque[RequestStats] = deque(maxlen=RECENT_REQUESTS)
        self._count = 0
        self._prompt = 0
        self._cached = 0
        self._completion = 0

    def step(self, work: StepWork) -> None:
        """Note a step that ran."""
        self._count += 1
        self._decode.add(work.end, work.end - work.begin, work.decode)
        self._prefill.add(work.end, work.end - work.begin, work.prefill)

    def admitted(self, prompt: int, cached: int) -> None:
        """Note a request whose prompt is computed, `cached` of its tokens without work."""
        self._prompt += prompt
        self._cached += cached

    def generated(self, tokens: int) -> None:
        """Note tokens that were sampled."""
        self._completion += tokens

    def finished(self, request: RequestStats) -> None:
        """Note a request that ended."""
        self._recent.append(request)

    def snapshot(
        self, work: StepWork, queues: Queues, pools: tuple[PoolStats, ...], experts: ExpertStats | None
    ) -> Snapshot:
        """The engine as it stands behind `work`."""
        return Snapshot(
            time=work.end,
            step=self._count,
            phase=work.phase,
            running=queues.running,
            waiting=queues.waiting,
            decode_tokens_per_s=self._decode.read(work.end),
            prefill_tokens_per_s=self._prefill.read(work.end),
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            completion_tokens=self._completion,
            pools=pools,
            experts=experts,
            recent_requests=tuple(self._recent),
            context_used=queues.longest,
            anchors_skipped=queues.skipped,
            anchor_checks=queues.checks,
        )


def aged(snapshot: Snapshot, now: float | None = None) -> Snapshot:
    """The same figures read at `now` (time.monotonic()): rates of a step out of the window are unknown."""
    now = time.monotonic() if now is None else now
    if now - snapshot.time <= WINDOW_S:
        return snapshot
    return replace(snapshot, decode_tokens_per_s=None, prefill_tokens_per_s=None)
