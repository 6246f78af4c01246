"""Random edits of conversations over the memory that a device's prompts are kept in: all of it but kernels.

The toy's entries lie in a KV storage, its state in a device's pool, and what leaves them in blocks of kept
memory that is mostly too small, so that every turn makes something give way. `context.test_edit_scripts` says
how replies are checked.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage
from ftagent.engine.context.recurrent import StateShape
from ftagent.engine.device.contents import DeviceContents, DeviceStates
from tests.engine.context.test_edit_scripts import Script
from tests.engine.context.test_tiers import tiered
from tests.support.toy import ToyRunner, entry, follow, toy_logits

CPU = torch.device("cpu")
UNIT = 4096  # bytes; what each state and each segment take at least


class DeviceToy(ToyRunner):
    """The recurrent toy with its entries and its state in the pools of a device; 64 tokens in a page."""

    def __init__(self, pages: int, slots: int, context: int, kept: Kept) -> None:
        super().__init__(pages, slots, PAGE_TOKENS, context)
        self._storage = KvStorage(KvShape(1, 1, 1), pages, torch.float32, CPU)
        self.states = DeviceStates(slots, StateShape(1, 0, 0, 1, 1, 2), CPU)
        self.contents = DeviceContents(self._storage, self.states, kept, UNIT)
        self.recurrent = self.states  # type: ignore[assignment]

    def copy_page(self, source: int, target: int) -> None:
        self._storage.copy_page(source, target)

    def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.states.open(chunks)
        return super().step(chunks)

    def _run(self, chunk: Chunk) -> NDArray[np.float32] | None:
        stored = self._storage.layer(0)[0, :, 0]
        held = self.states.recurrent[0, chunk.slot, 0].view(torch.int64)
        for position, token in enumerate(chunk.tokens, chunk.start):
            page = chunk.pages[position // PAGE_TOKENS]
            assert self.kv.references(page) > 0, "a write into a free page"
            stored[page * PAGE_TOKENS + position % PAGE_TOKENS] = entry(position, token)
            held.fill_(follow(int(held), token))
            if position + 1 in chunk.keep:
                self.states.keep(0, chunk.slot, position + 1)
        if not chunk.want_logits:
            return None
        entries = stored.view(-1, PAGE_TOKENS)[list(chunk.pages)].flatten().long()
        return toy_logits(int(held), entries[: chunk.start + len(chunk.tokens)].tolist())


class DeviceScript(Script):
    """A script on such a toy. When nothing has to go, kept memory has places for all."""

    def __init__(self, seed: int, *, ample: bool) -> None:
        super().__init__(seed, "recurrent", ample=ample)
        dice = self.dice
        states = 3000 if ample else dice.choice([1, 3, 8, 20])
        kept = Kept(states, 0 if ample else dice.choice([0, 4, 30]) * UNIT)
        self.toy = DeviceToy(1000 if ample else dice.choice([10, 14, 25]), 4, 700, kept)
        self.bench = tiered(
            self.toy, contents=self.toy.contents, host=kept.bytes, anchors=states,
            chunk_tokens=dice.choice([16, 64, 512]), max_running=4,
        )  # fmt: skip

    def run(self, turns: int) -> None:
        super().run(turns)
        self.toy.contents.check_integrity()
        store = self.bench.prefix._store
        assert store is not None
        store.close()
        self.toy.states.open(())
        gc.collect()  # what is in a cycle refers to its blocks until then
        assert self.toy.contents._memory.used == 0, "a block is lost"


@pytest.mark.parametrize("ample", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_warm_equals_cold_whatever_gives_way(seed: int, ample: bool) -> None:
    script = DeviceScript(seed, ample=ample)
    script.run(8)
    assert script.reused or not ample


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hundreds_of_scripts() -> None:
    for seed in range(300):
        DeviceScript(20_000 + seed, ample=seed % 4 == 0).run(12)
