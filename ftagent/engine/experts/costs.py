"""How many missing experts to fetch into slots and how many to compute on the CPU where they lie: q*.

Pure integers, nanoseconds and bytes. Both sides start together and the layer waits for the later one.
Constants start from a benchmark or the defaults here and follow the measured times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SMOOTHING = 8  # a measurement moves a constant by 1/8 of the difference


@dataclass(frozen=True, slots=True)
class CostModel:
    """fetch(q) = fetch_fixed + q * fetch_expert; cpu(m, rows) = cpu_fixed + m * cpu_expert + rows * cpu_row.

    `fetch_expert`: one expert over the link. `cpu_expert`: reading one expert in host memory; `cpu_row`: the
    arithmetic of one token on one expert. All in nanoseconds.
    """

    fetch_fixed: int = 10_000
    fetch_expert: int = 200_000
    cpu_fixed: int = 5_000
    cpu_expert: int = 150_000
    cpu_row: int = 20_000

    def fetch_ns(self, experts: int) -> int:
        return self.fetch_fixed + experts * self.fetch_expert if experts else 0

    def cpu_ns(self, experts: int, rows: int) -> int:
        return self.cpu_fixed + experts * self.cpu_expert + rows * self.cpu_row if experts else 0

    def after_fetch(self, experts: int, measured_ns: int) -> CostModel:
        """The model corrected by a measured fetch of `experts` experts."""
        sample = max(measured_ns - self.fetch_fixed, 0) // experts
        return replace(self, fetch_expert=_towards(self.fetch_expert, sample))

    def after_cpu(self, experts: int, rows: int, measured_ns: int) -> CostModel:
        """The model corrected by a measured CPU computation."""
        sample = max(measured_ns - self.cpu_fixed - rows * self.cpu_row, 0) // experts
        return replace(self, cpu_expert=_towards(self.cpu_expert, sample))


def choose_fetches(costs: CostModel, rows_per_miss: list[int], device_ns: int = 0) -> int:
    """q*: fetch this many of the misses, compute the rest on the CPU.

    `rows_per_miss` are the tokens of each missing expert in the order in which they would be fetched (most
    rows first); `device_ns` is the device's own work on the hits, which a fetch hides behind. Of equally fast
    splits the one that fetches more wins, since a fetched expert can hit later.
    """
    best, best_ns = 0, None
    cpu_rows = sum(rows_per_miss)
    for fetched in range(len(rows_per_miss) + 1):
        finish = max(costs.fetch_ns(fetched), costs.cpu_ns(len(rows_per_miss) - fetched, cpu_rows), device_ns)
        if best_ns is None or finish <= best_ns:
            best, best_ns = fetched, finish
        if fetched < len(rows_per_miss):
            cpu_rows -= rows_per_miss[fetched]
    return best


def _towards(current: int, sample: int) -> int:
    return current + (sample - current) // SMOOTHING
