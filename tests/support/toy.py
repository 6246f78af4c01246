"""A recurrent toy model behind the Runner's face, so that scheduling and reuse are tested exactly.

Its state is a running hash of all tokens so far, and its logits depend on that state and on every KV entry
of the request: a misplaced state or page changes every later token. `cold_tokens` is the oracle: the same
function of the tokens, computed directly, without pools.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ftagent.engine.api import ModelInfo
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PagePool, PoolFull
from ftagent.engine.logits import Later

VOCAB = 97
_PRIME = 2**61 - 1


def follow(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 1) % _PRIME


def toy_logits(state: int, entries: Sequence[int], vocab: int = VOCAB) -> NDArray[np.float32]:
    """Logits, float32 [vocab], as a hash of the state and of all KV entries (pairs of position and token)."""
    seed = zlib.crc32(np.asarray(entries, np.int64).tobytes()) ^ state
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(vocab).astype(np.float32)


def entry(position: int, token: int) -> int:
    return position * 1000 + token


def cold_tokens(prompt: Sequence[int], count: int, vocab: int = VOCAB) -> list[int]:
    """The greedy reply of `count` tokens, without pools, chunks and reuse."""
    state = 0
    for token in prompt:
        state = follow(state, token)
    tokens = list(prompt)
    for _ in range(count):
        entries = [entry(position, token) for position, token in enumerate(tokens)]
        tokens.append(int(toy_logits(state, entries, vocab).argmax()))
        state = follow(state, tokens[-1])
    return tokens[len(prompt) :]


class ToyStates:
    """State slots that hold one integer each. `inside`: see `pools.States`."""

    slot_bytes = 8

    def __init__(self, total: int, inside: bool = False) -> None:
        self.total = total
        self.inside = inside
        self.values: dict[int, int] = {}
        self.kept: dict[tuple[int, int], int] = {}  # (slot, position) to the state there, of the last step

    @property
    def free_count(self) -> int:
        return self.total - len(self.values)

    def allocate(self) -> int:
        if not self.free_count:
            raise PoolFull("recurrent state", 1, 0)
        slot = next(slot for slot in range(self.total) if slot not in self.values)
        self.values[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        del self.values[slot]

    def snapshot(self, slot: int) -> int:
        return self.values[slot]

    def restore(self, slot: int, snapshot: int) -> None:
        assert slot in self.values
        self.values[slot] = snapshot

    def take(self, slot: int, position: int) -> int | None:
        return self.kept.pop((slot, position), None)

    def check_integrity(self) -> None:
        assert set(self.values) <= set(range(self.total))


class ToyRunner:
    """Runs chunks as `runner.Runner` does. `before_step` may look, wait or raise before each step."""

    experts = None

    def __init__(
        self,
        pages: int = 64,
        slots: int = 8,
        page_size: int = 4,
        context: int = 200,
        before_step: Callable[[Sequence[Chunk]], None] = lambda chunks: None,
    ) -> None:
        self.kv = PagePool(pages, page_size)
        self.recurrent = ToyStates(slots)
        self.kept = Kept(64, 0)
        self.chunk_tokens = 1024
        self.info = ModelInfo(id="toy", family="toy", context=context, vocab=VOCAB)
        self.before_step = before_step
        self.closed = 0
        self.steps: list[list[Chunk]] = []
        self._memory = np.full((pages, page_size), -1, np.int64)

    def copy_page(self, source: int, target: int) -> None:
        self._memory[target] = self._memory[source]

    def launch(self, chunks: Sequence[Chunk]) -> Later:
        return Later(lambda: self.step(chunks))

    def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.before_step(chunks)
        self.steps.append(
            [Chunk(list(c.tokens), c.start, list(c.pages), c.slot, c.want_logits) for c in chunks]
        )
        if isinstance(self.recurrent, ToyStates):  # some toys have other pools
            self.recurrent.kept.clear()
        rows = [self._run(chunk) for chunk in chunks]
        wanted = [row for row in rows if row is not None]
        return torch.from_numpy(np.stack(wanted)) if wanted else torch.empty(0, VOCAB)

    def close(self) -> None:
        self.closed += 1

    def _run(self, chunk: Chunk) -> NDArray[np.float32] | None:
        size = self.kv.page_size
        state = self.recurrent.values[chunk.slot]
        for position, token in enumerate(chunk.tokens, chunk.start):
            page = chunk.pages[position // size]
            assert self.kv.references(page) > 0, "a write into a free page"
            self._memory[page, position % size] = entry(position, token)
            state = follow(state, token)
            if position + 1 in chunk.keep:
                assert self.recurrent.inside, "a pool that keeps no states inside a chunk"
                self.recurrent.kept[chunk.slot, position + 1] = state
        self.recurrent.values[chunk.slot] = state
        if not chunk.want_logits:
            return None
        end = chunk.start + len(chunk.tokens)
        entries = self._memory[list(chunk.pages)].reshape(-1)[:end]
        return toy_logits(state, entries.tolist())
