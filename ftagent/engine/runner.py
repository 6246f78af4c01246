"""One step on the device: chunks of several requests in, logits out. Knows no requests, sampling or text.

Rows of a step do not see each other. Decode rows (chunks of one token) go through matrix-vector products,
prefill rows through matrix products that give every thread four rows, attention and the delta rule run for
each chunk: a row then gives the same bits whatever else is in the step, where the BLAS allows it
(`kernels.linear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ftagent.engine.api import ModelInfo
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.contents import TorchContents
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PagePool
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.logits import Later

if TYPE_CHECKING:
    from ftagent.engine.experts.pool import ExpertPool
    from ftagent.engine.models.decoder import Decoder


CACHED_BYTES = 64 * 2**20  # active weights up to this size are read at cache speed by one core
CONTEXT_SHARE = 8192  # tokens of past from which attention is worth a second thread


class Runner:
    """A loaded model with its pools. Not thread-safe: one thread calls `step`."""

    chunk_tokens = 1024

    def __init__(
        self,
        model: Decoder,
        kv: PagePool,
        recurrent: StatePool,
        experts: ExpertPool | None,
        info: ModelInfo,
        kept: Kept,
    ) -> None:
        self._model = model
        self.kv = kv
        self.recurrent = recurrent
        self.experts = experts
        self.info = info
        self.kept = kept
        self.contents = TorchContents(model.pools.kv, recurrent)
        self._threads = torch.get_num_threads()
        self._small = 4 * info.active_parameters <= CACHED_BYTES

    def launch(self, chunks: Sequence[Chunk]) -> Later:
        """Run `chunks` when the result is waited for: there is no device that could begin by itself."""
        return Later(lambda: self.step(chunks))

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
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads_for(chunks))
        try:
            return self._model.forward(chunks)
        finally:
            torch.set_num_threads(before)

    def copy_page(self, source: int, target: int) -> None:
        """Copy keys and values of KV page `source` into `target`, in all layers. The caller holds both."""
        self._model.copy_page(source, target)

    def close(self) -> None:
        """See `steps.Steps.close`. Banks go with their last reference: slots may be views of them."""

    def _threads_for(self, chunks: Sequence[Chunk]) -> int:
        """One thread for short decode steps of a small model: its products are too small to share, and a
        second thread only waits at barriers, long when another process takes its core.
        """
        short = sum(chunk.start + CONTEXT_SHARE * (len(chunk.tokens) > 1) for chunk in chunks) < CONTEXT_SHARE
        return 1 if self._small and short else self._threads

    def _check(self, chunk: Chunk) -> None:
        end = chunk.start + len(chunk.tokens)
        assert chunk.tokens, "a chunk has at least one token"
        assert end <= self.info.context, f"position {end} is beyond the context of {self.info.context} tokens"
        assert len(chunk.pages) * self.kv.page_size >= end, (
            f"{len(chunk.pages)} pages do not cover {end} tokens"
        )
