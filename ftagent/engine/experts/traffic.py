"""What crossed the link and what the CPU read for missing experts, since start. Knows only numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftagent.engine.experts.counters import RECENT_STEPS
from ftagent.engine.stats import ExpertStats

if TYPE_CHECKING:
    from ftagent.engine.experts.conductor import StepCounters


@dataclass(slots=True)
class Traffic:
    """Sums over the steps that a conductor served; `records`: (fetched, missed, optimum) of recent steps."""

    steps: int = 0
    fetched: int = 0
    cpu_computed: int = 0
    split: int = 0
    backfilled: int = 0
    guessed: int = 0
    guess_used: int = 0
    bytes_link: int = 0
    bytes_cpu: int = 0
    link_ns: int = 0
    cpu_ns: int = 0
    records: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def add(self, step: StepCounters) -> None:
        self.steps += 1
        self.fetched += step.fetched
        self.cpu_computed += step.cpu_experts - step.split
        self.split += step.split
        self.backfilled += step.backfilled
        self.guessed += step.guessed
        self.guess_used += step.guess_used
        self.bytes_link += step.bytes_link
        self.bytes_cpu += step.bytes_cpu
        self.link_ns += step.link_ns
        self.cpu_ns += step.cpu_ns
        self.records.append((step.records_fetched, step.records_missed, step.records_optimum))

    def onto(self, stats: ExpertStats) -> ExpertStats:
        """`stats` with these figures; as it was when no conductor has served a step."""
        if not self.steps:
            return stats
        fetched, missed, optimum = (sum(part) for part in zip(*self.records, strict=True))
        return stats._replace(
            fetched=self.fetched,
            cpu_computed=self.cpu_computed,
            split=self.split,
            backfilled=self.backfilled,
            guessed=self.guessed,
            guess_used=self.guess_used,
            bytes_link=self.bytes_link,
            bytes_cpu=self.bytes_cpu,
            link_ns=self.link_ns,
            cpu_ns=self.cpu_ns,
            q=fetched / missed if missed else None,
            q_optimum=optimum / missed if missed else None,
        )
