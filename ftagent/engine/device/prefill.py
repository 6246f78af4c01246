"""Routed experts of prefill rows on the device: missing ones stream through the staging ring.

One layer at a time over all rows of the pass, so an expert crosses the link once for the whole prompt.
Resident experts are read in their slots, missing ones in the ring; experts with one or two rows are left to
the CPU where the cost model says so. On the way the layer's hottest experts are copied into slots. Joins
policy, costs, ring and kernels, and decides nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ftagent.engine.device.host_share import HostShare
from ftagent.engine.device.ring import StagingRing
from ftagent.engine.device.tables import ExpertTables
from ftagent.engine.experts.admission import admissions
from ftagent.engine.experts.ways import Group, PrefillLoad, group_experts, stream_ahead
from ftagent.engine.kernels.gpu.grouped import SILU, Biases, down, gate_up, group_pairs, scatter_add
from ftagent.engine.kernels.swiglu import Swiglu

WARM_ROWS = (8, 64, 256)  # rows of an expert: one for each kind of tile
GROUP_PAIRS = 49_152  # (token, rank) pairs computed together: bounds the workspace of a group


class Staged(NamedTuple):
    """A missing expert that is in the ring or on its way there."""

    layer: int
    expert: int
    place: int


class Sorted(NamedTuple):
    """Pairs of a layer in the order of their experts."""

    pairs: torch.Tensor  # int32 [rows * k]
    place_of: torch.Tensor  # int32 [rows * k]: where each pair stands in `pairs`
    starts: list[int]  # per expert, and the end


class PrefillExperts:
    """Stands where the CPU path has its ExpertPool: `forward` is what a Moe layer calls."""

    def __init__(
        self,
        tables: ExpertTables,
        ring: StagingRing,
        host: HostShare | None,
        reference: bool = False,
        how: Swiglu = SILU,
    ) -> None:
        self._reference = reference  # see EngineOptions.reference
        self._how = how
        self._tables = tables
        self._ring = ring
        self._host = host
        self._staged: deque[Staged] = deque()
        self._ahead = False

    @property
    def host_failed(self) -> str | None:
        """Why the CPU computes nothing any more; None also where it never did."""
        return None if self._host is None else self._host.failed

    def warm_up(self) -> None:
        """Compile the kernels for few, some and many rows of an expert before a prompt needs them."""
        records, per_token = self._ring.records, self._tables.per_token
        records[:2].zero_()  # what the memory held may be no number
        device, (inner, _, hidden) = records.device, records.shape[1:]
        pointers = torch.tensor([self._ring.address(place) for place in (0, 1)], device=device)
        for rows in WARM_ROWS:
            x = records.new_zeros(2 * rows, hidden)
            pairs = torch.arange(2 * rows, dtype=torch.int32, device=device)
            offsets = torch.tensor([0, rows, 2 * rows], dtype=torch.int32, device=device)
            work = group_pairs(pairs, offsets, pointers, per_token)
            act, out = x.new_empty(2 * rows, inner), x.new_empty(2 * rows, hidden)
            gate_up(x, work, act, biases=self._biases(0, [0, 0]), how=self._how)
            down(act, work, out)
            tokens = -(-2 * rows // per_token)
            place_of = torch.full((tokens * per_token,), -1, dtype=torch.int32, device=device)
            weights = x.new_zeros(tokens, per_token)
            scatter_add(out, place_of, weights, torch.zeros(tokens, hidden, device=device))

    def begin(self, tokens: int, device_ns: int) -> None:
        """A pass over `tokens` rows begins; `device_ns` is what the device's own work on one layer takes."""
        tables = self._tables
        missing = tables.layers * tables.experts - tables.policy.resident
        load = PrefillLoad(
            tokens,
            tables.experts,
            tables.per_token,
            -(-missing // tables.layers),
            tables.costs.fetch_ns(1),
            device_ns,
        )
        self._ahead = self._reference or stream_ahead(load)
        self._staged.clear()
        tables.begin_pass()
        if self._ahead:
            self._look_ahead(0)

    def end(self) -> None:
        """The pass is over: what is left in the ring was not asked for."""
        self._ring.release(staged.place for staged in self._staged)
        self._staged.clear()
        self._tables.end_pass()

    def forward(
        self, layer: int, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, decode: int
    ) -> torch.Tensor:
        """Routed output [rows, H] of x [rows, H]; `chosen` int64, `weights` [rows, k]. All rows are treated
        alike: decode rows come here only where no decode chain can be had.
        """
        rows = _rows_per_expert(chosen, self._tables.experts)
        on_host = self._host_share(layer, rows)
        self._tables.note_prefill(layer, rows)
        pairs = _sort_pairs(chosen, rows, on_host)
        y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        job = None
        if on_host and self._host is not None:
            job = self._host.start(layer, x, pairs, on_host)
        here = [0 if expert in on_host else count for expert, count in enumerate(rows)]
        missing = [slot is None for slot in self._usable(layer)]
        groups = group_experts(here, missing, GROUP_PAIRS, max(self._ring.places // 2, 1))
        try:
            for group in groups:
                self._compute(layer, group, here, pairs, x, weights, y)
        except BaseException:  # whatever it was, the CPU's threads use the job's memory, which is freed next
            if job is not None and self._host is not None:
                self._host.abandon()
            raise
        if job is not None and self._host is not None:
            self._host.finish(job, weights, y)
        self._drop_unused(layer)
        if self._ahead:
            self._look_ahead(layer + 1)
        self._add_down_biases(layer, chosen, weights, y)
        return y.to(x.dtype)

    def close(self) -> None:
        """Let go of the host's memory and threads. No pass may run or follow."""
        try:
            self._ring.drain()
        finally:
            if self._host is not None:
                self._host.close()

    def _host_share(self, layer: int, rows: list[int]) -> frozenset[int]:
        """Missing experts that the CPU computes; none where copies run ahead."""
        if self._host is None or self._ahead:
            return frozenset()
        missing = [
            expert
            for expert, slot in enumerate(self._tables.slots_of(layer))
            if slot is None and rows[expert]
        ]
        return self._host.share(missing, rows)

    def _compute(
        self,
        layer: int,
        group: Group,
        rows: list[int],
        pairs: Sorted,
        x: torch.Tensor,
        weights: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        """Run the experts of one group and add their part to `y`."""
        experts = [expert for expert in range(group.first, group.last) if rows[expert]]
        addresses, staged = self._addresses(layer, experts)
        first, last = pairs.starts[experts[0]], pairs.starts[experts[-1]] + rows[experts[-1]]
        starts = [pairs.starts[expert] - first for expert in experts] + [last - first]
        pointers = torch.tensor(addresses, dtype=torch.int64).to(x.device, non_blocking=True)
        offsets = torch.tensor(starts, dtype=torch.int32).to(x.device, non_blocking=True)
        inner, hidden = self._tables.intermediate, x.shape[1]
        act = x.new_empty(last - first, inner)
        out = x.new_empty(last - first, hidden)
        work = group_pairs(pairs.pairs[first:last], offsets, pointers, weights.shape[1])
        gate_up(x, work, act, biases=self._biases(layer, experts), how=self._how)
        down(act, work, out)
        inside = (pairs.place_of >= first) & (pairs.place_of < last)
        scatter_add(out, torch.where(inside, pairs.place_of - first, -1), weights, y)
        self._admit(layer, group, rows, staged)
        self._ring.release(item.place for item in staged)

    def _biases(self, layer: int, experts: Sequence[int]) -> Biases | None:
        """Those of gate and up, for groups of these experts."""
        table = self._tables.biases
        if table is None:
            return None
        chosen = torch.tensor(experts, dtype=torch.int32).to(table.device, non_blocking=True)
        return Biases(table[layer], chosen)

    def _add_down_biases(
        self, layer: int, chosen: torch.Tensor, weights: torch.Tensor, y: torch.Tensor
    ) -> None:
        """y [n, H] += of each row its experts' biases of down by their weights, wherever those ran."""
        table = self._tables.biases
        if table is None:
            return
        shares = y.new_zeros(len(y), self._tables.experts).scatter_add_(1, chosen, weights.float())
        y.addmm_(shares, table[layer, :, 2 * self._tables.intermediate :].float())

    def _addresses(self, layer: int, experts: list[int]) -> tuple[list[int], list[Staged]]:
        """Where each expert is, and those that are in the ring; the current stream waits for them."""
        slots = self._usable(layer)
        addresses: list[int] = []
        staged: list[Staged] = []
        for expert in experts:
            slot = slots[expert]
            if slot is not None:
                addresses.append(self._tables.slot_address(slot))
                continue
            item = self._take(layer, expert)
            staged.append(item)
            addresses.append(self._ring.address(item.place))
        if staged:
            self._ring.wait(staged[-1].place)
        return addresses, staged

    def _usable(self, layer: int) -> list[int | None]:
        """The slot of every expert of a layer that may be read there."""
        return [None] * self._tables.experts if self._reference else self._tables.slots_of(layer)

    def _take(self, layer: int, expert: int) -> Staged:
        """The staged copy of an expert: fetched ahead, or now. Those before it that nobody asked for are let
        go.
        """
        while self._staged:
            item = self._staged.popleft()
            if (item.layer, item.expert) == (layer, expert):
                return item
            self._ring.release([item.place])
        place = self._ring.fetch(self._tables.records(layer, expert))
        return Staged(layer, expert, place)

    def _look_ahead(self, layer: int) -> None:
        """Fetch missing experts of `layer`, as many as there is room for, in the order of their use."""
        if layer >= self._tables.layers:
            return
        begun = {item.expert for item in self._staged if item.layer == layer}
        for expert, slot in enumerate(self._usable(layer)):
            if slot is None and expert not in begun:
                if not self._ring.room:
                    return
                place = self._ring.fetch(self._tables.records(layer, expert))
                self._staged.append(Staged(layer, expert, place))

    def _drop_unused(self, layer: int) -> None:
        """Let go of copies of this layer that no row asked for."""
        while self._staged and self._staged[0].layer == layer:
            self._ring.release([self._staged.popleft().place])

    def _admit(self, layer: int, group: Group, rows: list[int], staged: Sequence[Staged]) -> None:
        """Copy the hottest of the staged experts into slots, on the device."""
        if self._reference:
            return
        place_of = {item.expert: item.place for item in staged}
        for admission in admissions(self._tables.policy, layer, rows, sorted(place_of), group.last):
            slot = self._tables.replace(layer, admission)
            self._tables.slot_records(slot).copy_(self._ring.records[place_of[admission.expert]])


def _rows_per_expert(chosen: torch.Tensor, experts: int) -> list[int]:
    """The one place in a layer where the host waits for the device."""
    flat = chosen.flatten()
    counts = torch.zeros(experts, dtype=torch.int32, device=chosen.device)
    counts.scatter_add_(0, flat, torch.ones((), dtype=torch.int32, device=chosen.device).expand_as(flat))
    found: list[int] = counts.tolist()
    return found


def _sort_pairs(chosen: torch.Tensor, rows: list[int], last: frozenset[int]) -> Sorted:
    """Sort pairs by expert, those of `last` behind all others, and by row within an expert."""
    order = [expert for expert in range(len(rows)) if expert not in last] + sorted(last)
    starts = [0] * len(rows)
    begin = 0
    for expert in order:
        starts[expert] = begin
        begin += rows[expert]
    key = chosen.flatten()
    if last:
        rank = [0] * len(rows)
        for place, expert in enumerate(order):
            rank[expert] = place
        key = torch.tensor(rank, device=chosen.device)[key]
    pairs = torch.argsort(key, stable=True).to(torch.int32)
    place_of = torch.empty_like(pairs)
    place_of[pairs.long()] = torch.arange(len(pairs), dtype=torch.int32, device=chosen.device)
    return Sorted(pairs, place_of, starts)
