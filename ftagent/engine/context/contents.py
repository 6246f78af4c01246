"""Bytes of KV pages and recurrent states, for the tiers below the pools. Knows tensors, not their meaning.

This is for pools in host memory; those of a device have `device.contents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from ftagent.engine.context.pages import PAGE_TOKENS, KvStorage, token_runs
from ftagent.engine.context.recurrent import StatePool, StateSnapshot
from ftagent.engine.context.tiers import Bytes, Held


class TorchContents:
    """Implements `tiers.Contents` for one KV storage and one state pool, by copies through host memory.

    Pages: for each page, layer by layer, [planes, PAGE_TOKENS, size] in the storage's dtype. State:
    the parts of a `StateSnapshot` one after the other.
    """

    def __init__(self, storage: KvStorage, states: StatePool) -> None:
        self._storage = storage
        self._states = states
        self.dtype = storage.layer(0).dtype if storage.shape.layers else torch.float32
        self.page_bytes = storage.shape.page_bytes(self.dtype)

        self.state_bytes = states.slot_bytes

    def read_pages(self, pages: Sequence[int], *, spare: bool = True) -> Held:
        held = torch.empty(len(pages), *self._page_shape(), dtype=self.dtype)
        for layer in range(self._storage.shape.layers):
            begin = 0
            for first, tokens in self._runs(pages):
                count = tokens // PAGE_TOKENS
                run = self._run(layer, first, tokens)  # [planes, tokens, size]
                run = run.reshape(run.shape[0], count, PAGE_TOKENS, run.shape[2]).transpose(0, 1)
                held[begin : begin + count, layer].copy_(run)
                begin += count
        return Bytes(held.view(torch.uint8).numpy().tobytes())

    def write_pages(self, pages: Sequence[int], held: Held, first: int) -> None:
        data = held.view()[first * self.page_bytes : (first + len(pages)) * self.page_bytes]
        assert len(data) == len(pages) * self.page_bytes, "contents of other pages"
        if not len(data):
            return
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self.dtype)
        by_page = flat.view(len(pages), *self._page_shape())
        for layer in range(self._storage.shape.layers):
            stored = by_page[:, layer].transpose(0, 1).flatten(1, 2)  # [planes, pages * tokens, size]
            begin = 0
            for first, tokens in self._runs(pages):
                self._run(layer, first, tokens).copy_(stored[:, begin : begin + tokens])
                begin += tokens

    def pack(self, snapshot: StateSnapshot) -> Held:
        return Bytes(b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in snapshot))

    def unpack(self, held: Held) -> StateSnapshot:
        raw = torch.frombuffer(bytearray(held.view()), dtype=torch.uint8)
        parts: list[torch.Tensor] = []
        begin = 0
        for pool in (self._states.conv, self._states.recurrent, self._states.windows.stored):
            shape = (pool.shape[0], *pool.shape[2:])
            end = begin + prod(shape) * pool.dtype.itemsize
            parts.append(raw[begin:end].view(pool.dtype).view(shape))
            begin = end
        assert begin == len(held), "a state of another shape"
        return StateSnapshot(*parts)

    def blank(self, size: int, state: bool) -> Held:
        return Bytes(bytearray(size))

    def on_shortage(self, let_go: Callable[[], bool]) -> None:
        """Memory of the process is not short in a way that could be seen here: tiers have their bounds."""

    def _page_shape(self) -> tuple[int, int, int, int]:
        shape = self._storage.shape
        return shape.layers, shape.planes, PAGE_TOKENS, shape.size

    def _runs(self, pages: Sequence[int]) -> list[tuple[int, int]]:
        return token_runs(pages, 0, len(pages) * PAGE_TOKENS)

    def _run(self, layer: int, first: int, tokens: int) -> torch.Tensor:
        return self._storage.layer(layer)[:, first : first + tokens]
