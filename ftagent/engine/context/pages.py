"""KV pages: who holds which page, and the tensors behind them.

`PagePool` is bookkeeping on integers; `KvStorage` owns the memory. Neither knows requests, prompts or models.
A page holds 64 tokens of every attention layer. Neighbouring page ids are neighbouring memory, so a request
whose pages form one run is read without a copy; `allocate(after=...)` keeps runs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ftagent.errors import EngineError

PAGE_TOKENS = 64


class PoolFull(EngineError):
    """A pool has fewer free units than asked for. Nothing was taken."""

    def __init__(self, pool: str, need: int, have: int) -> None:
        super().__init__(f"{pool} pool is full: need {need}, have {have} free")
        self.need = need
        self.have = have


class PagePool:
    """Reference-counted pages 0..total-1. `page_bytes` is the memory of one page over all layers."""

    def __init__(self, total: int, page_size: int = PAGE_TOKENS, page_bytes: int = 0) -> None:
        self.total = total
        self.page_size = page_size
        self.page_bytes = page_bytes
        self._references = [0] * total
        self._free_count = total

    @property
    def free_count(self) -> int:
        return self._free_count

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, n: int, after: int | None = None) -> list[int]:
        """Take `n` pages, each with one reference.

        `after` is the last page of the request that grows: the pages behind it are preferred. Otherwise the
        pages come from the longest free run, from its middle when somebody may still grow into its start.
        Raises PoolFull (all or nothing).
        """
        if n > self._free_count:
            raise PoolFull("KV page", n, self._free_count)
        taken: list[int] = []
        start = None if after is None else after + 1
        while len(taken) < n:
            if start is None or start >= self.total or self._references[start]:
                start = self._roomy_start(n - len(taken))
            while len(taken) < n and start < self.total and not self._references[start]:
                self._references[start] = 1
                taken.append(start)
                start += 1
        self._free_count -= n
        return taken

    def retain(self, pages: Sequence[int]) -> None:
        """Add one reference to each page, to share it."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page; a page without references is free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free already"
            self._references[page] -= 1
            self._free_count += self._references[page] == 0

    def references(self, page: int) -> int:
        return self._references[page]

    def check_integrity(self) -> None:
        """Raise AssertionError with the numbers when free + held is not total."""
        held = sum(count > 0 for count in self._references)
        assert min(self._references, default=0) >= 0, "a page has a negative reference count"
        assert held + self._free_count == self.total, f"{held=} {self._free_count=} {self.total=}"

    def _roomy_start(self, n: int) -> int:
        """Where `n` pages go: into the longest free run, leaving its first half to the holder before it."""
        best, best_length, length = 0, 0, 0
        for page, count in enumerate(self._references):
            length = 0 if count else length + 1
            if length > best_length:
                best, best_length = page - length + 1, length
        return best + max(min(best_length // 2, best_length - n), 0) if best else best


class KvShape(NamedTuple):
    """What one token leaves in each attention layer: `planes` vectors of `size` elements.

    Grouped-query attention has a plane for the keys of each KV head, then one for its values; compressed
    attention has a single plane, its latent.
    """

    layers: int
    planes: int
    size: int

    def page_bytes(self, dtype: torch.dtype, page_size: int = PAGE_TOKENS) -> int:
        return self.layers * self.planes * self.size * page_size * dtype.itemsize


class KvStorage:
    """What all pages hold: per layer [planes, pages * page_size, size].

    The memory is not touched before it is written, so unused pages cost address space only.
    """

    def __init__(self, shape: KvShape, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        size = (shape.planes, pages * PAGE_TOKENS, shape.size)
        self._layers = [torch.empty(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def layer(self, layer: int) -> torch.Tensor:
        """All of one layer: [planes, tokens, size]."""
        return self._layers[layer]

    def write(self, layer: int, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Store `rows` [planes, rows, size] at places [rows] (page * page_size + offset)."""
        self._layers[layer].index_copy_(1, places, rows)

    def read(self, layer: int, runs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """[planes, tokens, size] of consecutive runs (first token place, tokens).

        One run is a view; several are copied together.
        """
        stored = self._layers[layer]
        pieces = [stored[:, first : first + tokens] for first, tokens in runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def read_pairs(self, layer: int, runs: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [planes / 2, tokens, size], of consecutive runs."""
        keys, values = self.read(layer, runs).chunk(2)
        return keys, values

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page into another, in all layers. The caller holds both pages."""
        for stored in self._layers:
            into, out = target * PAGE_TOKENS, source * PAGE_TOKENS
            stored[:, into : into + PAGE_TOKENS] = stored[:, out : out + PAGE_TOKENS]


def token_runs(pages: Sequence[int], begin: int, end: int) -> list[tuple[int, int]]:
    """Runs (first token place, tokens) that cover positions [begin, end) of a request with these pages."""
    runs: list[tuple[int, int]] = []
    position = begin
    while position < end:
        page = pages[position // PAGE_TOKENS]
        offset = position % PAGE_TOKENS
        tokens = min(PAGE_TOKENS - offset, end - position)
        place = page * PAGE_TOKENS + offset
        if runs and runs[-1][0] + runs[-1][1] == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + tokens)
        else:
            runs.append((place, tokens))
        position += tokens
    return runs


def split_runs(runs: Sequence[tuple[int, int]], tokens: int) -> Iterator[list[tuple[int, int]]]:
    """The same runs in pieces of `tokens` tokens; the last may have fewer."""
    piece: list[tuple[int, int]] = []
    room = tokens
    for place, length in runs:
        while length:
            taken = min(length, room)
            piece.append((place, taken))
            place, length, room = place + taken, length - taken, room - taken
            if not room:
                yield piece
                piece, room = [], tokens
    if piece:
        yield piece
