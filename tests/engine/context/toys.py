"""Toy models with every kind of state that reuse must bring back: none beside the pages, a recurrent one, the
window of layers that see only the last tokens, and both of these; and one whose steps keep states on the way.

`cold_reply` is their oracle: the same functions of the tokens, computed directly.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.contents import TorchContents
from ftagent.engine.context.pages import KvShape, KvStorage
from ftagent.engine.context.recurrent import StatePool, StateShape, StateSnapshot
from ftagent.engine.context.tiers import Held
from ftagent.engine.context.windows import WindowShape
from tests.engine.context.test_tiers import ToyContents
from tests.support.toy import ToyRunner, ToyStates, cold_tokens, entry, toy_logits

Kind = Literal["recurrent", "pages", "window", "window and recurrent", "recurrent inside"]
WINDOW = 13
_SMALL_PRIME = 1_000_003


class NoStates(ToyStates):
    slot_bytes = 0

    def snapshot(self, slot: int) -> int:
        raise AssertionError("there is no state to keep")

    def restore(self, slot: int, snapshot: Any) -> None:
        raise AssertionError("there is no state to bring back")


class Stateless(ToyRunner):
    """Logits depend on keys and values alone, as where every layer has full attention."""

    def __init__(self, pages: int, slots: int, page_size: int, context: int) -> None:
        super().__init__(pages, slots, page_size, context)
        self.recurrent = NoStates(slots)

    def _run(self, chunk: Chunk) -> NDArray[np.float32] | None:
        if super()._run(chunk) is None:
            return None
        end = chunk.start + len(chunk.tokens)
        return toy_logits(0, self._memory[list(chunk.pages)].reshape(-1)[:end].tolist())


class Windowed(ToyRunner):
    """One layer of full attention, whose entries are in pages, and one that sees the last WINDOW tokens; with
    `recurrent` a state as well. All are in the product's own pools.
    """

    def __init__(self, pages: int, slots: int, page_size: int, context: int, *, recurrent: bool) -> None:
        super().__init__(pages, slots, page_size, context)
        self.states = StatePool(slots, StateShape(int(recurrent), 0, 0, 1, 1, 1), window=_WINDOW_SHAPE)
        self.recurrent = self.states  # type: ignore[assignment]

    def _run(self, chunk: Chunk) -> NDArray[np.float32] | None:
        size, start = self.kv.page_size, chunk.start
        new = [entry(position, token) for position, token in enumerate(chunk.tokens, start)]
        for position, number in enumerate(new, start):
            page = chunk.pages[position // size]
            assert self.kv.references(page) > 0, "a write into a free page"
            self._memory[page, position % size] = number
        state = self._follow(chunk)
        held = self.states.windows.tail(0, chunk.slot, start).flatten().int().tolist()
        rows = torch.tensor(new, dtype=torch.float32).view(1, -1, 1)
        self.states.windows.write(0, chunk.slot, start, rows)
        if not chunk.want_logits:
            return None
        entries = self._memory[list(chunk.pages)].reshape(-1)[: start + len(new)]
        return windowed_logits(state, [*held, *new][-WINDOW:], entries.tolist())

    def _follow(self, chunk: Chunk) -> int:
        if not self.states.shape.layers:
            return 0
        held = self.states.recurrent[0, chunk.slot, 0]
        state = int(held[0, 0])
        for token in chunk.tokens:
            state = small_follow(state, token)
        held.fill_(state)
        return state


class WindowedContents(ToyContents):
    """The toy's pages; its states as the product packs them."""

    def __init__(self, runner: Windowed) -> None:
        super().__init__(runner)
        storage = KvStorage(KvShape(0, 1, 1), 1, torch.float32, torch.device("cpu"))
        self._states = TorchContents(storage, runner.states)
        self.state_bytes = self._states.state_bytes

    def pack(self, snapshot: StateSnapshot) -> Held:
        return self._states.pack(snapshot)

    def unpack(self, held: Held) -> Any:
        return self._states.unpack(held)


_WINDOW_SHAPE = WindowShape(layers=1, planes=1, size=1, window=WINDOW)


def small_follow(state: int, token: int) -> int:
    """A state that float32 holds exactly."""
    return (state * 31 + token + 1) % _SMALL_PRIME


def windowed_logits(state: int, window: Sequence[int], entries: Sequence[int]) -> NDArray[np.float32]:
    return toy_logits(state ^ zlib.crc32(np.asarray(window, np.int64).tobytes()), entries)


def new_runner(kind: Kind, pages: int, slots: int, page_size: int, context: int) -> ToyRunner:
    if kind in ("recurrent", "recurrent inside"):
        runner = ToyRunner(pages, slots, page_size, context)
        runner.recurrent.inside = kind != "recurrent"
        return runner
    if kind == "pages":
        return Stateless(pages, slots, page_size, context)
    return Windowed(pages, slots, page_size, context, recurrent=kind != "window")


def contents_of(runner: ToyRunner) -> ToyContents:
    return WindowedContents(runner) if isinstance(runner, Windowed) else ToyContents(runner)


def cold_reply(kind: Kind, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy reply of `count` tokens to `prompt`, without pools, chunks and reuse."""
    if kind in ("recurrent", "recurrent inside"):
        return cold_tokens(prompt, count)
    tokens = list(prompt)
    for _ in range(count):
        entries = [entry(position, token) for position, token in enumerate(tokens)]
        tokens.append(int(_cold_logits(kind, tokens, entries).argmax()))
    return tokens[len(prompt) :]


def _cold_logits(kind: Kind, tokens: Sequence[int], entries: Sequence[int]) -> NDArray[np.float32]:
    if kind == "pages":
        return toy_logits(0, entries)
    state = 0
    if kind == "window and recurrent":
        for token in tokens:
            state = small_follow(state, token)
    return windowed_logits(state, entries[-WINDOW:], entries)
