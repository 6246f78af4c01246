"""Drives a Runner the way a scheduler does: allocates, cuts prompts into chunks, and collects logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.steps import LoadedModel


class Request:
    """One sequence on a runner, with its pages and its state slot."""

    def __init__(self, runner: LoadedModel) -> None:
        self._runner = runner
        self.slot = runner.recurrent.allocate()
        self.pages: list[int] = []
        self.length = 0

    def chunk(self, tokens: Sequence[int]) -> Chunk:
        """The next tokens as a chunk; the request is advanced."""
        need = self._runner.kv.pages_for(self.length + len(tokens)) - len(self.pages)
        self.pages += self._runner.kv.allocate(need, after=self.pages[-1] if self.pages else None)
        start, self.length = self.length, self.length + len(tokens)
        return Chunk(tuple(tokens), start, tuple(self.pages), self.slot, True)

    def feed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Run one chunk alone: float32 [vocab]."""
        return self._runner.step([self.chunk(tokens)])[0]

    def close(self) -> None:
        self._runner.kv.release(self.pages)
        self._runner.recurrent.release(self.slot)


def logits_by_chunks(
    runner: LoadedModel, tokens: Sequence[int], sizes: Sequence[int]
) -> dict[int, torch.Tensor]:
    """Position to the logits after it, for the last token of each chunk; the rest is fed token by token."""
    request = Request(runner)
    found: dict[int, torch.Tensor] = {}
    cut = 0
    for size in [*sizes, *[1] * (len(tokens) - sum(sizes))]:
        found[cut + size - 1] = request.feed(tokens[cut : cut + size])
        cut += size
    request.close()
    runner.kv.check_integrity()
    runner.recurrent.check_integrity()
    assert runner.kv.free_count == runner.kv.total
    return found
