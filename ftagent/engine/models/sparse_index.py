"""The indexer of DeepSeek-V3.2's sparse attention: which of the earlier tokens a row attends to.

Each token leaves a small key in the pages, behind its latent. A row scores all tokens up to itself by a few
heads of its own, score = sum over heads of weight * relu(query . key), and keeps the best, in float32. The
release turns queries and keys by a Hadamard matrix and rounds them to FP8, which changes products by
rounding alone; both are left out, as transformers does.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ftagent.engine.kernels.linear import project
from ftagent.engine.models.config import IndexShape, LatentShape, ModelConfig
from ftagent.engine.models.layers import Rope
from ftagent.engine.weights.source import Source

EPS = 1e-6  # of the key's LayerNorm
SCORE_BYTES = 128 * 2**20  # of the largest block of scores of single heads


class Indexer:
    """Keys, queries and choices of one layer."""

    def __init__(self, config: ModelConfig, latent: LatentShape, source: Source, prefix: str) -> None:
        shape = latent.indexer
        assert shape is not None, "a family with an indexer gives its shape"
        self.shape, wide = shape, torch.float32
        order = _order(shape, latent.rotary_dim)
        queries = source.dense(prefix + "wq_b.weight", shape.heads * shape.dim, latent.query_rank)
        self.query = queries.view(shape.heads, shape.dim, -1)[:, order].flatten(0, 1).contiguous()
        self.key = source.dense(prefix + "wk.weight", shape.dim, config.hidden)[order]
        self.norm = source.dense(prefix + "k_norm.weight", shape.dim, dtype=wide)[order]
        self.norm_bias = source.dense(prefix + "k_norm.bias", shape.dim, dtype=wide)[order]
        self.weights = source.dense(prefix + "weights_proj.weight", shape.heads, config.hidden, dtype=wide)

    def keys(
        self, x: torch.Tensor, decode: int, rope: Rope, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """float32 [rows, dim] of normed rows x [rows, hidden]."""
        flat = project(x, self.key, decode).float()
        keys = F.layer_norm(flat, (self.shape.dim,), self.norm, self.norm_bias, EPS).unsqueeze(1)
        rope.rotate(keys, *turn)
        return keys.squeeze(1)

    def queries(
        self,
        x: torch.Tensor,
        latent: torch.Tensor,
        decode: int,
        rope: Rope,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [rows, heads, dim] from the queries' latent [rows, rank], scaled, and the heads' weights
        [rows, heads].
        """
        query = project(latent, self.query, decode).float().view(len(x), self.shape.heads, -1)
        rope.rotate(query, *turn)
        weights = project(x.float(), self.weights, decode)
        return query * self.shape.dim**-0.5, weights * self.shape.heads**-0.5

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, start: int
    ) -> torch.Tensor:
        """The best `top` of the keys [tokens, dim] that each row may see: int64 [rows, top]. Row i is token
        `start` + i, and sees at least `top` tokens.
        """
        found = []
        for begin, end in self._blocks(len(query), len(keys)):
            heads = torch.matmul(query[begin:end].flatten(0, 1), keys.t()).relu_()
            scores = torch.bmm(weights[begin:end].unsqueeze(1), heads.view(end - begin, -1, len(keys)))
            scores = scores.squeeze(1)
            place = torch.arange(len(keys), device=keys.device)
            own = torch.arange(start + begin, start + end, device=keys.device)
            scores.masked_fill_(place > own.unsqueeze(1), float("-inf"))
            found.append(scores.topk(self.shape.top, dim=-1).indices)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _blocks(self, rows: int, tokens: int) -> Iterator[tuple[int, int]]:
        step = max(1, SCORE_BYTES // (4 * self.shape.heads * tokens))
        for begin in range(0, rows, step):
            yield begin, min(begin + step, rows)


def _order(shape: IndexShape, rotary: int) -> torch.Tensor:
    """Stored dimensions of a key in the order in which `Rope` turns them."""
    dims = torch.arange(shape.dim)
    if not shape.interleaved:
        return dims
    return torch.cat((dims[0:rotary:2], dims[1:rotary:2], dims[rotary:]))
