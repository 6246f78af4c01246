"""The decoder that all families share: embedding, blocks of mixer and MLP, final norm, output projection.

A family differs only in its ModelConfig. Knows pools and layers, no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ftagent.engine.context.pages import KvShape, KvStorage
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.context.windows import WindowShape
from ftagent.engine.experts.bank import ExpertShape
from ftagent.engine.experts.routed import RoutedExperts
from ftagent.engine.kernels.linear import vector_products
from ftagent.engine.models.batch import Batch, make_batch
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.gated_delta_net import GatedDeltaNet
from ftagent.engine.models.latent_attention import LatentAttention
from ftagent.engine.models.layers import Attention, Mlp, Moe, RmsNorm, Rope, WindowAttention, norm_weight
from ftagent.engine.models.sigmoid_moe import SigmoidMoe
from ftagent.engine.models.sparse_attention import SparseLatentAttention, follow
from ftagent.engine.weights.source import Source

if TYPE_CHECKING:
    from ftagent.engine.chunk import Chunk


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: norm, mixer, add; norm, MLP, add."""

    mixer_norm: RmsNorm
    mixer: Attention | WindowAttention | LatentAttention | GatedDeltaNet
    mlp_norm: RmsNorm
    mlp: Mlp | Moe | SigmoidMoe


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything but the routed experts."""

    embedding: torch.Tensor  # [vocab, hidden]
    blocks: tuple[Block, ...]
    norm: RmsNorm
    head: torch.Tensor  # [vocab, hidden]; the embedding itself when tied


@dataclass(frozen=True, slots=True)
class Pools:
    """The memory a decoder works on."""

    kv: KvStorage
    states: StatePool
    experts: RoutedExperts | None


def kv_shape(config: ModelConfig) -> KvShape:
    """What a token leaves in the KV pages of this model: keys and values, or one latent, of every layer that
    sees all of them.
    """
    if config.latent is not None:
        return KvShape(config.layers.count("latent_attention"), 1, config.latent.kept)
    return KvShape(config.layers.count("full_attention"), 2 * config.kv_heads, config.head_dim)


def window_shape(config: ModelConfig) -> WindowShape:
    """What a slot keeps of the last tokens of this model: keys and values of every window layer."""
    layers = config.layers.count("sliding_attention")
    return WindowShape(layers, 2 * config.kv_heads, config.head_dim, config.window if layers else 0)


def expert_shape(config: ModelConfig) -> ExpertShape:
    """Sizes of a routed expert."""
    return ExpertShape(config.hidden, config.expert_intermediate, config.biased_moe)


def make_rope(config: ModelConfig, context: int, device: torch.device) -> Rope:
    """The rotary embedding of the model's attention layers, for `context` positions."""
    return Rope(config.rotary, context, device)


def build_weights(config: ModelConfig, source: Source) -> Weights:
    """Take all dense tensors of the model from `source`."""
    embedding = source.dense("embed_tokens.weight", config.vocab, config.hidden)
    blocks = tuple(_block(config, source, layer) for layer in range(len(config.layers)))
    follow([block.mixer for block in blocks if isinstance(block.mixer, SparseLatentAttention)])
    return Weights(
        embedding=embedding,
        blocks=blocks,
        norm=_norm(config, source, "norm.weight"),
        head=embedding if config.tied else source.head(config.vocab, config.hidden),
    )


def _norm(config: ModelConfig, source: Source, name: str) -> RmsNorm:
    return RmsNorm(norm_weight(source, name, config.hidden, config.centred_norm), config.eps)


def _block(config: ModelConfig, source: Source, layer: int) -> Block:
    prefix = f"layers.{layer}."
    kind = config.layers[layer]
    ordinal = config.layers[:layer].count(kind)  # index of the layer among its kind: its place in the pool
    mixer: Attention | WindowAttention | LatentAttention | GatedDeltaNet
    if kind == "linear_attention":
        assert config.linear is not None, "a family with linear layers gives their shape"
        mixer = GatedDeltaNet(config.linear, config, source, prefix + "linear_attn.", ordinal)
    elif kind == "sliding_attention":
        mixer = WindowAttention(config, source, prefix + "self_attn.", ordinal)
    elif kind == "latent_attention":
        assert config.latent is not None, "a family with latent attention gives its shape"
        indexer = config.latent.indexer
        if indexer is None:
            mixer = LatentAttention(config, source, prefix + "self_attn.", ordinal)
        else:
            follows = layer in indexer.following
            mixer = SparseLatentAttention(config, source, prefix + "self_attn.", ordinal, follows=follows)
    else:
        mixer = Attention(config, source, prefix + "self_attn.", ordinal)
    mlp: Mlp | Moe | SigmoidMoe
    if layer in config.dense_layers:
        mlp = Mlp(source, prefix + "mlp.", config.hidden, config.dense_intermediate)
    else:
        kind_of_moe = Moe if config.sigmoid is None else SigmoidMoe
        mlp = kind_of_moe(config, source, prefix + config.moe_names.block, config.moe_layers.index(layer))
    return Block(
        mixer_norm=_norm(config, source, prefix + "input_layernorm.weight"),
        mixer=mixer,
        mlp_norm=_norm(config, source, prefix + "post_attention_layernorm.weight"),
        mlp=mlp,
    )


class Decoder:
    """Weights and pools together; `forward` runs one step."""

    def __init__(self, weights: Weights, rope: Rope, pools: Pools) -> None:
        self.weights = weights
        self.rope = rope
        self.pools = pools
        self._device = weights.embedding.device
        self.fused = self._device.type == "cuda"  # steps are prefill, with the kernels of `kernels.gpu`

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits float32 [wanted chunks, vocab]; advances KV pages and state slots."""
        batch = make_batch(chunks, self._device, self.fused)
        if self.fused:
            from ftagent.engine.models.prefill import prefill  # Triton, which a machine may lack

            x = prefill(self.weights, self.rope, self.pools, batch)
        else:
            x = self._layers(batch)
        if not len(batch.wanted):
            return torch.empty(0, self.weights.head.shape[0])
        last = self.weights.norm(x[batch.wanted])
        return vector_products(last, self.weights.head).float()

    def _layers(self, batch: Batch) -> torch.Tensor:
        turn = self.rope.at(batch.positions)
        x = F.embedding(batch.tokens, self.weights.embedding)
        for block in self.weights.blocks:
            x = x + self._mix(block, block.mixer_norm(x), batch, turn)
            x = x + self._feed(block, block.mlp_norm(x), batch)
        return x

    def copy_page(self, source: int, target: int) -> None:
        """See `Runner.copy_page`."""
        self.pools.kv.copy_page(source, target)

    def _mix(
        self, block: Block, x: torch.Tensor, batch: Batch, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        if isinstance(block.mixer, GatedDeltaNet):
            return block.mixer(x, batch, self.pools.states)
        if isinstance(block.mixer, WindowAttention):
            return block.mixer(x, batch, self.pools.states.windows, self.rope, turn)
        return block.mixer(x, batch, self.pools.kv, self.rope, turn)

    def _feed(self, block: Block, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        if isinstance(block.mlp, Moe | SigmoidMoe):
            assert self.pools.experts is not None, "a model with MoE layers has an expert pool"
            return block.mlp(x, batch, self.pools.experts)
        return block.mlp(x, batch)
