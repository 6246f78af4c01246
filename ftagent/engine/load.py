"""From a model directory to a Runner: check, plan, read. No weight is read before the checks have passed."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from ftagent.engine import SPIN_SET, SPIN_VARIABLE
from ftagent.engine.api import LoadProgress, LoadState, ModelInfo
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage, PagePool
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape, row_bytes
from ftagent.engine.experts.calibration import calibrate
from ftagent.engine.experts.forecast import NOMINAL_FLOPS
from ftagent.engine.experts.heat import fingerprint, heat_file, load_heat
from ftagent.engine.experts.loading import ExpertNames, check_experts, find_names, stored_format
from ftagent.engine.experts.pinning import CudaRegistrar, Registrar
from ftagent.engine.experts.pool import ExpertPool
from ftagent.engine.experts.slots import SlotStore, slot_bytes
from ftagent.engine.experts.stored import StoredRows, find_rows
from ftagent.engine.machine.gpus import LEAST_CAPABILITY
from ftagent.engine.machine.record_threads import ExpertSizes
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.decoder import (
    Decoder,
    Pools,
    build_weights,
    expert_shape,
    kv_shape,
    make_rope,
    window_shape,
)
from ftagent.engine.models.gated_delta_net import state_shape
from ftagent.engine.models.registry import model_config
from ftagent.engine.models.sizes import parameters, widest
from ftagent.engine.options import EngineOptions
from ftagent.engine.planner import ModelSizes, Plan, no_memory, plan_cpu, plan_device
from ftagent.engine.reading import LoadMeter, filled_banks, reader_of
from ftagent.engine.runner import Runner
from ftagent.engine.steps import LoadedModel
from ftagent.engine.weights.checkpoint import open_weights
from ftagent.engine.weights.ftw_reader import FtwCheckpoint
from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.engine.weights.source import Checker, find_prefix
from ftagent.errors import ConfigError

if TYPE_CHECKING:
    from ftagent.engine.device.build import DevicePlan
    from ftagent.engine.device.runner import DeviceRunner

log = logging.getLogger(__name__)

SMALL_MODEL_BYTES = 2 * 2**30  # up to this in float32 a model is computed so, by default on the CPU
REFERENCE_CHUNK = 8192  # prompt tokens of a step in the reference mode


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint that has passed all checks, and how it is to run."""

    directory: Path
    options: EngineOptions
    config: ModelConfig
    checkpoint: Checkpoint
    prefix: str
    dtype: torch.dtype  # of computation
    device: torch.device
    names: tuple[ExpertNames | StoredRows, ...]  # per MoE layer
    formats: tuple[ExpertFormat, ...]  # as stored
    dense: int  # bytes of all weights but the routed experts, in the dtypes that they are computed in
    meter: LoadMeter = field(default_factory=LoadMeter)

    @property
    def shape(self) -> ExpertShape:
        return expert_shape(self.config)

    @property
    def kv_shape(self) -> KvShape:
        return kv_shape(self.config)


def load_runner(
    directory: Path,
    options: EngineOptions,
    dtype: torch.dtype | None = None,
    progress: LoadProgress | None = None,
) -> LoadedModel:
    """Load the model of `directory`. `dtype` overrides the compute dtype (default: by size of the model).
    `progress` is told how far it is, from other threads too.

    Raises LoadFailed for a checkpoint that is damaged, incomplete, unknown or too big, ConfigError for an
    option that cannot be honoured.
    """
    opened = open_model(directory, options, dtype, progress)
    if SPIN_SET:
        os.environ.pop(SPIN_VARIABLE, None)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return build_device(opened) if opened.device.type == "cuda" else _build_cpu(opened)


def open_model(
    directory: Path,
    options: EngineOptions,
    dtype: torch.dtype | None = None,
    progress: LoadProgress | None = None,
    device: torch.device | None = None,
) -> Opened:
    """Check everything that can be checked before memory is taken. `device` is where the model is to run, be
    it there or not (default: as `options` say). Raises as `load_runner` does.
    """
    config = model_config(directory)
    device = _able(config, device or choose_device(options.device, parameters(config)), options.device)
    meter = LoadMeter(progress)
    meter.tell(LoadState("checking"))
    checkpoint = open_weights(directory, options.verify_weights)
    prefix = find_prefix(checkpoint)
    compute = dtype or (torch.float32 if _is_small(parameters(config)) else torch.bfloat16)
    names, formats, dense = _check(config, checkpoint, prefix, compute)
    return Opened(
        directory, options, config, checkpoint, prefix, compute, device, names, formats, dense, meter
    )


def choose_device(asked: str, weights: int) -> torch.device:
    """The device for a model of so many weights. `auto` leaves small models on the CPU: their steps are too
    short for a device to pay, and starting one takes longer than loading them.

    Raises ConfigError for a device that is not there, or that the kernels do not run on.
    """
    if asked == "auto":
        if _is_small(weights) or not torch.cuda.is_available():
            return torch.device("cpu")
        device = torch.device("cuda", torch.cuda.current_device())
        too_old = _too_old(device)
        if too_old is not None:
            log.warning("the model runs on the CPU: %s", too_old)
        return device if too_old is None else torch.device("cpu")
    kind, _, index = asked.partition(":")
    if asked == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or not (index.isdecimal() or asked == "cuda"):
        raise ConfigError(f"device {asked!r} is not known; use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ConfigError(f"device {asked!r} cannot be used: {why}; use cpu or auto")
    count = torch.cuda.device_count()
    if index and int(index) >= count:
        raise ConfigError(
            f"device {asked!r} is not there: this machine has {count}, cuda:0 to cuda:{count - 1}"
        )
    device = torch.device("cuda", int(index) if index else torch.cuda.current_device())
    too_old = _too_old(device)
    if too_old is not None:
        raise ConfigError(f"device {asked!r} cannot be used: {too_old}; use cpu or auto")
    return device


def _able(config: ModelConfig, device: torch.device, asked: str) -> torch.device:
    """`device`, or for `auto` the CPU where no other computes this family. Raises ConfigError."""
    if device.type == "cpu" or config.cpu_only is None:
        return device
    wrong = f"{config.family} does not run on a GPU yet ({config.cpu_only})"
    if asked != "auto":
        raise ConfigError(f"device {asked!r} cannot be used: {wrong}; use --device cpu or auto")
    log.warning("the model runs on the CPU: %s", wrong)
    return torch.device("cpu")


def model_sizes(opened: Opened, banks: tuple[ExpertFormat, ...]) -> ModelSizes:
    """What the planner needs to know; `banks` are the formats in which experts are held in host memory."""
    config, dtype, shape = opened.config, opened.dtype, opened.shape
    experts = len(opened.names) * config.experts
    return ModelSizes(
        dense=opened.dense,
        experts=experts,
        per_token=config.experts_per_token,
        slot_bytes=slot_bytes(shape, dtype.itemsize),
        bank_bytes=sum(config.experts * row_bytes(shape, stored) for stored in banks),
        page_bytes=opened.kv_shape.page_bytes(dtype),
        page_tokens=PAGE_TOKENS,
        state_bytes=state_shape(config).slot_bytes + window_shape(config).slot_bytes(dtype),
        context=config.context,
        hidden=config.hidden,
        widest=widest(config),
        intermediate=config.expert_intermediate,
        vocab=config.vocab,
        itemsize=dtype.itemsize,
        shared=all(stored.dtype == dtype for stored in banks),
    )


def device_formats(opened: Opened) -> tuple[ExpertFormat, ...]:
    """How the banks of a device hold experts: what is stored otherwise is converted once."""
    return tuple(ExpertFormat(opened.dtype) for _ in opened.formats)


def record_sizes(opened: Opened) -> ExpertSizes:
    """The experts as a device's banks hold them, as the measured figures of a machine are asked for."""
    return ExpertSizes(
        opened.config.hidden,
        opened.config.expert_intermediate,
        str(opened.dtype).removeprefix("torch."),
        row_bytes(opened.shape, ExpertFormat(opened.dtype)),
    )


def _too_old(device: torch.device) -> str | None:
    """Why the kernels, which compute in BF16, do not run on `device`."""
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) >= LEAST_CAPABILITY:
        return None
    least = ".".join(map(str, LEAST_CAPABILITY))
    return f"{device} has compute capability {major}.{minor}, and {least} is needed"


def _is_small(weights: int) -> bool:
    return 4 * weights <= SMALL_MODEL_BYTES


def _check(
    config: ModelConfig, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype
) -> tuple[tuple[ExpertNames | StoredRows, ...], tuple[ExpertFormat, ...], int]:
    """Check every tensor's presence, shape and format from the headers; say where and how the experts of each
    MoE layer are stored, and how many bytes all else will take.
    """
    checker = Checker(checkpoint, prefix, dtype)
    build_weights(config, checker)
    if isinstance(checkpoint, FtwCheckpoint):
        checker.finish()
        return *_stored(config, checkpoint), checker.bytes
    block, parts, _, interleaved = config.moe_names
    names = tuple(
        find_names(checkpoint, prefix, layer, block, parts, interleaved=interleaved)
        for layer in config.moe_layers
    )
    for layer_names in names:
        check_experts(checker, layer_names, config.experts, expert_shape(config))
    checker.finish()
    formats = tuple(stored_format(checkpoint, layer_names, config.experts) for layer_names in names)
    return names, formats, checker.bytes


def _stored(
    config: ModelConfig, checkpoint: FtwCheckpoint
) -> tuple[tuple[StoredRows, ...], tuple[ExpertFormat, ...]]:
    shape = expert_shape(config)
    rows = tuple(find_rows(checkpoint, layer, config.experts, shape) for layer in config.moe_layers)
    return rows, tuple(stored.format for stored in rows)


def _build_cpu(opened: Opened) -> Runner:
    """Everything in host memory; banks keep the stored format."""
    config, options, dtype, device = opened.config, opened.options, opened.dtype, opened.device
    sizes = model_sizes(opened, opened.formats)
    plan = plan_cpu(sizes, options, psutil.virtual_memory().available, str(opened.directory))
    opened.meter.expect(sizes.dense + sizes.bank_bytes)
    with filled_banks(opened, opened.formats) as banks:
        weights = build_weights(config, reader_of(opened))
    kv = PagePool(plan.pages, PAGE_TOKENS, sizes.page_bytes)
    states = StatePool(options.max_running, state_shape(config), device, window_shape(config), dtype)
    experts = _expert_pool(opened, plan, banks, sizes.shared) if banks else None
    pools = Pools(KvStorage(opened.kv_shape, plan.pages, dtype, device), states, experts)
    rope = make_rope(config, plan.context, device)
    return Runner(Decoder(weights, rope, pools), kv, states, experts, model_info(opened, plan), plan.kept)


def build_device(opened: Opened) -> DeviceRunner:
    """Dense weights, pools and some experts on a device, all experts in registered host memory.

    Kernels are compiled and the decode chains captured while the banks fill. Raises LoadFailed when the
    device has less room than was planned with; nothing is left behind then.
    """
    formats = device_formats(opened)
    sizes = model_sizes(opened, formats)
    plan = _plan_device(opened, sizes)
    try:
        return _build_device(opened, formats, sizes, plan)
    except torch.OutOfMemoryError as error:
        reason = " ".join(str(error).split())[:160]
    # Behind the handler: an error holds the frames it passed through, and those all that was allocated.
    raise no_memory(str(opened.directory), plan, reason)


def _build_device(
    opened: Opened, formats: tuple[ExpertFormat, ...], sizes: ModelSizes, plan: Plan
) -> DeviceRunner:
    from ftagent.engine.device.build import build_runner  # Triton, which a machine may lack
    from ftagent.engine.device.contents import DeviceContents, DeviceStates

    config, options, dtype, device = opened.config, opened.options, opened.dtype, opened.device
    registrar = _registrar(device)
    opened.meter.expect(sizes.dense + sizes.bank_bytes)
    with ExitStack() as on_error:
        with filled_banks(opened, formats, registrar) as banks:
            for bank in banks:
                on_error.callback(bank.close)
            weights = build_weights(config, reader_of(opened))
            kv = PagePool(plan.pages, PAGE_TOKENS, sizes.page_bytes)
            windows = window_shape(config)
            states = DeviceStates(options.max_running, state_shape(config), device, windows, dtype)
            rope = make_rope(config, plan.context, device)
            storage = KvStorage(opened.kv_shape, plan.pages, dtype, device)
            model = Decoder(weights, rope, Pools(storage, states, None))
            contents = DeviceContents(storage, states, plan.kept, plan.copies_bytes, registrar)
            on_error.callback(contents.close)
            runner = build_runner(
                model,
                (kv, contents),
                banks,
                config.experts_per_token,
                _device_plan(opened, plan),
                model_info(opened, plan),
            )
            on_error.callback(runner.close)
            runner.prepare()
        if runner.experts is not None:
            if registrar is not None:
                refused = [layer for layer, bank in enumerate(banks) if not bank.pinned]
                runner.experts.leave_to_cpu(refused)
            heat = load_heat(heat_file(fingerprint(opened.checkpoint)), len(banks), config.experts)
            runner.experts.fill(heat)
        contents.ready()
        on_error.pop_all()
    return runner


def _registrar(device: torch.device) -> Registrar | None:
    """What makes host memory readable for `device`; None where that needs nothing."""
    return CudaRegistrar(device) if device.type == "cuda" else None


def _plan_device(opened: Opened, sizes: ModelSizes) -> Plan:
    host = psutil.virtual_memory().available
    free = torch.cuda.mem_get_info(opened.device)[0] if opened.device.type == "cuda" else host
    return plan_device(sizes, opened.options, free, host, str(opened.directory))


def _device_plan(opened: Opened, plan: Plan) -> DevicePlan:
    from ftagent.engine.device.build import DevicePlan

    config, options = opened.config, opened.options
    found = calibrate(
        record_sizes(opened), opened.device.index or 0 if opened.device.type == "cuda" else None
    )
    active = parameters(config, active=True)
    return DevicePlan(
        context=plan.context,
        chunk_tokens=min(plan.chunk_tokens, REFERENCE_CHUNK) if options.reference else plan.chunk_tokens,
        reference=options.reference,
        slots=plan.slots,
        staging=plan.staging,
        mode=plan.mode,
        asked=options.mode,
        max_running=options.max_running,
        threads=options.threads or found.threads,
        costs=found.costs,
        device_ns_per_token=2 * active * 10**9 // (len(config.layers) * NOMINAL_FLOPS),
        unchained=config.unchained,
        swiglu=config.swiglu,
    )


def model_info(opened: Opened, plan: Plan) -> ModelInfo:
    embedded = opened.options.model == "demo"
    return ModelInfo(
        id="demo" if embedded else opened.directory.name,
        family=opened.config.family,
        context=plan.context,
        vocab=opened.config.vocab,
        embedded=embedded,
        parameters=parameters(opened.config),
        active_parameters=parameters(opened.config, active=True),
        device=str(opened.device),
        dtype=str(opened.dtype).removeprefix("torch."),
        fingerprint=fingerprint(opened.checkpoint),
    )


def _expert_pool(opened: Opened, plan: Plan, banks: list[ExpertBank], shared: bool) -> ExpertPool:
    config = opened.config
    store = SlotStore(plan.slots, opened.shape, opened.dtype, opened.device, shared)
    heat = None
    if plan.slots < len(banks) * config.experts:
        heat = load_heat(heat_file(fingerprint(opened.checkpoint)), len(banks), config.experts)
    per_token, how = config.experts_per_token, config.swiglu
    return ExpertPool(banks, store, plan.mode, per_token, opened.dtype, heat, how)
