"""Places outside the slots through which experts pass on their way to one use: the staging ring of prefill.

Copies run on a stream of their own, ahead of the computation; a place is taken again when the computation
that read it is over. Both waits are between streams: the host never waits here. On a device without streams
(the CPU twin) a copy is done when it is asked for. Knows no layers and no policy.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class StagingRing:
    """`places` experts' records, used round and round. Copies land in the order they were asked for."""

    def __init__(self, places: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        assert places >= 2, "with fewer than two places no copy can run beside a computation"
        self.records = torch.empty(places, *shape, dtype=dtype, device=device)
        self.places = places
        self._addresses = [self.records[place].data_ptr() for place in range(places)]
        self._next = 0
        self._held = [False] * places  # from the copy until `release`
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._landed: list[torch.cuda.Event | None] = [None] * places
        self._free: list[torch.cuda.Event | None] = [None] * places

    @property
    def room(self) -> int:
        """Places that can be filled before anything is released."""
        return self.places - sum(self._held)

    def address(self, place: int) -> int:
        return self._addresses[place]

    def fetch(self, records: torch.Tensor) -> int:
        """Start to copy an expert's records from host memory; the place it will be in."""
        place = self._next
        assert not self._held[place], "the ring is full: release places before fetching more"
        self._next = (place + 1) % self.places
        self._held[place] = True
        if self._stream is None:
            self.records[place].copy_(records)
            return place
        with torch.cuda.stream(self._stream):
            free = self._free[place]
            if free is not None:
                self._stream.wait_event(free)
            self.records[place].copy_(records, non_blocking=True)
            landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            landed.record(self._stream)
        self._landed[place] = landed
        return place

    def wait(self, place: int) -> None:
        """Let the current stream wait for the copy into `place`, and so for all asked for before it."""
        landed = self._landed[place]
        if landed is not None:
            torch.cuda.current_stream().wait_event(landed)

    def release(self, places: Iterable[int]) -> None:
        """Let places be filled again once the work now queued on the current stream is done."""
        free: torch.cuda.Event | None = None
        for place in places:
            assert self._held[place], f"place {place} is not held"
            if self._stream is not None:
                if free is None:
                    free = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    free.record(torch.cuda.current_stream())
                self._free[place] = free
            self._held[place] = False

    def drain(self) -> None:
        """Wait until no copy reads host memory any more."""
        if self._stream is not None:
            self._stream.synchronize()

    def check_integrity(self) -> None:
        """Raise AssertionError when held places are not one run that ends before the next one."""
        held = sum(self._held)
        run = [(self._next - 1 - back) % self.places for back in range(held)]
        assert all(self._held[place] for place in run), f"held places are not one run: {self._held}"
