"""Puts a device runner together: tables, conductor and mailbox, prefill, and the decode chains.

Banks may still be filling while this runs; `DeviceExperts.fill` comes when they are full. On CPU tensors
under Triton's interpreter it builds the twin: the same parts with a loopback link. Reads no files.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ftagent.engine.api import ModelInfo
from ftagent.engine.context.pages import PagePool
from ftagent.engine.device.contents import DeviceContents
from ftagent.engine.device.decode import DecodeExperts, DecodeModel, DecodeStep
from ftagent.engine.device.dense import Norm, layer_steps
from ftagent.engine.device.experts import DeviceExperts
from ftagent.engine.device.host_share import HostShare
from ftagent.engine.device.prefill import PrefillExperts
from ftagent.engine.device.ring import StagingRing
from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.device.tables import ExpertTables
from ftagent.engine.experts.auto import AutoMode, Forecast
from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.experts.conductor import Addresses, Conductor, ConductorOptions
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.link import cuda_link, loopback_link
from ftagent.engine.experts.mailbox import MailboxLayout
from ftagent.engine.experts.native_executor import NativeExecutor, RecordShape, record_executor
from ftagent.engine.experts.native_policy import NativePolicy
from ftagent.engine.experts.policy import ExpertPolicy
from ftagent.engine.experts.sizing import layer_floor
from ftagent.engine.experts.slots import SlotStore
from ftagent.engine.kernels.experts import SILU
from ftagent.engine.kernels.gpu.device import describe
from ftagent.engine.kernels.gpu.expert_plan import HostArrays, StepTables, plan_experts
from ftagent.engine.kernels.swiglu import Swiglu
from ftagent.engine.machine import native
from ftagent.engine.machine.cores import spare_core, worker_cores
from ftagent.engine.models.decoder import Decoder, Pools
from ftagent.engine.options import Mode

MOST_ROWS = 16  # of one decode chain


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What was decided before loading. `context` and `chunk_tokens` in tokens; `slots` and `staging` in
    experts. `asked` is the user's mode, `mode` the one to start in. `unchained`: what of the model the
    kernels of a decode chain do not compute; its decode steps take the way of prompts.
    """

    context: int
    chunk_tokens: int
    slots: int
    staging: int
    mode: Mode
    asked: Mode
    max_running: int
    threads: int | None
    costs: CostModel
    device_ns_per_token: int  # the device's own work on one token of a prompt in one layer
    reference: bool = False
    unchained: str | None = None
    swiglu: Swiglu = SILU


class _Parts(NamedTuple):
    """What serves missing experts."""

    mailbox: torch.Tensor
    conductor: Conductor


def batch_sizes(max_running: int) -> tuple[int, ...]:
    """Rows of the chains: powers of two up to MOST_ROWS."""
    sizes = [1]
    while sizes[-1] < min(max_running, MOST_ROWS):
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def build_runner(
    model: Decoder,
    pools: tuple[PagePool, DeviceContents],
    banks: list[ExpertBank],
    per_token: int,
    plan: DevicePlan,
    info: ModelInfo,
) -> DeviceRunner:
    """A runner over `model`, whose pools have no experts yet; `pools` are its pages, and what keeps them and
    its states. Its chains are not prepared: see `prepare`. The runner closes `pools`.

    When it raises, for want of memory, no thread of its own is left.
    """
    with ExitStack() as on_error:
        experts = decode = None
        if banks:
            experts, decode = _build_experts(model, banks, per_token, plan, on_error)
            on_error.callback(experts.close)
        runner = _build_chains(model, pools, experts, decode, plan, info)
        on_error.pop_all()
    return runner


def _build_chains(
    model: Decoder,
    kept: tuple[PagePool, DeviceContents],
    experts: DeviceExperts | None,
    decode: DecodeExperts | None,
    plan: DevicePlan,
    info: ModelInfo,
) -> DeviceRunner:
    pools, device = model.pools, model.weights.embedding.device
    if experts is not None:
        model = Decoder(model.weights, model.rope, Pools(pools.kv, pools.states, experts.prefill))
    model.fused = True
    weights = model.weights
    if plan.unchained is not None or not (experts is None or experts.chained):
        return DeviceRunner(model, kept, experts, [], info, plan.chunk_tokens)
    shared = DecodeModel(
        embedding=weights.embedding,
        layers=layer_steps(weights, model.rope, pools.states.windows.shape.window),
        norm=Norm(weights.norm.weight, weights.norm.eps),
        head=weights.head,
        rope=model.rope,
        kv=pools.kv,
        states=pools.states,
        experts=decode,
    )
    pages = kept[0].pages_for(plan.context)
    steps = [DecodeStep(shared, size, pages, device) for size in batch_sizes(plan.max_running)]
    return DeviceRunner(model, kept, experts, steps, info, plan.chunk_tokens)


def _build_experts(
    model: Decoder, banks: list[ExpertBank], per_token: int, plan: DevicePlan, on_error: ExitStack
) -> tuple[DeviceExperts, DecodeExperts]:
    weights = model.weights
    device, dtype = weights.embedding.device, weights.embedding.dtype
    shape, layers, experts = banks[0].shape, len(banks), banks[0].experts
    store = SlotStore(plan.slots, shape, dtype, device)
    library = native.load()
    policy = _policy(library, layers, experts, plan.slots, per_token)
    tables = ExpertTables(banks, store, policy, per_token, plan.costs, device)
    resident = plan.slots == layers * experts
    ring = StagingRing(
        2 if resident else max(plan.staging, 2), (shape.intermediate, 3, shape.hidden), dtype, device
    )
    executor = host = None
    if not resident:
        row_bytes = banks[0].row_bytes
        sizes = RecordShape(shape.hidden, shape.intermediate, dtype, row_bytes, shape.biased, plan.swiglu)
        executor = record_executor(sizes, plan.threads)
        on_error.callback(executor.close)
        host = HostShare(tables, executor)
    rows = batch_sizes(plan.max_running)[-1]
    expert_plan = plan_experts(shape.hidden, shape.intermediate, per_token, dtype.itemsize, describe(device))
    step_tables = StepTables.empty(tables.slot_of, tables.slot_ptr, rows * per_token)
    parts = arrays = None
    served = plan.unchained is None and library is not None
    if not resident and served and isinstance(policy, NativePolicy):
        assert library is not None
        assert isinstance(executor, NativeExecutor)
        layout = MailboxLayout(layers, experts, rows, per_token, per_token, shape.hidden, dtype.itemsize)
        parts = _serve(layout, tables, step_tables, policy, executor, plan, library)
        arrays = HostArrays.at(parts.mailbox.data_ptr(), layout.offsets)
    found = DeviceExperts(
        tables,
        PrefillExperts(tables, ring, host, plan.reference, plan.swiglu),
        None if parts is None else parts.conductor,
        _auto(plan, resident),
        plan.mode,
        plan.device_ns_per_token,
        keep=(executor, None if parts is None else parts.mailbox),
    )
    if plan.unchained is not None or not found.chained:
        reason = plan.unchained or ("no native library" if library is None else "no expert has a slot")
        found.mode_reason = f"{reason}: decode steps take the way of prompts"
    return found, DecodeExperts(step_tables, expert_plan, arrays, per_token, tables.biases, plan.swiglu)


def _policy(
    library: ctypes.CDLL | None, layers: int, experts: int, slots: int, per_token: int
) -> NativePolicy | ExpertPolicy:
    floor = layer_floor(slots, layers, per_token)
    if library is None or not slots:
        return ExpertPolicy(layers, experts, slots, floor)
    return NativePolicy(library, layers, experts, slots, floor)


def _serve(
    layout: MailboxLayout,
    tables: ExpertTables,
    step: StepTables,
    policy: NativePolicy,
    executor: NativeExecutor,
    plan: DevicePlan,
    library: ctypes.CDLL,
) -> _Parts:
    """The conductor and the memory in which it meets the kernels."""
    device = tables.device
    mailbox = torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    link = cuda_link(library, device.index or 0) if device.type == "cuda" else loopback_link(library)
    rows = [bank.address(expert) for bank in tables.banks for expert in range(layout.experts)]
    addresses = Addresses(
        mailbox.data_ptr(), rows, tables.addresses, step.slot_of.data_ptr(), step.landed.data_ptr()
    )
    options = ConductorOptions(mode="hybrid" if plan.mode == "auto" else plan.mode)
    intermediate = tables.intermediate
    core = spare_core(worker_cores(plan.threads))
    options = replace(options, core=core, grain=max(1, min(16, intermediate // 4)))
    if plan.reference:
        options = replace(options, grain=intermediate, reserve=0)
    conductor = Conductor(layout, intermediate, addresses, policy, executor, link, plan.costs, options)
    return _Parts(mailbox, conductor)


def _auto(plan: DevicePlan, resident: bool) -> AutoMode | None:
    """Modes are compared only where the user left the choice."""
    if resident or plan.asked != "auto" or plan.mode != "hybrid" or plan.unchained is not None:
        return None
    return AutoMode(forecast=Forecast(plan.costs.fetch_ns(1), plan.costs.cpu_ns(1, 1)))
