"""Latent attention in which an indexer chooses what a row attends to (DeepSeek-V3.2, GLM-5).

Rows that see no more tokens than the indexer would choose attend to all of them, as in `latent_attention`.
Others gather the latents of the chosen ones and attend to those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Asked(NamedTuple):
    """What the indexer asks for rows: queries [rows, heads, dim] and weights [rows, heads]; None where the
    layer has no indexer.
    """

    query: torch.Tensor | None
    weights: torch.Tensor | None

    def rows(self, rows: slice) -> Asked:
        if self.query is None or self.weights is None:
            return self
        return Asked(self.query[rows], self.weights[rows])


class Rows(NamedTuple):
    """Rows that choose: the number of the first one in the step, its token's position, and where all tokens
    up to the last one lie.
    """

    first: int
    start: int
    runs: Runs


class SparseLatentAttention(LatentAttention):
    """One layer; pages hold the indexer's key behind the latent.

    A layer without an indexer of its own takes over what its `leader`, an earlier layer, has chosen in the
    same step. What a layer has chosen is kept under the first row, in the step, that chose.
    """

    def __init__(
        self, config: ModelConfig, source: Source, prefix: str, kv_layer: int, *, follows: bool
    ) -> None:
        super().__init__(config, source, prefix, kv_layer)
        shape = self.shape.indexer
        assert shape is not None, "a family with an indexer gives its shape"
        self.top, self.key_dim = shape.top, shape.dim
        self.indexer = None if follows else Indexer(config, self.shape, source, prefix + "indexer.")
        self.leader: SparseLatentAttention | None = None
        self.followed = False
        self.choices: dict[int, torch.Tensor] = {}

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        self.choices.clear()
        query, stored, asked = self._asked(x, batch.places, batch.decode, kv, rope, turn)
        done: list[torch.Tensor] = []
        for row, segments in enumerate(batch.decode_pasts):
            start, own = batch.decode_starts[row], slice(row, row + 1)
            if start < self.top:
                found = self._values(self._absorbed(query[own], segments, kv).out).transpose(0, 1)
            else:
                runs = [run for segment in segments for run in segment]
                found = self._chosen(query[own], asked.rows(own), Rows(row, start, runs), kv)
            done.append(found)
        for span in batch.spans:
            rows = span.rows
            done += self._sparse_span(query[rows], stored[rows], asked.rows(rows), span, kv)
        return self._out(done, x, batch.decode)

    def run_span(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        span: Span,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        if span.begin == 0:  # a step begins
            self.choices.clear()
        query, stored, asked = self._asked(x, places, 0, kv, rope, turn)
        return self._out(self._sparse_span(query, stored, asked, span, kv), x, 0)

    def _asked(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        decode: int,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, Asked]:
        """Queries, what attention reads of the rows, in the pages by then, and what the indexer asks."""
        query, stored, compressed = self._rows(x, decode, rope, turn)
        if self.indexer is None:
            keys, asked = x.new_zeros(len(x), self.key_dim), Asked(None, None)
        else:
            keys = self.indexer.keys(x, decode, rope, turn).to(x.dtype)
            asked = Asked(*self.indexer.queries(x, compressed, decode, rope, turn))
        kv.write(self.kv_layer, places, torch.cat((stored, keys), dim=-1).unsqueeze(0))
        return query, stored, asked

    def _sparse_span(
        self, query: torch.Tensor, stored: torch.Tensor, asked: Asked, span: Span, kv: KvStorage
    ) -> list[torch.Tensor]:
        """Rows of a chunk: those that see all, then those that choose."""
        border = min(max(self.top - span.start, 0), len(query))
        done = []
        if border:
            done.append(self._span(query[:border], stored[:border], span, kv))
        if border < len(query):
            late, runs = slice(border, None), [*span.past, *span.own]
            rows = Rows(span.begin + border, span.start + border, runs)
            done.append(self._chosen(query[late], asked.rows(late), rows, kv))
        return done

    def _chosen(self, query: torch.Tensor, asked: Asked, rows: Rows, kv: KvStorage) -> torch.Tensor:
        """Values [rows, heads, value] of rows that attend to chosen tokens."""
        kept = kv.read(self.kv_layer, rows.runs)[0]
        chosen = self._choose(asked, rows, kept)
        inside = self._inside(query)  # [heads, rows, stored]
        step = max(1, GATHER_BYTES // (self.top * self.shape.stored * kept.element_size()))
        found = []
        for begin in range(0, len(query), step):
            some = slice(begin, begin + step)
            tokens = kept[chosen[some], : self.shape.stored]  # [rows, top, stored]
            # Rows take the place of KV heads: each has tokens of its own, for all of its heads.
            asking = inside[:, some].transpose(0, 1).reshape(-1, 1, self.shape.stored)
            found.append(attend_all(asking, tokens, tokens, self.scale).out.squeeze(1))
        by_row = torch.cat(found).view(len(query), self.heads, -1)
        return self._values(by_row.transpose(0, 1)).transpose(0, 1)

    def _choose(self, asked: Asked, rows: Rows, kept: torch.Tensor) -> torch.Tensor:
        if self.indexer is None:
            assert self.leader is not None, "a layer that follows has a leader"
            return self.leader.choices[rows.first]
        assert asked.query is not None
        assert asked.weights is not None
        keys = kept[:, self.shape.stored :].float()
        chosen = self.indexer.choose(asked.query, asked.weights, keys, rows.start)
        if self.followed:
            self.choices[rows.first] = chosen
        return chosen


def follow(layers: Sequence[SparseLatentAttention]) -> None:
    """Give every layer without an indexer the last one before it that has one."""
    leader = None
    for layer in layers:
        if layer.indexer is not None:
            leader = layer
        else:
            assert leader is not None, "the first layer has an indexer"
            layer.leader, leader.followed = leader, True
