"""Host memory for what is kept of prompts, registered with the driver as it comes into use, and the way of
copies to and from it.

Copies out of the device go through a staging buffer on a stream of their own, so that steps need not wait for
the link; copies into it run in the stream of the steps, which come behind them. Blocks of the memory are
immutable once written. A copy stays within one registration. Knows bytes: no pages, no states and no prompts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ftagent.engine.context.arena import Arena
from ftagent.engine.experts.host_memory import HostMemory
from ftagent.engine.experts.pinning import Registrar

log = logging.getLogger(__name__)
_cuda: Any = torch.cuda  # its events and streams have no types
SLAB_BYTES = 256 << 20  # about what is registered at a time


class Block:
    """Bytes of host memory; given back to `memory` when nobody refers to them any more.

    `copied` is a CUDA event behind the last copy from or to them, None where there was none.
    """

    def __init__(self, tensor: torch.Tensor, memory: KeptMemory | None = None, begin: int = 0) -> None:
        self.tensor = tensor  # uint8 [bytes]
        self.copied: Any = None
        self._memory = memory
        self._begin = begin

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def loose(self) -> bool:
        """Whether it is no part of the kept memory, for want of room."""
        return self._memory is None

    def pieces(self, begin: int, size: int) -> Iterator[tuple[int, int]]:
        """(offset from `begin`, bytes) of the pieces of [begin, begin + size) that one copy each may take."""
        done = 0
        while done < size:
            most = (
                size - done if self._memory is None else self._memory.until_edge(self._begin + begin + done)
            )
            yield done, min(most, size - done)
            done += most

    def view(self) -> memoryview:
        """See `tiers.Held.view`."""
        if self.copied is not None:
            self.copied.synchronize()
        data: Any = self.tensor.numpy()
        return memoryview(data)

    def __del__(self) -> None:
        if self._memory is not None:
            self._memory.give_back(self._begin, self.copied)


class KeptMemory:
    """`size` bytes, with places for states of `state_bytes` (0: there are none).

    Slabs are counted from the end, as places are, and hold whole places. They are registered by a thread of
    their own: the first and the last one at once, others when blocks come near them; until then copies take
    longer. Blocks may be dropped on any thread; everything else is for the thread that steps.
    """

    def __init__(self, size: int, state_bytes: int, registrar: Registrar | None = None) -> None:
        self._arena = Arena(size, state_bytes)
        self._memory = HostMemory(self._arena.size)
        self._state_bytes = state_bytes
        self._returned: deque[tuple[int, Any]] = deque()
        self._let_go: Callable[[], bool] = lambda: False
        place = self._arena.place_bytes
        self._slab = place * max(SLAB_BYTES // place, 1) if place else SLAB_BYTES
        self._asked: set[int] = set()  # slabs that are or will be registered
        self._registering: ThreadPoolExecutor | None = None
        self._registrar = registrar  # None: the driver has refused, or there is none
        if registrar is not None and self._arena.size:
            self._registering = ThreadPoolExecutor(1, "ftagent-register")
            for begin in (0, self._arena.size - 1):
                self._ask(self._slab_of(begin))

    @property
    def size(self) -> int:
        return self._arena.size

    @property
    def used(self) -> int:
        """Bytes of blocks that somebody refers to."""
        self._take_back(wait=True)
        return self._arena.used

    def on_shortage(self, let_go: Callable[[], bool]) -> None:
        """See `tiers.Contents.on_shortage`."""
        self._let_go = let_go

    def block(self, size: int) -> Block | None:
        """Room for `size` bytes; None when there is none, whatever is let go of."""
        return self._block(size, lambda: self._arena.take(size)) if size <= self.size else None

    def state(self) -> Block | None:
        """Room for one state."""
        return self._block(self._state_bytes, self._arena.take_place) if self._arena.places else None

    def give_back(self, begin: int, copied: Any) -> None:
        """The block there is not referred to any more; a copy may still be on its way. On any thread."""
        self._returned.append((begin, copied))

    def ready(self) -> None:
        """Wait until what was asked for is registered, as far as the driver lets it be."""
        if self._registering is not None:
            self._registering.submit(lambda: None).result()

    def close(self) -> None:
        """End the registrations. No copy may be on its way."""
        if self._registering is not None:
            self._registering.shutdown(cancel_futures=True)
            self._registering = None
        self._memory.close()

    def check_integrity(self) -> None:
        """Raise AssertionError when ranges overlap or are lost."""
        self._take_back(wait=True)
        self._arena.check_integrity()

    def _block(self, size: int, take: Callable[[], int | None]) -> Block | None:
        self._take_back(wait=False)
        begin = take()
        if begin is None:
            self._take_back(wait=True)
            begin = take()
        while begin is None and self._let_go():
            self._take_back(wait=True)
            begin = take()
        if begin is None:
            return None
        first, last = self._slab_of(begin), self._slab_of(begin + size - 1)
        for slab in range(last - 1, first + 2):  # and the neighbours, which will be needed next
            self._ask(slab)
        return Block(self._memory.tensor[begin : begin + size], self, begin)

    def _take_back(self, *, wait: bool) -> None:
        """Free the ranges of dropped blocks; those still being copied only with `wait`."""
        for _ in range(len(self._returned)):
            begin, copied = self._returned.popleft()
            if copied is not None and not copied.query():
                if not wait:
                    self._returned.append((begin, copied))
                    continue
                copied.synchronize()
            self._arena.give(begin)

    def until_edge(self, offset: int) -> int:
        """Bytes from `offset` to the end of its slab."""
        return self.size - self._slab_of(offset) * self._slab - offset

    def _slab_of(self, offset: int) -> int:
        return (self.size - 1 - offset) // self._slab

    def _ask(self, slab: int) -> None:
        """Have a slab registered, if there is one of that number."""
        if self._registering is None or slab in self._asked or not 0 <= slab <= self._slab_of(0):
            return
        self._asked.add(slab)
        end = self.size - slab * self._slab
        self._registering.submit(self._register, max(end - self._slab, 0), end)

    def _register(self, begin: int, end: int) -> None:
        """On a thread of its own: a refusal stays behind as the thread's last error of the driver."""
        if self._registrar is None:
            return
        self._memory.populate(begin, end)  # registering is ten times faster where pages are there already
        reason = self._memory.register(self._registrar, begin, end)
        if reason is not None:
            self._registrar = None
            log.warning(
                "kept prompts: the driver does not register %d bytes (%s): copies take longer",
                end - begin,
                reason,
            )


class Staging:
    """A buffer on `device` through which kept bytes pass. On CPU tensors all copies are done at once."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._device = device
        self._side = _cuda.Stream(device) if device.type == "cuda" else None
        self._sent: Any = None  # the buffer is free behind it

    def send(self, block: Block, begin: int, size: int, fill: Callable[[torch.Tensor], None]) -> None:
        """Have `fill` write `size` bytes of the buffer, behind the steps so far, and copy them to `block`
        from `begin` on, beside the steps to come.
        """
        target, piece = block.tensor[begin : begin + size], self.buffer[:size]
        if self._side is None:
            fill(piece)
            target.copy_(piece)
            return
        current = torch.cuda.current_stream(self._device)
        if self._sent is not None:
            current.wait_event(self._sent)
        fill(piece)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for at, length in block.pieces(begin, size):
                target[at : at + length].copy_(piece[at : at + length], non_blocking=True)
            self._sent = _cuda.Event()
            self._sent.record(self._side)
        block.copied = self._sent

    def bring(self, block: Block, begin: int, size: int, spill: Callable[[torch.Tensor], None]) -> None:
        """Copy `size` bytes of `block` into the buffer and have `spill` take them, before the steps to come.

        The host does not wait.
        """
        source, piece = block.tensor[begin : begin + size], self.buffer[:size]
        if self._side is None:
            piece.copy_(source)
            spill(piece)
            return
        current = torch.cuda.current_stream(self._device)
        for event in (self._sent, block.copied):
            if event is not None:
                current.wait_event(event)
        for at, length in block.pieces(begin, size):
            piece[at : at + length].copy_(source[at : at + length], non_blocking=True)
        spill(piece)
        self.note(block)

    def note(self, block: Block) -> None:
        """All that the steps' stream has been given so far may use `block`."""
        if self._side is not None:
            block.copied = _cuda.Event()
            block.copied.record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """Wait until nothing is on its way."""
        if self._side is not None:
            self._side.synchronize()
            torch.cuda.current_stream(self._device).synchronize()
