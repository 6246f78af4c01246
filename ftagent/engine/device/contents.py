"""What pages and states of a device hold, in registered host memory: copied in few pieces, each as long as
the link likes, and never shared with what runs. Knows tensors and their places, no prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PAGE_TOKENS, KvStorage
from ftagent.engine.context.recurrent import StatePool, StateShape
from ftagent.engine.context.tiers import Held
from ftagent.engine.context.windows import WindowShape
from ftagent.engine.device.kept import Block, KeptMemory, Staging
from ftagent.engine.experts.pinning import Registrar
from ftagent.errors import LoadFailed


class DeviceStates(StatePool):
    """A state pool whose snapshots are blocks of kept memory: the parts of `StateSnapshot` one behind the
    other, so that a state crosses the link in one copy.
    """

    def __init__(
        self,
        total: int,
        shape: StateShape,
        device: torch.device,
        window: WindowShape | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(total, shape, device, window, dtype)
        self._memory: KeptMemory | None = None
        self._staging: Staging | None = None
        self._taken: dict[tuple[int, int], Block] = {}  # (slot, position): states that a step keeps

    @property
    def inside(self) -> bool:
        """See `pools.States`. The tokens of a window are not kept on the way."""
        return bool(self.shape.layers) and not self.windows.shape.layers

    def attach(self, memory: KeptMemory, staging: Staging) -> None:
        """Where snapshots go; before the first one."""
        self._memory, self._staging = memory, staging

    def snapshot(self, slot: int) -> Block | None:
        """Copy the state of a held slot, beside the steps to come; None when the memory has no room."""
        assert slot in self._held, f"state slot {slot} is not held"
        assert self._memory is not None, "nothing was attached"
        assert self._staging is not None
        block = self._memory.state()
        if block is not None:

            def fill(piece: torch.Tensor) -> None:
                for part, pool in self._parts(piece):
                    part.copy_(pool[:, slot])

            self._staging.send(block, 0, self.slot_bytes, fill)
        return block

    def restore(self, slot: int, snapshot: Block) -> None:
        """Copy `snapshot` into a held slot, before the steps to come."""
        assert slot in self._held, f"state slot {slot} is not held"
        assert self._staging is not None, "nothing was attached"

        def spill(piece: torch.Tensor) -> None:
            for part, pool in self._parts(piece):
                pool[:, slot].copy_(part)

        self._staging.bring(snapshot, 0, self.slot_bytes, spill)

    def open(self, chunks: Sequence[Chunk]) -> None:
        """A step over `chunks` begins: find room for the states that it is to keep. What nobody has taken of
        the last step's is dropped.
        """
        for key in list(self._taken):
            self.take(*key)
        if self._memory is None:
            return
        for chunk in chunks:
            for position in chunk.keep:
                block = self._memory.state()
                if block is not None:
                    self._taken[chunk.slot, position] = block

    def keep(self, layer: int, slot: int, position: int) -> None:
        """Straight into kept memory, in the stream of the step: a layer's part is one or two megabytes."""
        block = self._taken.get((slot, position))
        if block is None:
            return
        for part, pool in self._parts(block.tensor):
            if len(part):
                part[layer].copy_(pool[layer, slot], non_blocking=True)

    def take(self, slot: int, position: int) -> Block | None:
        block = self._taken.pop((slot, position), None)
        if block is not None and self._staging is not None:
            self._staging.note(block)
        return block

    def _parts(self, raw: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parts of a packed state `raw`, uint8 [slot_bytes], each with the pool that it belongs to."""
        begin = 0
        for pool in (self.conv, self.recurrent, self.windows.stored):
            shape = (pool.shape[0], *pool.shape[2:])
            end = begin + prod(shape) * pool.dtype.itemsize
            yield raw[begin:end].view(pool.dtype).view(shape), pool
            begin = end


class DeviceContents:
    """Implements `tiers.Contents` for one KV storage and one state pool of a device.

    Pages: for each page, layer by layer, [planes, PAGE_TOKENS, size] in the storage's dtype, gathered by one
    kernel for each layer.
    """

    def __init__(
        self,
        storage: KvStorage,
        states: DeviceStates,
        kept: Kept,
        copies_bytes: int,
        registrar: Registrar | None = None,
    ) -> None:
        """Takes `copies_bytes` of the device, which a state must fit, and host memory for `kept`.

        Raises LoadFailed where that cannot be mapped.
        """
        self.states = states
        self.kept = kept
        self._storage = storage
        self._staging = staging = Staging(copies_bytes, states.conv.device)  # first: it may find no room
        try:
            memory = KeptMemory(kept.total(states.slot_bytes), states.slot_bytes, registrar)
        except OSError as error:
            reason = f"no memory for kept prompts ({error.strerror})"
            raise LoadFailed(f"{reason}; keep fewer (--anchors)") from error
        self._memory = memory
        self.dtype = storage.layer(0).dtype if storage.shape.layers else torch.float32
        self.page_bytes = storage.shape.page_bytes(self.dtype)
        self.state_bytes = states.slot_bytes
        states.attach(memory, staging)

    def read_pages(self, pages: Sequence[int], *, spare: bool) -> Held | None:
        size = len(pages) * self.page_bytes
        block = self._memory.block(size)
        if block is None:
            if not spare:
                return None
            block = Block(torch.empty(size, dtype=torch.uint8))
        for begin, part in self._pieces(pages):

            def fill(piece: torch.Tensor, part: torch.Tensor = part) -> None:
                for layer, held in enumerate(self._by_layer(piece)):
                    held.copy_(self._by_page(layer).index_select(1, part))

            self._staging.send(block, begin * self.page_bytes, len(part) * self.page_bytes, fill)
        return block

    def write_pages(self, pages: Sequence[int], held: Held, first: int) -> None:
        assert isinstance(held, Block), "held in memory of another kind"
        for begin, part in self._pieces(pages):

            def spill(piece: torch.Tensor, part: torch.Tensor = part) -> None:
                for layer, stored in enumerate(self._by_layer(piece)):
                    self._by_page(layer).index_copy_(1, part, stored)

            self._staging.bring(held, (first + begin) * self.page_bytes, len(part) * self.page_bytes, spill)

    def pack(self, snapshot: Block) -> Held:
        return snapshot

    def unpack(self, held: Held) -> Block | None:
        """The block itself: nobody writes into it any more. Bytes in other memory are copied."""
        assert isinstance(held, Block), "held in memory of another kind"
        assert len(held) == self.state_bytes, "a state of another shape"
        if not held.loose:
            return held
        block = self._memory.state()
        if block is not None:
            block.tensor.copy_(held.tensor)
        return block

    def blank(self, size: int, state: bool) -> Held:
        if state and size == self.state_bytes:
            block = self._memory.state()
        else:
            block = self._memory.block(size)
        return Block(torch.empty(size, dtype=torch.uint8)) if block is None else block

    def on_shortage(self, let_go: Callable[[], bool]) -> None:
        self._memory.on_shortage(let_go)

    def ready(self) -> None:
        """Wait until copies are as fast as they can be."""
        self._memory.ready()

    def check_integrity(self) -> None:
        """Raise AssertionError when kept memory is lost or given away twice."""
        self._memory.check_integrity()

    def close(self) -> None:
        """Give the memory back. No step may run or follow."""
        self._staging.close()
        self._memory.close()

    def _pieces(self, pages: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Pages as many at a time as the staging buffer holds: the number of the first, and their ids."""
        most = max(len(self._staging.buffer) // max(self.page_bytes, 1), 1)
        device = self._staging.buffer.device
        for begin in range(0, len(pages), most):
            ids = torch.tensor(pages[begin : begin + most])
            yield begin, ids.to(device, non_blocking=True)

    def _by_layer(self, piece: torch.Tensor) -> Sequence[torch.Tensor]:
        """Packed pages, uint8 [pages * page_bytes], as [planes, pages, PAGE_TOKENS, size] for each layer."""
        shape = self._storage.shape
        packed = piece.view(self.dtype).view(-1, shape.layers, shape.planes, PAGE_TOKENS, shape.size)
        return packed.permute(1, 2, 0, 3, 4).unbind(0)

    def _by_page(self, layer: int) -> torch.Tensor:
        """All pages of one layer, [planes, pages, PAGE_TOKENS, size]."""
        shape = self._storage.shape
        return self._storage.layer(layer).view(shape.planes, -1, PAGE_TOKENS, shape.size)
