"""Latent attention in which an indexer chooses what a row attends to (DeepSeek-V3.2, GLM-5).

Rows that see no more tokens than the indexer would choose attend to all of them, as in `latent_attention`.
Others gather the latents of the chosen ones and attend to those.
"""

from __future__ import annotations

import torch

from ftagent.engine.context.pages import KvStorage
from ftagent.engine.kernels.attention import attend_all
from ftagent.engine.models.batch import Batch, Runs, Span
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.latent_attention import LatentAttention
from ftagent.engine.models.layers import Rope
from ftagent.engine.models.sparse_index import Indexer
from ftagent.engine.weights.source import Source

GATHER_BYTES = 128 * 2**20  # of the latents that are gathered for rows at once


class SparseLatentAttention(LatentAttention):
    """One layer with its indexer; pages hold the indexer's key behind the latent."""

    def __init__(self, config: ModelConfig, source: Source, prefix: str, kv_layer: int) -> None:
        super().__init__(config, source, prefix, kv_layer)
        self.indexer = Indexer(config, self.shape, source, prefix + "indexer.")
        self.top = self.indexer.shape.top

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        decode = batch.decode
        query, stored, compressed = self._rows(x, decode, rope, turn)
        keys = self.indexer.keys(x, decode, rope, turn).to(x.dtype)
        kv.write(self.kv_layer, batch.places, torch.cat((stored, keys), dim=-1).unsqueeze(0))
        asked = self.indexer.queries(x, compressed, decode, rope, turn)
        done: list[torch.Tensor] = []
        for row, segments in enumerate(batch.decode_pasts):
            start, own = batch.decode_starts[row], slice(row, row + 1)
            if start < self.top:
                done.append(self._absorbed_values(self._absorbed(query[own], segments, kv)))
                continue
            runs = [run for segment in segments for run in segment]
            done.append(self._chosen(query[own], (asked[0][own], asked[1][own]), start, runs, kv))
        for span in batch.spans:
            rows = span.rows
            done += self._sparse_span(query[rows], stored[rows], (asked[0][rows], asked[1][rows]), span, kv)
        return self._out(done, x, decode)

    def run_span(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        span: Span,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        query, stored, compressed = self._rows(x, 0, rope, turn)
        keys = self.indexer.keys(x, 0, rope, turn).to(x.dtype)
        kv.write(self.kv_layer, places, torch.cat((stored, keys), dim=-1).unsqueeze(0))
        asked = self.indexer.queries(x, compressed, 0, rope, turn)
        return self._out(self._sparse_span(query, stored, asked, span, kv), x, 0)

    def _sparse_span(
        self,
        query: torch.Tensor,
        stored: torch.Tensor,
        asked: tuple[torch.Tensor, torch.Tensor],
        span: Span,
        kv: KvStorage,
    ) -> list[torch.Tensor]:
        """Rows of a chunk: those that see all, then those that choose."""
        border = min(max(self.top - span.start, 0), len(query))
        done = []
        if border:
            done.append(self._span(query[:border], stored[:border], span, kv))
        if border < len(query):
            runs = [*span.past, *span.own]
            late = (asked[0][border:], asked[1][border:])
            done.append(self._chosen(query[border:], late, span.start + border, runs, kv))
        return done

    def _chosen(
        self,
        query: torch.Tensor,
        asked: tuple[torch.Tensor, torch.Tensor],
        start: int,
        runs: Runs,
        kv: KvStorage,
    ) -> torch.Tensor:
        """Values [rows, heads, value] of rows from token `start` on, of the tokens in `runs`."""
        kept = kv.read(self.kv_layer, runs)[0]
        chosen = self.indexer.choose(*asked, kept[:, self.shape.stored :].float(), start)
        inside = self._inside(query)  # [heads, rows, stored]
        step = max(1, GATHER_BYTES // (self.top * self.shape.stored * kept.element_size()))
        found = []
        for begin in range(0, len(query), step):
            rows = slice(begin, begin + step)
            tokens = kept[chosen[rows], : self.shape.stored]  # [rows, top, stored]
            # Rows take the place of KV heads: each has tokens of its own, for all of its heads.
            asking = inside[:, rows].transpose(0, 1).reshape(-1, 1, self.shape.stored)
            found.append(attend_all(asking, tokens, tokens, self.scale).out.squeeze(1))
        latents = torch.cat(found).view(len(query), self.heads, -1)[..., : self.shape.rank].transpose(0, 1)
        return torch.bmm(latents, self.up_values.transpose(1, 2)).transpose(0, 1)
