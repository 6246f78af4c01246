"""A conductor with a fake device, in any configuration."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import torch

from ftagent.engine.experts.conductor import Conductor, ConductorOptions, StepCounters
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.link import Link, loopback_link
from ftagent.engine.experts.mailbox import MailboxLayout
from ftagent.engine.experts.native_executor import NativeExecutor, RecordShape
from ftagent.engine.experts.native_policy import NativePolicy
from ftagent.engine.options import Mode
from tests.engine.experts.fake_device import FakeDevice, LayerUse, Router


class Case(NamedTuple):
    """One configuration. `bytes_per_s` and `delay_s` are the loopback link's."""

    mode: Mode
    slots: int
    layers: int = 5
    experts: int = 12
    rows: int = 2
    per_token: int = 3
    guesses: int = 3
    floor: int = 0
    reserve: int | None = 3
    bytes_per_s: float = 0
    delay_s: float = 0
    piece: int = 1000  # bytes
    pieces: int = 1


class Bench:
    """A conductor with a fake device."""

    def __init__(self, library: ctypes.CDLL, case: Case, seed: int, link: Link | None = None) -> None:
        self.generator = np.random.default_rng(seed)
        hidden, records = int(self.generator.integers(3, 20)), int(self.generator.integers(20, 45))
        self.layout = MailboxLayout(
            case.layers, case.experts, case.rows, case.per_token, case.guesses, hidden, itemsize=4
        )
        self.device = FakeDevice(self.layout, case.slots, records, self.generator)
        self.policy = NativePolicy(library, case.layers, case.experts, case.slots, case.floor)
        row_bytes = self.device.bank[0, 0].nbytes
        self.executor = NativeExecutor(RecordShape(hidden, records, torch.float32, row_bytes), threads=1)
        self.link = link or loopback_link(library, case.bytes_per_s, case.delay_s, seed)
        options = ConductorOptions(
            case.mode,
            grain=4,
            reserve=case.reserve,
            piece_bytes=case.piece,
            pieces=case.pieces,
            watchdog_s=10,
            post_s=10,
        )
        self.conductor = Conductor(
            self.layout,
            records,
            self.device.addresses(),
            self.policy,
            self.executor,
            self.link,
            CostModel(),
            options,
        )
        self.router = Router(self.layout, self.generator)
        self.epoch = 0

    def step(self, rows: int | None = None) -> tuple[StepCounters, list[LayerUse]]:
        self.epoch += 1
        routing = self.router.step(rows or int(self.generator.integers(1, self.layout.rows + 1)))
        self.device.failed = False
        self.conductor.begin_step(self.epoch, routing.ids.shape[1])
        uses = self.device.step(self.epoch, routing)
        return self.conductor.end_step(), uses

    def random_costs(self) -> CostModel:
        """Either side dear, cheap or equal, so that every split occurs."""
        draw = self.generator.integers
        return CostModel(
            *(int(draw(0, 20_000)), int(10 ** draw(3, 7)), int(draw(0, 20_000)), int(10 ** draw(3, 7)), 100)
        )

    def check(self) -> None:
        self.conductor.check_integrity()
        self.device.check_tables(self.policy)

    def close(self) -> None:
        self.conductor.close()
        self.executor.close()
