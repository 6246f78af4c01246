"""How many missing experts to fetch into slots and how many to compute on the CPU where they lie: q*.

Pure integers, nanoseconds and records (the weights of one intermediate channel: a run of records is a
complete partial expert, so one expert can be shared by both sides). Both sides start together and the layer
waits for the later one. Constants start from a benchmark or the defaults here and follow the measured times
(`line`).
`choose_split` is also in machine/native/costs.cpp, for the conductor; a property test holds both equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ftagent.engine.options import Mode

SMOOTHING = 8  # a measurement moves a constant by 1/8 of the difference
MIN_GAIN_NS = 5_000  # what an expert on both sides must save to be worth its second hand-over


class Miss(NamedTuple):
    """An expert that is missing. `have` of its records are in a slot, or on the way, already."""

    rows: int
    frequency: int = 0
    have: int = 0


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

    def link_ns(self, records: int, intermediate: int) -> int:
        """Time to fetch `records` of experts of `intermediate` records."""
        return self.fetch_fixed + records * self.fetch_expert // intermediate if records else 0

    def compute_ns(self, records: int, row_records: int, intermediate: int) -> int:
        """Time to compute `records` on the CPU; `row_records` counts each once for every row needing it."""
        if not records:
            return 0
        return self.cpu_fixed + (records * self.cpu_expert + row_records * self.cpu_row) // intermediate

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


def choose_split(
    costs: CostModel,
    misses: Sequence[Miss],
    intermediate: int,
    grain: int,
    link_busy_ns: int = 0,
    device_ns: int = 0,
    mode: Mode = "hybrid",
) -> list[int]:
    """Cut of each miss: the device computes records [0, cut), the CPU [cut, intermediate).

    Minimises the later finish of both sides. Most of all are fetched those of which most is there, then those
    that more rows need, then the more frequent; at most one expert is shared, at a multiple of `grain`
    records, if that saves MIN_GAIN_NS. `link_busy_ns` is what the link must finish first, `device_ns` the
    device's own work, which both sides hide behind. Modes: `offload` fetches all, `cpu` nothing.
    """
    if mode == "offload":
        return [intermediate] * len(misses)
    cuts = [miss.have for miss in misses]
    if mode == "cpu" or not misses:
        return cuts
    places = range(len(misses))
    order = sorted(places, key=lambda i: (-misses[i].have, -misses[i].rows, -misses[i].frequency, i))
    split = _Split(costs, [misses[i] for i in order], intermediate, grain, link_busy_ns, device_ns)
    whole, cut = split.best()
    for i in order[:whole]:
        cuts[i] = intermediate
    if cut:
        cuts[order[whole]] = cut
    return cuts


class _Split:
    """Tries the cuts of misses in fetching order."""

    def __init__(
        self, costs: CostModel, order: list[Miss], records: int, grain: int, busy_ns: int, device_ns: int
    ) -> None:
        self._costs = costs
        self._order = order
        self._records = records
        self._grain = grain
        self._busy_ns = busy_ns
        self._device_ns = device_ns
        self._link = 0  # records to fetch of the experts before the one looked at
        self._left = sum(records - miss.have for miss in order)  # records not there of all others
        self._left_rows = sum(miss.rows * (records - miss.have) for miss in order)

    def best(self) -> tuple[int, int]:
        """(experts to fetch whole, cut of the one behind them or 0)."""
        whole, whole_ns = 0, self._finish(0, 0)
        shared: tuple[int, int] | None = None
        shared_ns = 0
        for at, miss in enumerate(self._order):
            missing = self._records - miss.have
            if shared is None and self._ahead(missing, miss.rows):
                shared_at, shared_ns = self._share(miss)
                shared = (at, shared_at)
            self._link += missing
            self._left -= missing
            self._left_rows -= miss.rows * missing
            finish = self._finish(0, 0)
            if finish <= whole_ns:
                whole, whole_ns = at + 1, finish
        if shared is not None and shared[1] and whole_ns - shared_ns >= MIN_GAIN_NS:
            return shared
        return whole, 0

    def _share(self, miss: Miss) -> tuple[int, int]:
        """Best cut strictly inside this expert (0: there is none) and its finish."""
        low, high = miss.have // self._grain + 1, -(-self._records // self._grain) - 1  # in grains
        if low > high:
            return 0, 0
        first, last = low, high
        while low < high:  # the first cut at which the link is the later side
            middle = (low + high) // 2
            if self._ahead(middle * self._grain - miss.have, miss.rows):
                high = middle
            else:
                low = middle + 1
        best, best_ns = 0, 0
        for grains in (low - 1, low):
            if first <= grains <= last:
                finish = self._finish(grains * self._grain - miss.have, miss.rows)
                if not best or finish <= best_ns:
                    best, best_ns = grains * self._grain, finish
        return best, best_ns

    def _ahead(self, fetched: int, rows: int) -> bool:
        """With `fetched` more records on the link it is not the earlier side."""
        return self._link_ns(fetched) >= self._cpu_ns(fetched, rows)

    def _finish(self, fetched: int, rows: int) -> int:
        return max(self._link_ns(fetched), self._cpu_ns(fetched, rows), self._device_ns)

    def _link_ns(self, fetched: int) -> int:
        records = self._link + fetched
        return self._busy_ns + self._costs.link_ns(records, self._records) if records else 0

    def _cpu_ns(self, fetched: int, rows: int) -> int:
        return self._costs.compute_ns(self._left - fetched, self._left_rows - rows * fetched, self._records)


def _towards(current: int, sample: int) -> int:
    return current + (sample - current) // SMOOTHING
