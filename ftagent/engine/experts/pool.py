"""The routed experts of a model: joins banks, slots, policy, cost model and kernels. Each decides nothing
here itself.

Modes: `fused` every expert in a slot; `offload` misses are fetched into slots; `cpu` misses are computed from
the bank; `hybrid` both, split by the cost model. Tokens do not depend on the mode: an expert's values and its
kernel are the same in a slot and in the bank, and the ranks of a token are summed in their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.experts.costs import CostModel, choose_fetches
from ftagent.engine.experts.counters import ExpertCounters
from ftagent.engine.experts.executor import CpuExecutor
from ftagent.engine.experts.heat import Heat, fill_order
from ftagent.engine.experts.policy import ExpertPolicy
from ftagent.engine.experts.slots import SlotStore
from ftagent.engine.kernels.experts import (
    SILU,
    ExpertWeights,
    VectorScratch,
    combine,
    expert_group,
    expert_vectors,
)
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.options import Mode
from ftagent.engine.stats import ExpertStats

Rows = dict[int, list[int]]
"""Expert to the (row * k + rank) pairs that need it."""


class ExpertPool:
    """All MoE layers' experts. `layer` counts MoE layers only."""

    def __init__(
        self,
        banks: Sequence[ExpertBank],
        slots: SlotStore,
        mode: Mode,
        per_token: int,
        dtype: torch.dtype,
        heat: Heat | None = None,
        how: Swiglu = SILU,
    ) -> None:
        experts = banks[0].experts
        self.mode = mode
        self.slots = slots.count
        self.slot_bytes = slots.slot_bytes
        self._banks = banks
        self._store = slots
        self._per_token = per_token
        self._policy = ExpertPolicy(
            len(banks), experts, slots.count, floor=min(per_token, slots.count // len(banks))
        )
        self._executor = CpuExecutor(banks, dtype)
        self._scratch = VectorScratch(banks[0].shape.intermediate, dtype, how)
        self._how = how
        self._counters = ExpertCounters(len(banks))
        self._costs = CostModel()
        self._fetched = self._computed = 0  # missing experts since start
        self._fill(heat)
        # With every expert in a slot the table never changes, and decode reads it without a look-up.
        self._all: list[list[ExpertWeights]] | None = None
        if slots.count == len(banks) * experts:
            self._all = [
                [slots.weights(self._policy.slot(layer, expert)) for expert in range(experts)]
                for layer in range(len(banks))
            ]

    @property
    def resident(self) -> int:
        """Experts that sit in a slot now."""
        return self._policy.resident

    @property
    def experts(self) -> int:
        """Experts in the banks."""
        return len(self._banks) * self._banks[0].experts

    def heat(self) -> Heat:
        """How often each expert has been used lately, to be saved for the next start."""
        experts = range(self._banks[0].experts)
        return [
            [self._policy.frequency(layer, expert) for expert in experts] for layer in range(len(self._banks))
        ]

    def begin_step(self) -> None:
        self._policy.begin_step()
        self._counters.begin_step()

    def stats(self) -> ExpertStats:
        """Look-ups, and what became of misses. Slots that are views of the banks take no copies."""
        row, missed = self._banks[0].row_bytes, self._fetched + self._computed
        return self._counters.stats()._replace(
            fetched=self._fetched,
            cpu_computed=self._computed,
            bytes_link=0 if self._store.shared else self._fetched * row,
            bytes_cpu=self._computed * row,
            q=self._fetched / missed if missed else None,
            mode=self.mode,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when the tables disagree, or a slot is not the exact copy of its bank row."""
        self._policy.check_integrity()
        for layer, bank in enumerate(self._banks):
            for expert in range(bank.experts):
                slot = self._policy.lookup(layer, expert)
                if slot is None:
                    continue
                truth, copy = self._executor.weights(layer, expert), self._store.weights(slot)
                same = torch.equal(copy.records, truth.records)
                if truth.biases is not None:
                    same &= copy.biases is not None and torch.equal(copy.biases.all, truth.biases.all)
                assert same, f"slot {slot} differs from expert {expert} of layer {layer}"

    def forward(
        self, layer: int, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, decode: int
    ) -> torch.Tensor:
        """Routed output [rows, H] of x [rows, H]; `chosen`, `weights` [rows, k]; the first `decode` rows
        decode.
        """
        rows, per_token = chosen.shape
        if self._all is not None and decode == rows:
            return self._forward_resident(layer, x, chosen.flatten().tolist(), weights)
        pairs = x.new_empty(rows * per_token, x.shape[1])
        by_expert: Rows = {}
        for pair, expert in enumerate(chosen.flatten().tolist()):
            by_expert.setdefault(expert, []).append(pair)
        border = decode * per_token
        for ready in self._ready(layer, by_expert):
            self._vectors(x, pairs, ready, by_expert, border)
            for expert, expert_weights in ready.items():
                wanted = (
                    [pair for pair in by_expert[expert] if pair >= border] if border else by_expert[expert]
                )
                if wanted:
                    places = torch.tensor(wanted)
                    pairs[places] = expert_group(x[places // per_token], expert_weights, self._how)
        return combine(pairs.view(rows, per_token, -1), weights)

    def _forward_resident(
        self, layer: int, x: torch.Tensor, experts: list[int], weights: torch.Tensor
    ) -> torch.Tensor:
        """Decode rows only, every expert in a slot; `experts` are those of all pairs."""
        assert self._all is not None
        ready = self._all[layer]
        pairs = x.new_empty(len(experts), x.shape[1])
        vectors = x.unbind(0)
        expert_vectors(
            [vectors[pair // self._per_token] for pair in range(len(experts))],
            [ready[expert] for expert in experts],
            pairs.unbind(0),
            self._scratch,
        )
        self._counters.record(layer, len(set(experts)), 0, 0)
        return combine(pairs.view(len(vectors), self._per_token, -1), weights)

    def _vectors(
        self,
        x: torch.Tensor,
        pairs: torch.Tensor,
        ready: dict[int, ExpertWeights],
        by_expert: Rows,
        border: int,
    ) -> None:
        """Decode pairs of the experts in `ready`: each as its own vector, whoever shares the expert."""
        if not border:
            return
        work = [(pair, w) for expert, w in ready.items() for pair in by_expert[expert] if pair < border]
        if work:
            vectors, targets = x.unbind(0), pairs[:border].unbind(0)
            expert_vectors(
                [vectors[pair // self._per_token] for pair, _ in work],
                [w for _, w in work],
                [targets[pair] for pair, _ in work],
                self._scratch,
            )

    def _ready(self, layer: int, by_expert: Rows) -> Iterator[dict[int, ExpertWeights]]:
        """Weights of all needed experts, in waves that are valid until the next one is asked for."""
        policy = self._policy
        hits = {expert: slot for expert in by_expert if (slot := policy.lookup(layer, expert)) is not None}
        if policy.resident < self.experts:
            for expert in hits:
                policy.use(layer, expert)
        misses = sorted((e for e in by_expert if e not in hits), key=lambda e: (-len(by_expert[e]), e))
        fetched = self._share(misses, by_expert)
        if hits:
            for slot in hits.values():
                policy.pin(slot)
            yield {expert: self._store.weights(slot) for expert, slot in hits.items()}
            for slot in hits.values():
                policy.unpin(slot)
        evictions = 0
        for wave, evicted in self._fetch_waves(layer, misses[:fetched]):
            evictions += evicted
            yield wave
        yield from self._from_bank(layer, misses[fetched:], by_expert)
        self._fetched += fetched
        self._computed += len(misses) - fetched
        self._counters.record(layer, len(hits), len(misses), evictions)

    def _share(self, misses: list[int], by_expert: Rows) -> int:
        """How many of the misses to fetch; the rest is computed from the bank."""
        if self.mode == "cpu":
            return 0
        if self.mode == "hybrid":
            return choose_fetches(self._costs, [len(by_expert[expert]) for expert in misses])
        return len(misses)

    def _fetch_waves(self, layer: int, experts: list[int]) -> Iterator[tuple[dict[int, ExpertWeights], int]]:
        """Fetch into slots as many at a time as replacement allows, with the number of evictions."""
        waiting = experts[::-1]
        while waiting:
            wave: dict[int, int] = {}
            evictions = 0
            started = time.perf_counter_ns()
            while waiting:
                placement = self._policy.place(layer, waiting[-1])
                if placement is None:
                    break
                expert = waiting.pop()
                self._policy.pin(placement.slot)
                self._store.fetch(placement.slot, self._banks[layer], expert)
                evictions += placement.evicted is not None
                wave[expert] = placement.slot
            assert wave, "every slot is pinned between steps"
            self._costs = self._costs.after_fetch(len(wave), time.perf_counter_ns() - started)
            yield {expert: self._store.weights(slot) for expert, slot in wave.items()}, evictions
            for slot in wave.values():
                self._policy.unpin(slot)

    def _from_bank(
        self, layer: int, experts: list[int], by_expert: Rows
    ) -> Iterator[dict[int, ExpertWeights]]:
        for expert in experts:
            started = time.perf_counter_ns()
            yield {expert: self._executor.weights(layer, expert)}
            rows = len(by_expert[expert])
            self._costs = self._costs.after_cpu(1, rows, time.perf_counter_ns() - started)

    def _fill(self, heat: Heat | None) -> None:
        """Fill the slots at load."""
        free = self._policy.slots
        for layer, expert in islice(fill_order(len(self._banks), self._banks[0].experts, heat), free):
            placement = self._policy.place(layer, expert)
            assert placement is not None, "as many experts as free slots"
            self._store.fetch(placement.slot, self._banks[layer], expert)
