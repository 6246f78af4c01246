"""Random mixture-of-experts layers in slots, with poisoned outputs, for the tests of the decode kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ftagent.engine.kernels.gpu import experts_reference
from ftagent.engine.kernels.gpu.combine import SharedExpert, combine_step
from ftagent.engine.kernels.gpu.expert_plan import ExpertPlan, ExpertStep, HostArrays, StepTables
from ftagent.engine.kernels.gpu.experts import experts_step


@dataclass(frozen=True)
class Sizes:
    hidden: int
    intermediate: int
    experts: int
    per_token: int
    batch: int
    shared: int = 0
    dtype: torch.dtype = torch.float32


@dataclass
class Layer:
    """One layer of `layers`, whose experts of `resident` have a slot; slots are in random order.

    `spare` more slots hold poison.
    """

    sizes: Sizes
    plan: ExpertPlan
    device: torch.device
    resident: frozenset[int] | None = None
    layers: int = 1
    layer: int = 0
    spare: int = 0
    seed: int = 0
    most: int = 0  # rows of the largest step; this one's without
    bank: torch.Tensor = field(init=False)  # T [E, I, 3, H]
    slots: torch.Tensor = field(init=False)  # T [E + spare, I, 3, H]
    tables: StepTables = field(init=False)

    def __post_init__(self) -> None:
        self.most = self.most or self.sizes.batch
        sizes, generator = self.sizes, torch.Generator().manual_seed(self.seed)

        def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(self.device)

        shape = (sizes.intermediate, 3, sizes.hidden)
        self.bank = normal(sizes.experts, *shape, scale=sizes.hidden**-0.5, dtype=sizes.dtype)
        self.normed = normal(sizes.batch, sizes.hidden, dtype=sizes.dtype)
        self.x = normal(sizes.batch, sizes.hidden)
        picks = [torch.randperm(sizes.experts, generator=generator) for _ in range(sizes.batch)]
        self.ids = torch.stack(picks)[:, : sizes.per_token].to(torch.int32).to(self.device).contiguous()
        self.weights = torch.rand(sizes.batch, sizes.per_token, generator=generator).to(self.device)
        self.shared = None
        if sizes.shared:
            flat = normal(sizes.batch, sizes.experts + 2 * sizes.shared + 1)
            down = normal(sizes.hidden, sizes.shared, scale=sizes.shared**-0.5, dtype=sizes.dtype)
            self.shared = SharedExpert(flat, sizes.experts, down)
        self._place(torch.randperm(sizes.experts + self.spare, generator=generator).tolist())
        self.epoch = torch.tensor([7], dtype=torch.int32, device=self.device)
        self.rows = torch.tensor([sizes.batch], dtype=torch.int32, device=self.device)
        pairs = sizes.batch * sizes.per_token
        self.partial = torch.full((pairs, self.plan.chunks, sizes.hidden), float("nan"), device=self.device)
        self.host_part = torch.full((pairs, sizes.hidden), float("nan"), device=self.device)

    def _place(self, order: list[int]) -> None:
        sizes = self.sizes
        self.slots = torch.full((len(order), *self.bank.shape[1:]), float("nan"), dtype=sizes.dtype)
        self.slots = self.slots.to(self.device)
        slot_of = torch.full((self.layers, sizes.experts), -1, dtype=torch.int32, device=self.device)
        for one in range(sizes.experts):
            if self.resident is None or one in self.resident:
                self.slots[order[one]] = self.bank[one]
                slot_of[self.layer, one] = order[one]
        addresses = [slot.data_ptr() for slot in self.slots]
        slot_ptr = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        self.tables = StepTables.empty(slot_of, slot_ptr, self.most * sizes.per_token)
        self.slot_order = order

    @property
    def seen(self) -> torch.Tensor:
        return self.tables.slot_of[self.layer][self.ids.long()].contiguous()

    def run(self, host: HostArrays | None = None, guess: torch.Tensor | None = None) -> torch.Tensor:
        """Both kernels; returns what was added to the residual, float64 [B, H]."""
        before, seen = self.x.clone(), self.seen
        out = self.x.clone()
        step = ExpertStep(self.plan, self.tables, host, self.epoch, self.rows, self.partial, self.host_part)
        experts_step(step, self.layer, self.normed, self.ids, seen, guess)
        combine_step(step, self.layer, self.weights, seen, self.shared, out)
        self.after = out
        return out.double() - before.double()

    def expected(self) -> torch.Tensor:
        """float64 [B, H], zero for rows that are not live."""
        shared = self.shared
        if shared is not None:
            shared = SharedExpert(shared.flat.double(), shared.at, shared.down.double())
        out = experts_reference.layer(
            self.normed.double(), self.ids, self.weights.double(), list(self.bank.double()), shared
        )
        out[int(self.rows) :] = 0
        return out


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Within `tolerance` of the largest expected value."""
    scale = float(expected.abs().max()) or 1.0
    assert torch.isfinite(found).all()
    assert float((found - expected).abs().max()) <= tolerance * scale
