"""What one run of a server gave, as a JSON file; and the table over all runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass(slots=True)
class Run:
    """One server, started once. Lists hold one value per repeat. Sizes in GiB, times in seconds.

    `first_token`: seconds to the first token of a cold prompt, by its length. `warm`: the same for a prompt
    that repeats an earlier one and adds a few tokens; `warm_cached` is what the server says it kept of it.
    """

    engine: str
    round: int
    launch: str
    decode: list[float] = field(default_factory=list)  # tokens/s
    gaps_ms: list[float] = field(default_factory=list)  # between tokens, all repeats
    first_token: dict[str, list[float]] = field(default_factory=dict)
    warm: list[float] = field(default_factory=list)
    warm_cached: list[int] = field(default_factory=list)
    load_s: float | None = None
    vram_loaded: float = 0.0
    vram_peak: float = 0.0
    host_peak: float = 0.0
    resident_peak: float = 0.0
    expert_gib: float = 0.0
    total_s: float = 0.0
    problems: list[str] = field(default_factory=list)  # wrong counts, replies that leave the script
    error: str = ""

    @property
    def file_name(self) -> str:
        return f"{self.engine}.{self.round}.json"

    def save(self, directory: Path) -> None:
        """Write the file in one step, so that a run that is broken off leaves none or a whole one."""
        target = directory / self.file_name
        fresh = target.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        fresh.replace(target)


def read_runs(directory: Path) -> list[Run]:
    """All runs in `directory`, by round and name. Files of other kinds are passed over."""
    names = {entry.name for entry in fields(Run)}
    runs = []
    for file in sorted(directory.glob("*.json")):
        stored = json.loads(file.read_bytes())
        if isinstance(stored, dict) and set(stored) == names:
            runs.append(Run(**stored))
    return sorted(runs, key=lambda run: (run.round, run.engine))


def expert_gib(config: dict[str, object]) -> float:
    """GiB of all routed experts in BF16, from a config.json (its text part)."""
    names = ("num_hidden_layers", "num_experts", "moe_intermediate_size", "hidden_size")
    product = 6
    for name in names:
        value = config.get(name)
        if not isinstance(value, int):
            return 0.0
        product *= value
    return product / 2**30


def table(runs: Sequence[Run]) -> str:
    """Markdown: one row per engine, medians over all repeats of all its runs."""
    by_engine: dict[str, list[Run]] = {}
    for run in runs:
        by_engine.setdefault(run.engine, []).append(run)
    lengths = sorted({int(length) for run in runs for length in run.first_token})
    prefill = " / ".join(map(str, lengths))
    head = [
        "engine",
        "runs",
        "decode tok/s (each)",
        "ITL p50 / p99 ms (ratio)",
        f"prefill tok/s {prefill}",
        "warm first token s (tokens kept)",
        "load s",
        "VRAM GiB loaded / peak",
        "host peak GiB (x experts)",
    ]
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row(_cells(name, group, lengths)) for name, group in by_engine.items()]
    notes = [f"- {run.engine}, round {run.round}: {note}" for run in runs for note in _notes(run)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cells(name: str, runs: Sequence[Run], lengths: Sequence[int]) -> list[str]:
    done = [run for run in runs if not run.error] or list(runs)
    decode = [rate for run in done for rate in run.decode]
    gaps = sorted(gap for run in done for gap in run.gaps_ms)
    warm = [value for run in done for value in run.warm]
    kept = [value for run in done for value in run.warm_cached]
    rates = []
    for length in lengths:
        times = [time for run in done for time in run.first_token.get(str(length), ())]
        rates.append(_median([length / time for time in times], 0))
    high = gaps[int(len(gaps) * 0.99)] if gaps else 0.0
    middle = statistics.median(gaps) if gaps else 0.0
    host, experts = max(run.host_peak for run in done), done[0].expert_gib
    times_experts = f" ({host / experts:.2f}x)" if experts else ""
    return [
        name,
        f"{len([run for run in runs if not run.error])} of {len(runs)}",
        f"**{_median(decode, 1)}** ({', '.join(f'{rate:.1f}' for rate in decode)})",
        f"{middle:.1f} / {high:.1f} ({high / middle:.2f})" if gaps else "-",
        " / ".join(rates),
        f"{_median(warm, 3)} ({_median(kept, 0)})",
        _median([run.load_s for run in done if run.load_s is not None], 1),
        f"{_median([run.vram_loaded for run in done], 1)} / {max(run.vram_peak for run in done):.1f}",
        f"{host:.1f}{times_experts}",
    ]


def _notes(run: Run) -> Iterable[str]:
    if run.error:
        yield f"failed: {run.error}"
    yield from run.problems[:4]


def _median(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f}" if values else "-"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
