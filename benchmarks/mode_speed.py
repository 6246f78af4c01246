"""Decode speed of the modes of experts against each other, on one loaded model and one text:

    python -m benchmarks.mode_speed CHECKPOINT [--experts 0.2 0.3 0.4] [--modes hybrid offload cpu] [--json]

Modes take turns of TURN steps, so that the machine's drift meets all alike; the first SETTLE steps of a turn
do not count, since slots then still hold what the mode before left. For each share of experts in slots:
tokens/s of the median step, its p99, misses a token and MB of weights by path. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runner_speed import Bench, Request, words_of
from ftagent.engine.device.experts import DeviceExperts
from ftagent.engine.experts.conductor import MODES
from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.stats import ExpertStats
from ftagent.engine.steps import Steps

CONTEXT, BEHIND = 8192, 1024
TURN, SETTLE = 40, 10  # steps


@dataclass
class Times:
    """Of one mode. Counts are of all counted steps together."""

    seconds: list[float] = field(default_factory=list)
    misses: int = 0
    bytes_link: int = 0
    bytes_cpu: int = 0

    def figures(self) -> dict[str, float]:
        ordered, steps = sorted(self.seconds), max(len(self.seconds), 1)
        return {
            "tokens_per_s": 1 / statistics.median(ordered),
            "step_p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
            "misses": self.misses / steps,
            "link_mb": self.bytes_link / steps / 1e6,
            "cpu_mb": self.bytes_cpu / steps / 1e6,
        }


class Contest:
    """Modes in turns behind one prompt."""

    def __init__(self, runner: Steps, words: list[int]) -> None:
        assert isinstance(runner.experts, DeviceExperts), "needs experts on a device"
        self._experts = runner.experts
        self._bench = Bench(runner, words, seed=11)
        self._request = Request.open(runner)
        self._logits = self._request.feed(self._bench.prompt(BEHIND))

    def run(self, modes: list[Mode], rounds: int) -> dict[Mode, Times]:
        """Times of each mode over `rounds` turns."""
        found = {mode: Times() for mode in modes}
        for _ in range(rounds):
            for mode in modes:
                self._turn(mode, found[mode])
        return found

    def _turn(self, mode: Mode, times: Times) -> None:
        self._experts.set_mode(mode)
        before: ExpertStats | None = None
        for step in range(TURN):
            if step == SETTLE:
                before = self._experts.stats()
            token = self._bench.draw(self._logits)
            began = time.perf_counter()
            self._logits = self._request.feed([token])
            if step >= SETTLE:
                times.seconds.append(time.perf_counter() - began)
        after = self._experts.stats()
        assert before is not None
        times.misses += after.misses - before.misses
        times.bytes_link += (after.bytes_link or 0) - (before.bytes_link or 0)
        times.bytes_cpu += (after.bytes_cpu or 0) - (before.bytes_cpu or 0)


def contest(checkpoint: Path, share: str, modes: list[Mode], rounds: int) -> dict[str, Any]:
    """Load with `share` of the experts in slots, and let the modes take turns."""
    options = EngineOptions(
        model=str(checkpoint), device="cuda", experts=share, mode="hybrid", context=CONTEXT, max_running=1
    )
    runner = load_runner(checkpoint, options)
    try:
        found = Contest(runner, words_of(checkpoint)).run(modes, rounds)
    finally:
        runner.close()
    return {"experts": share, **{mode: times.figures() for mode, times in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--experts", nargs="+", default=["0.2", "0.4"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for share in asked.experts:
        row = contest(asked.checkpoint, share, asked.modes, asked.rounds)
        if asked.json:
            print(json.dumps(row), flush=True)
            continue
        for mode in asked.modes:
            figures = ", ".join(f"{name} {value:.2f}" for name, value in row[mode].items())
            print(f"{share} of the experts, {mode}: {figures}", flush=True)


if __name__ == "__main__":
    main()
