"""From a Hugging Face model directory to a Runner: check, plan, read. Nothing is mapped before the checks
have passed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from ftagent.engine import SPIN_SET, SPIN_VARIABLE
from ftagent.engine.api import ModelInfo
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage, PagePool
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.filling import BankFiller
from ftagent.engine.experts.loading import ExpertNames, check_experts, find_names, stored_format
from ftagent.engine.experts.pool import ExpertPool
from ftagent.engine.experts.sizing import slots_from_option
from ftagent.engine.experts.slots import SlotStore
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.decoder import Decoder, Pools, build_weights
from ftagent.engine.models.gated_delta_net import state_shape
from ftagent.engine.models.layers import Rope
from ftagent.engine.models.registry import model_config
from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.runner import Runner
from ftagent.engine.weights.safetensors import Checkpoint, open_checkpoint
from ftagent.engine.weights.source import Checker, Reader, find_prefix
from ftagent.errors import ConfigError, LoadFailed
from ftagent.settings import parse_size

DEFAULT_CONTEXT = 65536
KV_BYTES = 384 * 2**20  # KV room beyond one full context is given up to this much
SMALL_MODEL_BYTES = 2 * 2**30  # a model up to this size in float32 is computed in float32 on the CPU


@dataclass(frozen=True, slots=True)
class _Plan:
    """What will be allocated, decided from headers and options alone."""

    config: ModelConfig
    context: int
    dtype: torch.dtype
    pages: int
    mode: Mode
    slots: int


class _StoredExperts(NamedTuple):
    """Where and how each MoE layer's experts are stored. `shared`: their format is the compute dtype."""

    names: tuple[ExpertNames, ...]
    formats: tuple[ExpertFormat, ...]
    shared: bool


def load_runner(directory: Path, options: EngineOptions, dtype: torch.dtype | None = None) -> Runner:
    """Load the model of `directory`. `dtype` overrides the compute dtype (default: by size of the model).

    Raises LoadFailed for a checkpoint that is damaged, incomplete, unknown or too big, ConfigError for an
    option that cannot be honoured.
    """
    device = _device(options)
    if SPIN_SET:
        os.environ.pop(SPIN_VARIABLE, None)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    config = model_config(directory)
    checkpoint = open_checkpoint(directory)
    prefix = find_prefix(checkpoint)
    compute = dtype or (torch.float32 if 4 * parameters(config) <= SMALL_MODEL_BYTES else torch.bfloat16)
    stored = _check(config, checkpoint, prefix, compute)
    plan = _make_plan(config, stored, options, compute, directory)
    weights = build_weights(config, Reader(checkpoint, prefix, compute, device))
    kv_shape = _kv_shape(config)
    kv = PagePool(plan.pages, PAGE_TOKENS, kv_shape.page_bytes(compute))
    states = StatePool(options.max_running, state_shape(config), device)
    pools = Pools(
        KvStorage(kv_shape, plan.pages, compute, device), states, _experts(plan, stored, checkpoint, device)
    )
    rope = Rope(config.rotary_dim, config.rope_theta, plan.context, device)
    info = ModelInfo(
        id="demo" if options.model == "demo" else directory.name,
        family=config.family,
        context=plan.context,
        vocab=config.vocab,
        embedded=options.model == "demo",
        parameters=parameters(config),
        active_parameters=parameters(config, active=True),
        device=str(device),
    )
    return Runner(Decoder(weights, rope, pools), kv, states, pools.experts, info)


def parameters(config: ModelConfig, active: bool = False) -> int:
    """Weights of the model; with `active`, those that one token uses (the embedding table left out)."""
    hidden = config.hidden
    mixers = 0
    for kind in config.layers:
        if kind == "full_attention":
            queries = config.heads * config.head_dim
            mixers += hidden * (
                queries * (3 if config.gated_attention else 2) + 2 * config.kv_heads * config.head_dim
            )
        elif config.linear:
            mixers += hidden * (
                config.linear.channels + 2 * (config.linear.values + config.linear.value_heads)
            )
    used = config.experts_per_token if active else config.experts
    per_moe = hidden * (3 * used * config.expert_intermediate + config.experts)
    per_moe += hidden * (3 * config.shared_intermediate + 1) if config.shared_intermediate else 0
    mlps = (
        len(config.moe_layers) * per_moe + len(config.dense_layers) * 3 * hidden * config.dense_intermediate
    )
    tables = 1 if active or config.tied else 2
    return mixers + mlps + tables * config.vocab * hidden


def _device(options: EngineOptions) -> torch.device:
    if options.device not in ("auto", "cpu"):
        raise ConfigError(f"device {options.device!r} is not supported by this version; use cpu or auto")
    return torch.device("cpu")


def _kv_shape(config: ModelConfig) -> KvShape:
    return KvShape(config.layers.count("full_attention"), config.kv_heads, config.head_dim)


def _expert_shape(config: ModelConfig) -> ExpertShape:
    return ExpertShape(config.hidden, config.expert_intermediate)


def _check(config: ModelConfig, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype) -> _StoredExperts:
    """Check every tensor's presence, shape and format from the headers; say how the experts are stored."""
    checker = Checker(checkpoint, prefix, dtype)
    build_weights(config, checker)
    names = tuple(find_names(checkpoint, prefix, layer) for layer in config.moe_layers)
    for layer_names in names:
        check_experts(checker, layer_names, config.experts, _expert_shape(config))
    checker.finish()
    formats = tuple(stored_format(checkpoint, layer_names, config.experts) for layer_names in names)
    return _StoredExperts(names, formats, shared=all(stored.dtype == dtype for stored in formats))


def _make_plan(
    config: ModelConfig, stored: _StoredExperts, options: EngineOptions, dtype: torch.dtype, directory: Path
) -> _Plan:
    """Pages, slots and mode: one full context first, the rest to experts.

    Raises LoadFailed with need and have when the model does not fit. On the CPU, `vram` bounds what a device
    would hold: dense weights, KV pages and expert slots.
    """
    if options.context and options.context > config.context:
        raise ConfigError(f"context {options.context} is more than the {config.context} tokens of this model")
    context = options.context or min(config.context, DEFAULT_CONTEXT)
    page_bytes = _kv_shape(config).page_bytes(dtype)
    pages = context_pages = -(-context // PAGE_TOKENS)
    weights = _expert_shape(config).weights()
    experts = len(stored.names) * config.experts
    bank_bytes = sum(config.experts * weights * layer.dtype.itemsize for layer in stored.formats)
    device_bytes = (parameters(config) - experts * weights) * dtype.itemsize + context_pages * page_bytes
    slot_bytes = weights * dtype.itemsize
    have, vram = _size("ram", options.ram), _size("vram", options.vram)
    if have is None:
        have = psutil.virtual_memory().available * 9 // 10
    need = bank_bytes + device_bytes
    fitting = experts if stored.shared else (have - need) // slot_bytes
    if vram is None:
        spare = min(context_pages * options.max_running, KV_BYTES // max(page_bytes, 1))
        pages = max(context_pages, spare)
    else:
        fitting = min(fitting, (vram - device_bytes) // slot_bytes)
    slots = _slots(options, experts, slot_bytes, fitting)
    if vram is not None and device_bytes + slots * slot_bytes > vram:
        raise LoadFailed(_too_big(directory, "device memory (vram)", device_bytes + slots * slot_bytes, vram))
    need += 0 if stored.shared else slots * slot_bytes
    if need > have:
        raise LoadFailed(_too_big(directory, "memory", need, have))
    return _Plan(config, context, dtype, pages, _mode(options.mode, slots, experts), slots)


def _too_big(directory: Path, what: str, need: int, have: int) -> str:
    sizes = f"needs {need / 2**30:.3f} GiB of {what}, {have / 2**30:.3f} GiB may be used"
    return f"{directory}: {sizes}; ask for a shorter context or fewer experts in slots"


def _size(name: str, text: str | None) -> int | None:
    """Bytes of a size option; None when it was not given."""
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _slots(options: EngineOptions, experts: int, slot_bytes: int, fitting: int) -> int:
    """Slots as asked for, or as many as fit."""
    if not experts:
        return 0
    if options.experts is not None:
        return slots_from_option(options.experts, experts, slot_bytes)
    return 0 if options.mode == "cpu" else max(min(experts, fitting), 0)


def _mode(asked: Mode, slots: int, experts: int) -> Mode:
    """The mode that will run. Raises ConfigError when the slots do not allow the one asked for."""
    if asked == "fused" and slots < experts:
        raise ConfigError(
            f"mode fused needs slots for all {experts} experts, there are {slots}; use mode hybrid"
        )
    if asked == "offload" and slots < 1:
        raise ConfigError("mode offload needs at least one expert slot; use mode cpu")
    if asked != "auto":
        return asked
    if slots == experts:
        return "fused"
    return "hybrid" if slots else "cpu"


def _experts(
    plan: _Plan, stored: _StoredExperts, checkpoint: Checkpoint, device: torch.device
) -> ExpertPool | None:
    """Fill the banks, then the slots."""
    if not stored.names:
        return None
    shape = _expert_shape(plan.config)
    banks = [ExpertBank(plan.config.experts, shape, layer_format) for layer_format in stored.formats]
    with BankFiller(
        checkpoint, list(zip(stored.names, banks, strict=True)), torch.get_num_threads()
    ) as filler:
        filler.wait()
    store = SlotStore(plan.slots, shape, plan.dtype, device, stored.shared)
    return ExpertPool(banks, store, plan.mode, plan.config.experts_per_token, plan.dtype)
