"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): pages hold one compressed vector a token.

What is stored of a token is its latent, normed, and a rotated key that all heads share. Keys and values of a
head are products of the latent. Two forms give the same result: `absorbed` takes the query to the latent and
attends there, one KV head for all; `expanded` makes keys and values again. The first costs more for each pair
of query and token, the second for each token, so decode takes the first and long chunks the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ftagent.engine.context.pages import KvStorage, split_runs
from ftagent.engine.kernels.attention import Partial, attend_all, attend_causal, merge
from ftagent.engine.kernels.linear import matrix_product, project
from ftagent.engine.models.batch import SEGMENT, Batch, Runs, Span
from ftagent.engine.models.config import LatentShape, ModelConfig
from ftagent.engine.models.layers import RmsNorm, Rope, norm_weight
from ftagent.engine.weights.source import Source

EPS = 1e-6  # of the norms of latents, whatever the other norms of a model have


def expand_from(shape: LatentShape) -> int:
    """Rows of a chunk from which its past is better expanded: multiplications of a head for one token, which
    are `rank` * (plain + value) once, against the difference of both forms in each row.
    """
    wide = max(shape.head_dim, shape.value_dim)
    saved = 2 * (shape.stored - wide)
    return -(-shape.rank * (shape.plain_dim + shape.value_dim) // saved) if saved > 0 else 2**31


class LatentAttention:
    """One layer; `kv_layer` is its index among those that have pages. x is [rows, hidden]."""

    def __init__(self, config: ModelConfig, source: Source, prefix: str, kv_layer: int) -> None:
        shape = config.latent
        assert shape is not None, "a family with latent attention gives its shape"
        self.shape, self.heads, self.kv_layer = shape, config.heads, kv_layer
        self.scale = config.score_scale * shape.head_dim**-0.5
        self.expand_from = expand_from(shape)
        heads, hidden = config.heads, config.hidden
        queries = heads * shape.head_dim
        self.query = self.query_norm = None
        if shape.query_rank:
            first = (prefix + "q_a_proj.weight", shape.query_rank)
            order = torch.arange(shape.query_rank)
            self.query_norm = RmsNorm(
                norm_weight(source, prefix + "q_a_layernorm.weight", shape.query_rank, centred=False), EPS
            )
            parts = [(prefix + "q_b_proj.weight", queries)]
            self.query = source.joined(parts, shape.query_rank, _halves(shape, heads, shape.plain_dim))
        else:
            first = (prefix + "q_proj.weight", queries)
            order = _halves(shape, heads, shape.plain_dim)
        latent = (prefix + "kv_a_proj_with_mqa.weight", shape.stored)
        order = torch.cat((order, first[1] + _halves(shape, 1, shape.rank)))
        self.into = source.joined([first, latent], hidden, order)  # query or its latent | latent | rotary key
        self.latent_norm = RmsNorm(
            norm_weight(source, prefix + "kv_a_layernorm.weight", shape.rank, centred=False), EPS
        )
        up = heads * (shape.plain_dim + shape.value_dim)
        self.up = source.dense(prefix + "kv_b_proj.weight", up, shape.rank)
        by_head = self.up.view(heads, -1, shape.rank)
        self.up_keys, self.up_values = by_head[:, : shape.plain_dim], by_head[:, shape.plain_dim :]
        self.out = source.dense(prefix + "o_proj.weight", hidden, heads * shape.value_dim)

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        kv: KvStorage,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        query, stored, _ = self._rows(x, batch.decode, rope, turn)
        kv.write(self.kv_layer, batch.places, stored.unsqueeze(0))
        done = [
            self._values(self._absorbed(query[row : row + 1], segments, kv).out).transpose(0, 1)
            for row, segments in enumerate(batch.decode_pasts)
        ]
        done += [self._span(query[span.rows], stored[span.rows], span, kv) for span in batch.spans]
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
        """The layer on the rows x of one span alone, whose places in the pages are `places`."""
        query, stored, _ = self._rows(x, 0, rope, turn)
        kv.write(self.kv_layer, places, stored.unsqueeze(0))
        return self._out([self._span(query, stored, span, kv)], x, 0)

    def _rows(
        self, x: torch.Tensor, decode: int, rope: Rope, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of rows x: queries [rows, heads, d], what is stored [rows, stored], and the queries' normed latent,
        where they have one.
        """
        shape, rows = self.shape, len(x)
        query, latent, rotary_key = torch.split_with_sizes(
            project(x, self.into, decode),
            [len(self.into) - shape.stored, shape.rank, shape.rotary_dim],
            dim=-1,
        )
        compressed = query
        if self.query is not None and self.query_norm is not None:
            compressed = self.query_norm(query)
            query = project(compressed, self.query, decode)
        query = query.reshape(rows, self.heads, shape.head_dim)
        turned = torch.cat((query[..., shape.plain_dim :], rotary_key.unsqueeze(1)), dim=1).float()
        rope.rotate(turned, *turn)
        turned = turned.to(x.dtype)
        query = torch.cat((query[..., : shape.plain_dim], turned[:, : self.heads]), dim=-1)
        return query, torch.cat((self.latent_norm(latent), turned[:, self.heads]), dim=-1), compressed

    def _out(self, done: Sequence[torch.Tensor], x: torch.Tensor, decode: int) -> torch.Tensor:
        """The output projection of what rows [rows, heads, value] found, part by part."""
        out = done[0] if len(done) == 1 else torch.cat(tuple(done))
        return project(out.reshape(len(x), -1).to(x.dtype), self.out, decode)  # merging leaves float32

    def _span(self, query: torch.Tensor, stored: torch.Tensor, span: Span, kv: KvStorage) -> torch.Tensor:
        """query [rows, heads, d] over the rows themselves, expanded, and over their past."""
        by_head = self._padded(query.transpose(0, 1))
        found = attend_causal(by_head, *self._expanded(stored), self.scale)
        pieces = list(split_runs(span.past, SEGMENT))
        if len(query) >= self.expand_from:
            for runs in pieces:
                expanded = self._expanded(self._read(runs, kv))
                found = merge(found, attend_all(by_head, *expanded, self.scale))
        found = Partial(found.out[..., : self.shape.value_dim], found.lse)
        if len(query) < self.expand_from and pieces:
            past = self._absorbed(query, pieces, kv)
            found = merge(found, Partial(self._values(past.out), past.lse))
        return found.out.transpose(0, 1)

    def _absorbed(self, query: torch.Tensor, pieces: Sequence[Runs], kv: KvStorage) -> Partial:
        """Attention of query [rows, heads, d] in the latent's space: out [heads, rows, stored]."""
        inside = self._inside(query)
        whole: Partial | None = None
        for runs in pieces:
            stored = self._read(runs, kv).unsqueeze(0)
            part = attend_all(inside, stored, stored, self.scale)
            whole = part if whole is None else merge(whole, part)
        assert whole is not None, "there is something to attend to"
        return whole

    def _inside(self, query: torch.Tensor) -> torch.Tensor:
        """Queries [rows, heads, d] in the latent's space: [heads, rows, stored]."""
        by_head = query.transpose(0, 1)
        plain, turned = by_head[..., : self.shape.plain_dim], by_head[..., self.shape.plain_dim :]
        return torch.cat((torch.bmm(plain, self.up_keys), turned), dim=-1)

    def _read(self, runs: Runs, kv: KvStorage) -> torch.Tensor:
        """What attention reads of tokens [tokens, stored]."""
        return kv.read(self.kv_layer, runs)[0, :, : self.shape.stored]

    def _values(self, found: torch.Tensor) -> torch.Tensor:
        """Values [heads, rows, value] of what attention found in the latent's space [heads, rows, stored]."""
        latents = found[..., : self.shape.rank].to(self.up.dtype)
        # The other way around torch's CPU product of 16-bit floats takes nine times as long.
        return torch.bmm(self.up_values, latents.transpose(1, 2)).transpose(1, 2)

    def _expanded(self, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [heads, tokens, wide] of what is stored of tokens [tokens, stored], padded with
        zeros to the same width.
        """
        shape, tokens = self.shape, len(stored)
        made = matrix_product(stored[:, : shape.rank], self.up).view(tokens, self.heads, -1)
        shared = stored[:, shape.rank :].unsqueeze(1).expand(-1, self.heads, -1)
        keys = torch.cat((made[..., : shape.plain_dim], shared), dim=-1).transpose(0, 1)
        return self._padded(keys), self._padded(made[..., shape.plain_dim :].transpose(0, 1))

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, max(self.shape.head_dim, self.shape.value_dim) - x.shape[-1]))


def _halves(shape: LatentShape, heads: int, before: int) -> torch.Tensor:
    """Stored rows of heads of [before | rotary] in the order in which `Rope` turns them: it pairs dimension i
    with i + half, and interleaved weights pair 2 i with 2 i + 1.
    """
    rows = torch.arange(heads * (before + shape.rotary_dim)).view(heads, -1)
    if not shape.interleaved:
        return rows.flatten()
    turned = rows[:, before:]
    return torch.cat((rows[:, :before], turned[:, 0::2], turned[:, 1::2]), dim=1).flatten()
