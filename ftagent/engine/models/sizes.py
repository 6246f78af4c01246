"""How many weights a model has, and how wide its rows get. Pure integers on a ModelConfig."""

from __future__ import annotations

from ftagent.engine.models.config import LatentShape, ModelConfig


def parameters(config: ModelConfig, active: bool = False) -> int:
    """Weights of the model's matrices; with `active`, those that one token uses (the embedding table left
    out).
    """
    mixers = sum(_mixer(config, kind) for kind in config.layers) + _indexers(config)
    dense = len(config.dense_layers) * 3 * config.hidden * config.dense_intermediate
    tables = 1 if active or config.tied else 2
    mlps = len(config.moe_layers) * _moe(config, active) + dense
    return mixers + mlps + tables * config.vocab * config.hidden


def widest(config: ModelConfig) -> int:
    """Values of the widest row between two matrices of a layer."""
    if config.latent is not None:
        heads = config.heads * max(config.latent.head_dim, config.latent.plain_dim + config.latent.value_dim)
        return max(heads, 2 * config.dense_intermediate, config.hidden)
    heads = config.heads * (2 if config.gated_attention else 1) + 2 * config.kv_heads
    linear = config.linear.channels + config.linear.values if config.linear else 0
    return max(heads * config.head_dim, linear, 2 * config.dense_intermediate, config.hidden)


def _mixer(config: ModelConfig, kind: str) -> int:
    if kind == "linear_attention":
        linear = config.linear
        assert linear is not None, "a family with linear layers gives their shape"
        return config.hidden * (linear.channels + 2 * (linear.values + linear.value_heads))
    if config.latent is not None:
        return _latent(config, config.latent)
    queries = config.heads * (3 if config.gated_attention else 2)
    return config.hidden * config.head_dim * (queries + 2 * config.kv_heads)


def _latent(config: ModelConfig, shape: LatentShape) -> int:
    queries = config.heads * shape.head_dim
    query = (config.hidden + queries) * shape.query_rank if shape.query_rank else config.hidden * queries
    up = config.heads * (shape.plain_dim + shape.value_dim) * shape.rank
    return query + config.hidden * (shape.stored + config.heads * shape.value_dim) + up


def _indexers(config: ModelConfig) -> int:
    index = config.latent.indexer if config.latent else None
    if config.latent is None or index is None:
        return 0
    one = index.heads * index.dim * config.latent.query_rank + config.hidden * (index.dim + index.heads)
    return (len(config.layers) - len(index.following)) * one


def _moe(config: ModelConfig, active: bool) -> int:
    used = config.experts_per_token if active else config.experts
    per_channel = 3 * used * config.expert_intermediate + config.experts
    if config.shared_intermediate:
        per_channel += 3 * config.shared_intermediate + (config.sigmoid is None)
    return config.hidden * per_channel
