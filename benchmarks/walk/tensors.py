"""The tensors of a checkpoint, drawn by name and seed on one device, layer by layer.

Each tensor is random at a realistic scale: nothing that takes time is zero. What is scripted:
the embedding holds the routing vector and the code word of the next id; routers read route, popularity and
their own noise; a few intermediate channels are the same in all experts of a layer and write the next
layer's noise, so the noise does not depend on which experts were chosen, and a near tie that two engines
decide differently stays where it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch

from benchmarks.walk.script import Dials, Script
from benchmarks.walk.shapes import Linear, Shape
from benchmarks.walk.spaces import FAINT, Spaces

SILU_SQUARE = 0.356  # E[silu(g)^2] for a standard normal g
GATE_SQUARE = 0.293  # E[sigmoid(g)^2]
WEIGHT_SQUARES = 0.17  # about: sum of the squares of a token's renormalised router weights
TEMPERATURE = 0.6  # of the router's logits, which are fitted in units of their own
WIN = 60.0  # logit of the scripted id; the best of 250,000 others stays under about half of it
Named = tuple[str, torch.Tensor]


class Draw:
    """Normal numbers by name: the same name, seed and kind of device give the same tensor."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self.device = device

    def normal(
        self, name: str, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """`dtype` [*shape] with mean 0."""
        drawn = torch.randn(*shape, generator=self._generator(name), device=self.device, dtype=dtype)
        return drawn.mul_(std)

    def uniform(self, name: str, low: float, high: float, *shape: int) -> torch.Tensor:
        """float32 [*shape]."""
        drawn = torch.rand(*shape, generator=self._generator(name), device=self.device)
        return drawn * (high - low) + low

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        return torch.Generator(self.device).manual_seed(int.from_bytes(digest[:6], "little"))


class Tensors:
    """All tensors of one checkpoint."""

    def __init__(self, shape: Shape, spaces: Spaces, script: Script, dials: Dials, draw: Draw) -> None:
        self._shape = shape
        self._spaces = spaces
        self._script = script
        self._dials = dials
        self._draw = draw
        # What may be written by layers: free dimensions at full size, protected ones next to nothing.
        self._rows = torch.full((shape.hidden, 1), FAINT, device=draw.device, dtype=torch.bfloat16)
        self._rows[spaces.free_from :] = 1

    def ends(self) -> Iterator[Named]:
        """Embedding, final norm, output projection."""
        shape, spaces, draw = self._shape, self._spaces, self._draw
        codes = draw.normal("codes", shape.vocab, spaces.pointer, dtype=torch.float32).sign()
        embedding = draw.normal("embedding", shape.vocab, shape.hidden)
        embedding[:, : spaces.route] = torch.from_numpy(self._script.vectors).to(draw.device)
        embedding[:, spaces.pointer_at] = codes[
            torch.from_numpy(self._script.successor).to(draw.device)
        ].bfloat16()
        embedding[:, spaces.constant_at] = 1
        embedding[:, spaces.noise_at(0).stop : spaces.free_from] = (
            0  # written by the layers; layer 0's is drawn
        )
        yield shape.prefix + "embed_tokens.weight", embedding
        yield shape.prefix + "norm.weight", self._norm()
        scale = WIN / spaces.pointer * spaces.rms(shape.layers)
        head = draw.normal("head", shape.vocab, shape.hidden, std=0.1 * scale)
        head[:, spaces.pointer_at] = (codes * scale).bfloat16()
        yield "lm_head.weight", head

    def layer(self, layer: int) -> Iterator[Named]:
        """All tensors of a layer; experts stacked, as `experts.gate_up_proj` and `experts.down_proj`."""
        stem = f"{self._shape.prefix}layers.{layer}."
        yield stem + "input_layernorm.weight", self._norm()
        if self._shape.is_full(layer):
            yield from self._attention(stem + "self_attn.")
        else:
            assert self._shape.linear is not None
            yield from self._delta(stem + "linear_attn.", self._shape.linear)
        yield stem + "post_attention_layernorm.weight", self._norm()
        yield stem + "mlp.gate.weight", self._router(stem, layer)
        if self._shape.shared_inner:
            yield from self._shared(stem + "mlp.")
        yield from self._experts(stem + "mlp.experts.", layer)

    def _norm(self, size: int | None = None) -> torch.Tensor:
        """A norm that changes nothing: 1, or 0 where the family adds 1 itself."""
        value = 0.0 if self._shape.family == "qwen3_5_moe" else 1.0
        return torch.full(
            (size or self._shape.hidden,), value, device=self._draw.device, dtype=torch.bfloat16
        )

    def _projection(self, name: str, rows: int) -> Named:
        """A matrix that reads the normed residual: outputs have variance 1."""
        hidden = self._shape.hidden
        return name, self._draw.normal(name, rows, hidden, std=hidden**-0.5)

    def _writer(self, name: str, inputs: int, square: float) -> Named:
        """A matrix that writes to the residual, for inputs of mean square `square`."""
        std = self._spaces.added() / math.sqrt(inputs * square)
        return name, self._draw.normal(name, self._shape.hidden, inputs, std=std).mul_(self._rows)

    def _attention(self, stem: str) -> Iterator[Named]:
        shape = self._shape
        gated = shape.linear is not None
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        yield self._projection(stem + "q_proj.weight", queries * (2 if gated else 1))
        yield self._projection(stem + "k_proj.weight", keys)
        yield self._projection(stem + "v_proj.weight", keys)
        yield self._writer(stem + "o_proj.weight", queries, GATE_SQUARE if gated else 1.0)
        yield stem + "q_norm.weight", self._norm(shape.head_dim)
        yield stem + "k_norm.weight", self._norm(shape.head_dim)

    def _delta(self, stem: str, linear: Linear) -> Iterator[Named]:
        """Decay and step size as Mamba 2 initialises them."""
        heads, draw = linear.value_heads, self._draw
        sizes = {"qkv": linear.channels, "z": linear.values, "b": heads, "a": heads}
        for part, rows in sizes.items():
            yield self._projection(f"{stem}in_proj_{part}.weight", rows)
        name = stem + "conv1d.weight"
        yield name, draw.normal(name, linear.channels, 1, linear.kernel, std=linear.kernel**-0.5)
        yield stem + "A_log", draw.uniform(stem + "A_log", 1, 16, heads).log().bfloat16()
        step = draw.uniform(stem + "dt_bias", math.log(1e-3), math.log(0.1), heads).exp()
        yield stem + "dt_bias", (step + torch.log(-torch.expm1(-step))).bfloat16()
        yield stem + "norm.weight", torch.ones(linear.value_dim, device=draw.device, dtype=torch.bfloat16)
        yield self._writer(stem + "out_proj.weight", linear.values, SILU_SQUARE)

    def _router(self, stem: str, layer: int) -> torch.Tensor:
        shape, spaces, dials, draw = self._shape, self._spaces, self._dials, self._draw
        scale = TEMPERATURE * spaces.rms(layer)
        router = draw.normal(stem + "router", shape.experts, shape.hidden, std=scale * FAINT / 2)
        parts = (
            (slice(0, spaces.route), dials.known / math.sqrt(spaces.route)),
            (slice(spaces.constant_at, spaces.constant_at + 1), dials.popularity),
            (spaces.noise_at(layer), dials.noise / math.sqrt(spaces.noise)),
        )
        for place, std in parts:
            width = place.stop - place.start
            router[:, place] = draw.normal(
                f"{stem}router/{place.start}", shape.experts, width, std=scale * std
            )
        return router

    def _shared(self, stem: str) -> Iterator[Named]:
        inner = self._shape.shared_inner
        yield self._projection(stem + "shared_expert.gate_proj.weight", inner)
        yield self._projection(stem + "shared_expert.up_proj.weight", inner)
        yield self._writer(stem + "shared_expert.down_proj.weight", inner, SILU_SQUARE * GATE_SQUARE)
        yield self._projection(stem + "shared_expert_gate.weight", 1)

    def _experts(self, stem: str, layer: int) -> Iterator[Named]:
        shape, spaces, draw = self._shape, self._spaces, self._draw
        experts, inner, hidden = shape.experts, shape.inner, shape.hidden
        gate_up = draw.normal(stem + "gate_up", experts, 2 * inner, hidden, std=hidden**-0.5)
        std = spaces.added() / math.sqrt(WEIGHT_SQUARES * SILU_SQUARE * inner)
        down = draw.normal(stem + "down", experts, hidden, inner, std=std).mul_(self._rows)
        if layer + 1 < shape.layers:
            # The common channels: read clean dimensions only, write the noise of the next layer.
            common = min(16, inner // 2)
            reads = torch.full((hidden,), FAINT * hidden**-0.5, device=draw.device)
            reads[: spaces.clean] = spaces.rms(layer) / math.sqrt(spaces.clean)
            for part, first in (("gate", 0), ("up", inner)):
                rows = draw.normal(f"{stem}common_{part}", common, hidden, dtype=torch.float32) * reads
                gate_up[:, first : first + common] = rows.bfloat16()
            writes = draw.normal(stem + "noise", spaces.noise, common, std=(common * SILU_SQUARE) ** -0.5)
            down[:, spaces.noise_at(layer + 1), :common] = writes
        yield stem + "gate_up_proj", gate_up
        yield stem + "down_proj", down
