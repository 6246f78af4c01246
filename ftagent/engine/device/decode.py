"""A decode step as a chain of kernels over fixed memory, captured once into a CUDA graph and replayed.

Nothing in it waits for the host but layers that miss an expert, and those only for the conductor, which is no
Python. On the CPU twin (Triton's interpreter) the same chain runs kernel by kernel. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ftagent.engine.context.pages import PAGE_TOKENS, KvStorage
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.device.buffers import Scratch, StepInputs, StepOutputs
from ftagent.engine.device.dense import AttentionStep, DeltaStep, LayerStep, MlpStep, MoeStep, Norm
from ftagent.engine.kernels.experts import SILU
from ftagent.engine.kernels.gpu.attention import AttentionSpec, decode_attention, split_count
from ftagent.engine.kernels.gpu.combine import DownBiases, SharedExpert, combine_step
from ftagent.engine.kernels.gpu.delta import delta_decode
from ftagent.engine.kernels.gpu.expert_plan import ExpertPlan, ExpertStep, HostArrays, StepTables
from ftagent.engine.kernels.gpu.experts import experts_step
from ftagent.engine.kernels.gpu.launch import processors
from ftagent.engine.kernels.gpu.linear import embed, linear_add, norm_linear
from ftagent.engine.kernels.gpu.route import route
from ftagent.engine.kernels.gpu.sample import candidates
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.models.layers import Rope


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """What every batch size shares. `experts` is None for a model without MoE layers."""

    embedding: torch.Tensor  # T [V, H]
    layers: tuple[LayerStep, ...]
    norm: Norm
    head: torch.Tensor  # T [V, H]
    rope: Rope
    kv: KvStorage
    states: StatePool
    experts: DecodeExperts | None


@dataclass(frozen=True, slots=True)
class DecodeExperts:
    """Tables and plan of the expert kernels; `host` is None when every expert is resident. `biases` T [L, E,
    2I + H] are those of `ExpertTables`.
    """

    tables: StepTables
    plan: ExpertPlan
    host: HostArrays | None
    per_token: int
    biases: torch.Tensor | None = None
    how: Swiglu = SILU


class _ExpertScratch:
    """Routing and partial sums of one layer."""

    def __init__(self, batch: int, experts: DecodeExperts, inputs: StepInputs, device: torch.device) -> None:
        shape = (batch, experts.per_token)
        self.ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self.seen = torch.zeros(shape, dtype=torch.int32, device=device)
        self.guess = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.weights = torch.zeros(shape, dtype=torch.float32, device=device)
        pairs = batch * experts.per_token
        size = (pairs, experts.plan.chunks, experts.plan.hidden)
        partial = torch.zeros(size, dtype=torch.float32, device=device)
        host_part = torch.zeros(pairs, experts.plan.hidden, dtype=torch.float32, device=device)
        self.step = ExpertStep(
            experts.plan, experts.tables, experts.host, inputs.epoch, inputs.rows, partial, host_part
        )


class DecodeStep:
    """The chain for up to `batch` rows."""

    def __init__(self, model: DecodeModel, batch: int, pages: int, device: torch.device) -> None:
        self.batch = batch
        self._model = model
        self.inputs = StepInputs(batch, pages, device)
        hidden, dtype = model.embedding.shape[1], model.embedding.dtype
        self._scratch = Scratch(batch, hidden, dtype, _widest(model), device)
        logits = torch.zeros(batch, len(model.head), dtype=torch.float32, device=device)
        self._experts = (
            None if model.experts is None else _ExpertScratch(batch, model.experts, self.inputs, device)
        )
        fail = torch.zeros(1, dtype=torch.int32, device=device)
        self.outputs = StepOutputs(logits, fail if model.experts is None else model.experts.tables.fail)
        self._splits = _split_scratch(model, batch, pages, device)
        self._rings = _Rings(model, batch, device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Compile the kernels and capture the graph; no row is live meanwhile."""
        self.inputs.write([], 0)
        self._chain()
        if not self.outputs.logits.is_cuda:
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Banks are being registered by another thread meanwhile, which a global capture would refuse.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._chain()
        self._graph = graph

    def launch(self) -> None:
        """Run the step whose inputs have been written. Returns before the device is done."""
        if self._graph is None:
            self._chain()
        else:
            self._graph.replay()

    def _chain(self) -> None:
        model, inputs, x = self._model, self.inputs, self._scratch.x
        inputs.upload()
        self._rings.find(inputs.slots)
        embed(inputs.tokens, model.embedding, x, inputs.rows)
        for layer in model.layers:
            if isinstance(layer.mixer, AttentionStep):
                self._attend(layer.mixer)
            else:
                self._recur(layer.mixer)
            if isinstance(layer.feed, MoeStep):
                self._route_and_feed(layer.feed)
            else:
                self._feed(layer.feed)
        outputs = self.outputs
        norm_linear(x, model.norm.weight, model.norm.eps, model.head, outputs.logits, None, inputs.rows)
        candidates(outputs.logits, outputs.values, outputs.ids, inputs.rows)
        outputs.download()

    def _into(self, norm: Norm, weight: torch.Tensor, normed: torch.Tensor | None = None) -> torch.Tensor:
        flat = self._scratch.flat(len(weight))
        norm_linear(self._scratch.x, norm.weight, norm.eps, weight, flat, normed, self.inputs.rows)
        return flat

    def _attend(self, step: AttentionStep) -> None:
        flat = self._into(step.norm, step.into)
        if step.into_bias is not None:
            flat[:, : len(step.into_bias)].add_(step.into_bias)
        mixed = self._scratch.mixed(step.out.shape[1])
        rope, inputs, splits = self._model.rope, self.inputs, self._splits[step.spec]
        table, stored = inputs.page_table, self._model.kv.layer
        if step.spec.window:
            table, stored = self._rings.pages, self._model.states.windows.layer
        decode_attention(
            flat, step.spec, step.norms, rope.cos, rope.sin, inputs.positions, table,
            stored(step.kv_layer), splits.partial, splits.lse, mixed, inputs.rows, step.sinks,
        )  # fmt: skip
        linear_add(mixed, step.out, self._scratch.x, inputs.rows)
        if step.out_bias is not None:
            self._scratch.x.add_(step.out_bias)

    def _recur(self, step: DeltaStep) -> None:
        flat = self._into(step.norm, step.into)
        mixed = self._scratch.mixed(step.out.shape[1])
        states, inputs = self._model.states, self.inputs
        delta_decode(
            flat, step.spec, step.taps, step.rate, step.bias, step.gate_norm.weight,
            states.conv[step.state_layer], states.recurrent[step.state_layer], inputs.slots,
            self._scratch.channels(step.taps.shape[1]), mixed, inputs.rows,
        )  # fmt: skip
        linear_add(mixed, step.out, self._scratch.x, inputs.rows)

    def _feed(self, step: MlpStep) -> None:
        gate, up = self._into(step.norm, step.gate_up).chunk(2, dim=-1)
        mixed = self._scratch.mixed(step.down.shape[1])
        mixed.copy_(F.silu(gate) * up)
        linear_add(mixed, step.down, self._scratch.x, self.inputs.rows)

    def _route_and_feed(self, step: MoeStep) -> None:
        experts, own, inputs = self._model.experts, self._experts, self.inputs
        assert experts is not None, "a model with MoE layers has experts"
        assert own is not None
        normed, x = self._scratch.normed, self._scratch.x
        flat = self._into(step.norm, step.into, normed)
        if step.bias is not None:
            flat[:, : step.spec.experts].add_(step.bias)
        guess = own.guess if experts.host is not None and step.spec.guess_at >= 0 else None
        slot_of = experts.tables.slot_of[step.layer]
        route(flat, step.spec, slot_of, own.ids, own.weights, own.seen, guess, inputs.rows)
        biases = None if experts.biases is None else experts.biases[step.layer]
        experts_step(own.step, step.layer, normed, own.ids, own.seen, guess, biases, experts.how)
        shared = None
        if step.shared_down is not None:
            shared = SharedExpert(flat, step.spec.experts, step.shared_down)
        down = None if biases is None else DownBiases(biases, own.ids)
        combine_step(own.step, step.layer, own.weights, own.seen, shared, x, down)


class _SplitScratch(NamedTuple):
    """What the splits of attention leave: partial float32 [B, heads, S, d], lse float32 [B, heads, S]."""

    partial: torch.Tensor
    lse: torch.Tensor


def _split_scratch(
    model: DecodeModel, batch: int, pages: int, device: torch.device
) -> dict[AttentionSpec, _SplitScratch]:
    """What the splits leave, for each shape that attention layers have."""
    found: dict[AttentionSpec, _SplitScratch] = {}
    for spec in {layer.mixer.spec for layer in model.layers if isinstance(layer.mixer, AttentionStep)}:
        capacity = min(spec.window or pages * PAGE_TOKENS, pages * PAGE_TOKENS)
        splits = split_count(capacity, spec.kv_heads, processors(device))
        shape = (batch, spec.heads, splits)
        partial, lse = torch.zeros(*shape, spec.head_dim, device=device), torch.zeros(*shape, device=device)
        found[spec] = _SplitScratch(partial, lse)
    return found


class _Rings:
    """Where the rings of the rows' slots are, as pages: int32 [B, window / PAGE_TOKENS], found anew in each
    step.
    """

    def __init__(self, model: DecodeModel, batch: int, device: torch.device) -> None:
        shape = model.states.windows.shape
        self._each = shape.window // PAGE_TOKENS if shape.layers else 0
        self._range = torch.arange(self._each, dtype=torch.int32, device=device)
        self.pages = torch.zeros(batch, self._each, dtype=torch.int32, device=device)

    def find(self, slots: torch.Tensor) -> None:
        if self._each:
            self.pages.copy_(slots.unsqueeze(1) * self._each + self._range)


def _widest(model: DecodeModel) -> int:
    """Elements of the widest row between two kernels."""
    widths = [0]
    for layer in model.layers:
        widths += [len(layer.mixer.into), layer.mixer.out.shape[1]]
        feed = layer.feed
        widths += [len(feed.into)] if isinstance(feed, MoeStep) else [len(feed.gate_up), feed.down.shape[1]]
    return max(widths)
