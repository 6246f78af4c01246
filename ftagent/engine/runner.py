"""One step on the device: chunks of several requests in, logits out. Knows no requests, sampling or text.

Rows of a step do not see each other. Decode rows (chunks of one token) go through matrix-vector products, prefill
rows through matrix products of at least four rows, attention and the delta rule per chunk: a row then gives
the same bits whatever else is in the step, on builds of torch whose products have that property (docs/engine.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ftagent.engine.api import ModelInfo
from ftagent.engine.context.pages import PagePool
from ftagent.engine.context.recurrent import StatePool

if TYPE_CHECKING:
    from ftagent.engine.experts.pool import ExpertPool
    from ftagent.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one request.

    `start` is the position of tokens[0]; `pages` are the KV pages that cover positions [0, start + len(tokens));
    `slot` is the recurrent state slot, which has seen exactly the tokens before `start`.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    slot: int
    want_logits: bool


class Runner:
    """A loaded model with its pools. Not thread-safe: one thread calls `step`."""

    def __init__(
        self,
        model: Decoder,
        kv: PagePool,
        recurrent: StatePool,
        experts: ExpertPool | None,
        info: ModelInfo,
    ) -> None:
        self._model = model
        self.kv = kv
        self.recurrent = recurrent
        self.experts = experts
        self.info = info

    @torch.inference_mode()
    def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run all chunks through the model.

        Returns float32 [chunks with want_logits, vocab]: the logits after each such chunk's last token, in
        the order of `chunks`. KV pages and state slots of the chunks are advanced.
        """
        for chunk in chunks:
            self._check(chunk)
        if self.experts is not None:
            self.experts.begin_step()
        return self._model.forward(chunks)

    def copy_page(self, source: int, target: int) -> None:
        """Copy keys and values of KV page `source` into `target`, in all layers. The caller holds both."""
        self._model.copy_page(source, target)

    def _check(self, chunk: Chunk) -> None:
        end = chunk.start + len(chunk.tokens)
        assert chunk.tokens, "a chunk has at least one token"
        assert end <= self.info.context, f"position {end} is beyond the context of {self.info.context} tokens"
        assert len(chunk.pages) * self.kv.page_size >= end, (
            f"{len(chunk.pages)} pages do not cover {end} tokens"
        )
