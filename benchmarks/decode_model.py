"""A decode step with random weights at the shape of a real model, for timing: no checkpoint is read.

A few layers' worth of dense weights stand for all layers in turn; every layer has KV pages, states and a
choice of experts of its own. Experts come out of one pool that exceeds a device's cache many times, all of
them resident. Knows no clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage
from ftagent.engine.context.recurrent import StatePool, StateShape
from ftagent.engine.device.decode import DecodeExperts, DecodeModel, DecodeStep
from ftagent.engine.device.dense import AttentionStep, DeltaStep, LayerStep, MoeStep, Norm
from ftagent.engine.kernels.delta_shape import DeltaShape
from ftagent.engine.kernels.gpu.attention import AttentionSpec
from ftagent.engine.kernels.gpu.device import describe
from ftagent.engine.kernels.gpu.expert_plan import StepTables, plan_experts
from ftagent.engine.kernels.gpu.route import RouteSpec
from ftagent.engine.models.config import Rotary
from ftagent.engine.models.layers import Rope

EPS = 1e-6
UNIQUE = 3  # layers' worth of dense weights of each kind


@dataclass(frozen=True, slots=True)
class StepShape:
    """`delta` None: attention in every layer; otherwise in the last of `period` layers, as in Qwen3.5."""

    layers: int
    hidden: int
    attention: AttentionSpec
    delta: DeltaShape | None
    experts: int
    per_token: int
    intermediate: int
    shared: int
    vocabulary: int
    pool: int  # experts in memory
    period: int = 4

    def attends(self, layer: int) -> bool:
        return self.delta is None or (layer + 1) % self.period == 0

    @property
    def router_rows(self) -> int:
        """Of the product behind the second norm: router, shared expert and its gate, next router."""
        return 2 * self.experts + (2 * self.shared + 1 if self.shared else 0)


SHAPES = {
    "30b": StepShape(
        24, 2048, AttentionSpec(32, 4, 128, 128, 128**-0.5, EPS, False), None, 128, 8, 768, 0, 151_936, 256
    ),
    "35b": StepShape(
        24, 2048, AttentionSpec(16, 2, 256, 64, 256**-0.5, EPS, True),
        DeltaShape(16, 32, 128, 128, 4, EPS), 256, 8, 512, 512, 151_936, 384,
    ),
    "tiny": StepShape(
        2, 64, AttentionSpec(4, 2, 16, 8, 0.25, EPS, True), DeltaShape(1, 2, 16, 8, 4, EPS),
        8, 2, 8, 16, 70, 12, period=2,
    ),
}  # fmt: skip


class Maker:
    """Random tensors whose products neither vanish nor explode."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device

    def weight(self, rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, dtype=self.dtype, device=self.device)
        return values.mul_(columns**-0.5)

    def norm(self, size: int) -> Norm:
        return Norm(torch.rand(size, device=self.device) + 0.5, EPS)

    def attention(self, shape: StepShape, layer: int) -> AttentionStep:
        spec = shape.attention
        into, out = (
            self.weight(spec.width, shape.hidden),
            self.weight(shape.hidden, spec.heads * spec.head_dim),
        )
        norms = torch.rand(spec.heads + spec.kv_heads, spec.head_dim, device=self.device) + 0.5
        return AttentionStep(self.norm(shape.hidden), into, out, norms, spec, layer)

    def delta(self, shape: StepShape, spec: DeltaShape, layer: int) -> DeltaStep:
        return DeltaStep(
            norm=self.norm(shape.hidden),
            into=self.weight(spec.width, shape.hidden),
            out=self.weight(shape.hidden, spec.values),
            taps=torch.randn(spec.kernel, spec.channels, device=self.device),
            rate=-torch.rand(spec.value_heads, device=self.device),
            bias=torch.randn(spec.value_heads, device=self.device),
            gate_norm=self.norm(spec.value_dim),
            spec=spec,
            state_layer=layer,
        )

    def moe(self, shape: StepShape) -> MoeStep:
        down = self.weight(shape.hidden, shape.shared) if shape.shared else None
        spec = RouteSpec(shape.experts, shape.per_token, True, shape.router_rows - shape.experts)
        return MoeStep(self.norm(shape.hidden), self.weight(shape.router_rows, shape.hidden), down, spec, 0)


def make_layers(shape: StepShape, make: Maker) -> tuple[LayerStep, ...]:
    """Layer views over UNIQUE sets of weights of each kind."""
    count = min(UNIQUE, shape.layers)
    attention = [make.attention(shape, 0) for _ in range(count)]
    delta = [] if shape.delta is None else [make.delta(shape, shape.delta, 0) for _ in range(count)]
    feeds = [make.moe(shape) for _ in range(count)]
    layers, attended = [], 0
    for layer in range(shape.layers):
        feed = feeds[layer % count]._replace(layer=layer)
        if shape.attends(layer):
            layers.append(LayerStep(attention[attended % count]._replace(kv_layer=attended), feed))
            attended += 1
        else:
            state = layer - attended
            layers.append(LayerStep(delta[state % count]._replace(state_layer=state), feed))
    return tuple(layers)


def make_model(shape: StepShape, context: int, batch: int, make: Maker) -> DecodeModel:
    """A model with room for `batch` rows of `context` tokens and one more."""
    device, dtype = make.device, make.dtype
    spec, delta = shape.attention, shape.delta
    attended = sum(shape.attends(layer) for layer in range(shape.layers))
    pages = batch * pages_of(context)
    kv = KvStorage(KvShape(attended, 2 * spec.kv_heads, spec.head_dim), pages, dtype, device)
    for layer in range(attended):
        kv.layer(layer).normal_()
    states = StateShape()
    if delta is not None:
        states = StateShape(
            shape.layers - attended, delta.kernel - 1, delta.channels,
            delta.value_heads, delta.key_dim, delta.value_dim,
        )  # fmt: skip
    return DecodeModel(
        embedding=make.weight(shape.vocabulary, shape.hidden),
        layers=make_layers(shape, make),
        norm=make.norm(shape.hidden),
        head=make.weight(shape.vocabulary, shape.hidden),
        rope=Rope(Rotary(spec.rotary, 10_000.0, None), context + PAGE_TOKENS, device),
        kv=kv,
        states=StatePool(batch, states, device),
        experts=make_experts(shape, batch, make),
    )


def make_experts(shape: StepShape, batch: int, make: Maker) -> DecodeExperts:
    """Tables over one pool: a layer's experts lie in slots drawn without replacement."""
    plan = plan_experts(
        shape.hidden, shape.intermediate, shape.per_token, make.dtype.itemsize, describe(make.device)
    )
    rows = shape.pool * shape.intermediate * 3
    slots = make.weight(rows, shape.hidden).view(shape.pool, shape.intermediate, 3, shape.hidden)
    slot_ptr = torch.tensor([slot.data_ptr() for slot in slots], dtype=torch.int64, device=make.device)
    drawn = [torch.randperm(shape.pool)[: shape.experts] for _ in range(shape.layers)]
    slot_of = torch.stack(drawn).to(device=make.device, dtype=torch.int32)
    tables = StepTables.empty(slot_of, slot_ptr, batch * shape.per_token)
    return _Kept(tables, plan, None, shape.per_token, slots=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(DecodeExperts):
    """With the memory that its table of addresses points into."""

    slots: torch.Tensor


def pages_of(context: int) -> int:
    """Of a row whose new token comes behind `context` others."""
    return context // PAGE_TOKENS + 1


def make_step(model: DecodeModel, context: int, batch: int, capacity: int = 0) -> DecodeStep:
    """A step whose scratch holds what a whole step leaves, with its inputs written and no graph yet.

    `capacity`, in tokens, is what the step could serve if it is more than `context`: attention is cut by it.
    """
    pages = max(pages_of(context), capacity // PAGE_TOKENS)
    step = DecodeStep(model, batch, pages, model.embedding.device)
    write_inputs(step, context, batch)
    step.launch()
    if step.outputs.logits.is_cuda:
        torch.cuda.synchronize()  # the inputs have been read and may be written anew
    return step


def write_inputs(step: DecodeStep, context: int, batch: int) -> None:
    """All rows live, each with pages of its own."""
    pages = pages_of(context)
    owned = [range(row * pages, (row + 1) * pages) for row in range(batch)]
    step.inputs.write([Chunk([row], context, owned[row], row, True) for row in range(batch)], 1)


def step_bytes(shape: StepShape, context: int, itemsize: int) -> int:
    """What a step of one row must read, and write of states."""
    spec, delta = shape.attention, shape.delta
    expert = 3 * shape.hidden * shape.intermediate * itemsize
    feed = shape.per_token * expert + (shape.router_rows + shape.shared) * shape.hidden * itemsize
    attend = (spec.width + spec.heads * spec.head_dim) * shape.hidden * itemsize
    attend += 2 * spec.kv_heads * context * spec.head_dim * itemsize
    recur = 0
    if delta is not None:
        recur = (delta.width + delta.values) * shape.hidden * itemsize
        recur += 2 * 4 * (delta.value_heads * delta.key_dim * delta.value_dim + delta.kernel * delta.channels)
    mixers = sum(attend if shape.attends(layer) else recur for layer in range(shape.layers))
    return mixers + shape.layers * feed + shape.vocabulary * shape.hidden * itemsize
