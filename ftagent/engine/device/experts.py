"""The routed experts of a model on a device: what the runner, the worker and the panes see of them.

Owns the parts (tables, ring, conductor, mailbox, the CPU's threads) and when they may act: the conductor
during decode steps, prefill between them. Decides nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ftagent.engine.device.prefill import PrefillExperts
from ftagent.engine.device.tables import ExpertTables
from ftagent.engine.experts.auto import AutoMode
from ftagent.engine.experts.conductor import MODES, Conductor, StepCounters
from ftagent.engine.experts.heat import Heat
from ftagent.engine.experts.sizing import rows_with_room
from ftagent.engine.options import Mode
from ftagent.engine.stats import ExpertStats

WARM_STEPS = 8  # after loading, threads, caches and address translation are cold: no measure of a mode

log = logging.getLogger(__name__)


class DeviceExperts:
    """`conductor` is None when every expert is resident: then no step needs the host."""

    def __init__(
        self,
        tables: ExpertTables,
        prefill: PrefillExperts,
        conductor: Conductor | None,
        auto: AutoMode | None,
        mode: Mode,
        device_ns_per_token: int,
        keep: object = None,
    ) -> None:
        self._tables = tables
        self.prefill = prefill
        self._conductor = conductor
        self._auto = auto
        self.mode = mode  # of the last decode step
        self.mode_reason: str | None = None  # why it is not the one that was asked for
        self._device_ns_per_token = device_ns_per_token
        self._served: StepCounters | None = None
        self._steps = 0
        self._keep = keep  # memory and threads that others know by address

    @property
    def chained(self) -> bool:
        """Whether decode steps can run as a chain on the device: nothing misses, or misses are served."""
        return self._conductor is not None or self.slots == self.experts

    @property
    def most_rows(self) -> int | None:
        """Rows that one decode chain can be given; None: as many as it has. Without the CPU, which computes
        what finds no slot, few slots bear few rows.
        """
        if self.prefill.host_failed is None:
            return None
        return rows_with_room(self.slots, self._tables.layers, self._tables.per_token)

    @property
    def slots(self) -> int:
        return self._tables.store.count

    @property
    def slot_bytes(self) -> int:
        return self._tables.store.slot_bytes

    @property
    def resident(self) -> int:
        return self._tables.policy.resident

    @property
    def experts(self) -> int:
        return self._tables.layers * self._tables.experts

    def begin_decode(self, epoch: int, rows: int) -> None:
        """Before a decode chain of `rows` rows is launched."""
        self._tables.publish()
        if self._conductor is not None:
            if self._auto is not None and self._auto.next_mode != self.mode:
                self.set_mode(self._auto.next_mode)
            self._conductor.begin_step(epoch, rows)

    def await_decode(self) -> None:
        """Wait until nothing of the step needs the host any more. The device may still be at work."""
        if self._conductor is not None:
            self._served = self._conductor.end_step()

    def end_decode(self, rows: int, nanoseconds: int) -> str | None:
        """After the step, which took so long; the reason when it is void."""
        conductor, step = self._conductor, self._served
        if conductor is None or step is None:
            self._tables.note_resident_step(rows)
            return None
        self._tables.note_step(step)
        if conductor.failed is not None:
            self._tables.distrust()
            self._fall_back(conductor.mode, conductor.failed)
            return conductor.failed
        if conductor.mode != self.mode:  # the CPU's threads failed in a prompt
            self._fall_back(conductor.mode, self.prefill.host_failed or "its side does not answer")
        self._steps += 1
        if self._auto is not None and self._steps > WARM_STEPS:
            change = self._auto.record(self.mode, nanoseconds, step.misses, rows)
            if change is not None:
                log.info("experts: mode %s instead of %s: %s", change.mode, change.before, change.reason)
        return None

    def _fall_back(self, mode: Mode, reason: str) -> None:
        """Go on in the mode that is left, for good: neither threads nor a link come back."""
        if mode == self.mode:
            return
        auto = self._auto
        if auto is not None:
            gone = [other for other in MODES if other != mode]
            for other in sorted(gone, key=lambda each: each == auto.mode):  # that in force last, for `mode`
                auto.exclude(other, reason)
        self.mode_reason = f"{self.mode} cannot be run: {reason}"
        log.warning("experts: mode %s from now on: %s", mode, self.mode_reason)
        self.mode = mode

    def set_mode(self, mode: Mode) -> None:
        """From the next decode step on. Only where experts can miss."""
        assert self._conductor is not None
        self._conductor.set_mode(mode)
        self.mode = mode

    @contextmanager
    def prefill_pass(self, tokens: int) -> Iterator[None]:
        """Rows of prompts go through `prefill.forward` inside."""
        if self._conductor is not None:
            self._conductor.settle()
            self._tables.costs = self._conductor.costs
        self.prefill.begin(tokens, tokens * self._device_ns_per_token)
        try:
            yield
        finally:
            self.prefill.end()

    def leave_to_cpu(self, layers: Collection[int]) -> None:
        """Layers whose host memory could not be registered: see Conductor.set_unlinked. Between steps."""
        if self._conductor is not None:
            self._conductor.set_unlinked(layers)

    def fill(self, heat: Heat | None) -> None:
        """Fill the slots from banks that are full now."""
        self._tables.fill(heat)

    def heat(self) -> Heat:
        """To be saved for the next start. Between steps."""
        if self._conductor is not None:
            self._conductor.settle()
        return self._tables.heat()

    def stats(self) -> ExpertStats:
        reason = self.mode_reason
        if reason is None and self._auto is not None:
            reason = self._auto.reason
        return self._tables.stats()._replace(mode=self.mode, mode_reason=reason)

    def check_integrity(self) -> None:
        """Raise AssertionError when tables, slots and conductor disagree. Between steps."""
        if self._conductor is not None:
            self._conductor.settle()
            self._conductor.check_integrity()
        self._tables.check_integrity()

    def close(self) -> None:
        """End threads and copies, then give back the memory they read. May be called twice."""
        try:
            if self._conductor is not None:
                self._conductor.close()
            self.prefill.close()
        finally:
            self._tables.close()
