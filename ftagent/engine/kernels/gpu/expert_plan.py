"""What the two kernels of a decode step's experts share: sizes, device tables, and where the host is met.

Plain integers and tensors. The protocol behind the tables is told in `experts`; the layout of the host's
memory is decided elsewhere and comes as addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ftagent.engine.kernels.gpu.device import Device

MAX_UPDATES = 64  # changes to slot_of in one plan
RESERVED = 2048  # bytes of shared memory that a program takes besides its blocks
PATIENCE_NS = 4_000_000_000  # how long a kernel waits for the host before it sets `fail`


@dataclass(frozen=True)
class ExpertPlan:
    """How an expert's `intermediate` records are cut: programs take `run` records, `block` at a time.

    `stages` blocks are on their way to shared memory at once; 1: straight to registers. A row's result
    depends on these, so one plan serves all batch sizes.
    """

    hidden: int
    intermediate: int
    run: int
    block: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        if min(self.hidden, self.intermediate, self.run, self.block, self.warps, self.stages) < 1:
            raise ValueError(f"expert plan: every size must be positive: {self}")
        if self.block & (self.block - 1) or self.run % self.block:
            raise ValueError(f"expert plan: block a power of two that divides run, not {self}")

    @property
    def chunks(self) -> int:
        """Programs, and rows of `partial`, for one pair."""
        return -(-self.intermediate // self.run)


def plan_experts(hidden: int, intermediate: int, per_token: int, itemsize: int, device: Device) -> ExpertPlan:
    """The plan for one model on `device`.

    Two programs a multiprocessor at batch 1, each with two blocks of records on their way: enough bytes in
    flight for any memory, and few enough partial sums.
    """
    record = 3 * hidden * itemsize
    fitting = max(1, min(8, (device.shared // 2 - RESERVED) // (2 * record)))
    block: int = 1 << fitting.bit_length() - 1
    programs = max(1, 2 * device.processors // per_token)
    run = -(-intermediate // programs)
    run = -(-run // block) * block
    return ExpertPlan(hidden, intermediate, run, block, warps=4 if record <= 3 * 8192 else 8, stages=3)


class StepTables(NamedTuple):
    """Device tables, int32 unless said. L MoE layers, E experts, P pairs (row * k + rank) of the largest
    step; steps of fewer rows use the first ones.
    """

    slot_of: torch.Tensor  # [L, E] slot of an expert, -1: not resident
    slot_ptr: torch.Tensor  # int64 [slots] address of a slot's records
    landed: torch.Tensor  # [slots] last ticket whose copy into the slot is complete
    plan_slot: torch.Tensor  # [L, P] slot of a pair that missed, -1: none
    plan_cut: torch.Tensor  # [L, P] records [0, cut) are computed here, the others by the host
    plan_ticket: torch.Tensor  # [L, P] to wait for in `landed`, 0: none
    plan_ready: torch.Tensor  # [L] epoch of the plan
    fail: torch.Tensor  # [1] not 0: the step is void

    @classmethod
    def empty(cls, slot_of: torch.Tensor, slot_ptr: torch.Tensor, pairs: int) -> StepTables:
        """Tables for `pairs` pairs at most, with nothing planned and nothing landed."""
        device, layers = slot_ptr.device, len(slot_of)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            slot_of,
            slot_ptr,
            landed=zeros(len(slot_ptr)),
            plan_slot=zeros(layers, pairs),
            plan_cut=zeros(layers, pairs),
            plan_ticket=zeros(layers, pairs),
            plan_ready=zeros(layers),
            fail=zeros(1),
        )


class HostArrays(NamedTuple):
    """Addresses, as the device sees them, of the arrays in which it meets the host; each on 64 bytes.

    int32 unless said; flags have a line of 16 int32 for each layer.
    """

    post: int  # [L, 16] epoch, device to host
    planned: int  # [L, 16] epoch, host to device; -epoch: there is no plan
    done: int  # [L, 16] epoch, host to device: y is complete; -epoch: it never will be
    rows: int  # [1]
    ids: int  # [L, P] device to host
    seen: int  # [L, P] device to host
    guess: int  # [L, B, G] device to host
    slot: int  # [L, P] host to device
    cut: int  # [L, P] host to device
    ticket: int  # [L, P] host to device
    updates: int  # [L] number of changes to slot_of
    update_index: int  # [L, MAX_UPDATES] flat index into slot_of, each at most once
    update_value: int  # [L, MAX_UPDATES]
    x: int  # T [B, H] device to host
    y: int  # float32 [P, H] host to device
    patience_ns: int = PATIENCE_NS

    @classmethod
    def at(cls, base: int, offsets: tuple[int, ...], patience_ns: int = PATIENCE_NS) -> HostArrays:
        """The arrays of a region that begins at `base`; `offsets` in the order of the fields.

        Raises ValueError for another number of offsets.
        """
        if len(offsets) != ARRAYS:
            raise ValueError(f"host arrays: {len(offsets)} offsets for {ARRAYS} arrays")
        return cls._make([*(base + offset for offset in offsets), patience_ns])


ARRAYS = len(HostArrays._fields) - 1
NO_HOST = HostArrays.at(0, (0,) * ARRAYS)


class ExpertStep(NamedTuple):
    """What the expert kernels of one captured step share in all of its layers."""

    plan: ExpertPlan
    tables: StepTables
    host: HostArrays | None  # None: every expert is in a slot
    epoch: torch.Tensor  # int32 [1] another positive number for each step
    rows: torch.Tensor  # int32 [1] rows that are live
    partial: torch.Tensor  # float32 [P, plan.chunks, H] scratch between the two kernels
    host_part: torch.Tensor  # float32 [P, H] likewise: y, brought to the device; unused without a host
