"""From a Hugging Face model directory to a Runner: check, plan, read. Nothing is mapped before the checks
have passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from ftagent.engine.api import ModelInfo
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage, PagePool
from ftagent.engine.context.recurrent import StatePool
from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.loading import ExpertNames, check_experts, fill_bank, find_names, stored_format
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
    names: tuple[ExpertNames, ...]
    formats: tuple[ExpertFormat, ...]


def load_runner(directory: Path, options: EngineOptions, dtype: torch.dtype | None = None) -> Runner:
    """Load the model of `directory`. `dtype` overrides the compute dtype (default: by size of the model).

    Raises LoadFailed for a checkpoint that is damaged, incomplete, unknown or too big, ConfigError for an
    option that cannot be honoured.
    """
    device = _device(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    config = model_config(directory)
    checkpoint = open_checkpoint(directory)
    prefix = find_prefix(checkpoint)
    compute = dtype or (torch.float32 if 4 * parameters(config) <= SMALL_MODEL_BYTES else torch.bfloat16)
    plan = _check_and_plan(config, checkpoint, prefix, options, compute)
    weights = build_weights(config, Reader(checkpoint, prefix, compute, device))
    kv_shape = _kv_shape(config)
    kv = PagePool(plan.pages, PAGE_TOKENS, kv_shape.page_bytes(compute))
    states = StatePool(options.max_running, state_shape(config), device)
    pools = Pools(
        KvStorage(kv_shape, plan.pages, compute, device), states, _experts(plan, checkpoint, device)
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


def _check_and_plan(
    config: ModelConfig, checkpoint: Checkpoint, prefix: str, options: EngineOptions, dtype: torch.dtype
) -> _Plan:
    checker = Checker(checkpoint, prefix, dtype)
    build_weights(config, checker)
    shape = ExpertShape(config.hidden, config.expert_intermediate)
    names = tuple(find_names(checkpoint, prefix, layer) for layer in config.moe_layers)
    for layer_names in names:
        check_experts(checker, layer_names, config.experts, shape)
    checker.finish()
    formats = tuple(stored_format(checkpoint, layer_names, config.experts) for layer_names in names)
    context = min(options.context or min(config.context, DEFAULT_CONTEXT), config.context)
    if options.context and options.context > config.context:
        raise ConfigError(f"context {options.context} is more than the {config.context} tokens of this model")
    page_bytes = _kv_shape(config).page_bytes(dtype)
    context_pages = -(-context // PAGE_TOKENS)
    pages = max(context_pages, min(context_pages * options.max_running, KV_BYTES // max(page_bytes, 1)))
    experts = len(names) * config.experts
    slot_bytes = shape.weights() * dtype.itemsize
    bank_bytes = sum(config.experts * shape.weights() * stored.dtype.itemsize for stored in formats)
    dense_bytes = (parameters(config) - experts * shape.weights()) * dtype.itemsize
    fixed = bank_bytes + dense_bytes + context_pages * page_bytes
    slots = _slots(options, experts, slot_bytes, fixed, checkpoint.directory)
    mode = _mode(options.mode, slots, experts)
    return _Plan(config, context, dtype, pages, mode, slots, names, formats)


def _slots(options: EngineOptions, experts: int, slot_bytes: int, fixed: int, directory: Path) -> int:
    """Slots as asked for, or as many as fit beside `fixed` bytes. Raises LoadFailed with need and have."""
    if not experts:
        return 0
    try:
        room = parse_size(options.ram) if options.ram else psutil.virtual_memory().available * 9 // 10
    except ValueError as error:
        raise ConfigError(f"ram: {error}") from error
    if options.experts is not None:
        slots = slots_from_option(options.experts, experts, slot_bytes)
    elif options.mode == "cpu":
        slots = 0
    else:
        slots = max(min(experts, (room - fixed) // slot_bytes), 0)
    need = fixed + slots * slot_bytes
    if need > room:
        raise LoadFailed(
            f"{directory}: needs {need / 2**30:.2f} GiB of memory, {room / 2**30:.2f} GiB may be used"
        )
    return slots


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


def _experts(plan: _Plan, checkpoint: Checkpoint, device: torch.device) -> ExpertPool | None:
    if not plan.names:
        return None
    shape = ExpertShape(plan.config.hidden, plan.config.expert_intermediate)
    banks = []
    for names, stored in zip(plan.names, plan.formats, strict=True):
        bank = ExpertBank(plan.config.experts, shape, stored)
        fill_bank(checkpoint, names, bank)
        banks.append(bank)
    store = SlotStore(plan.slots, shape, plan.dtype, device)
    return ExpertPool(banks, store, plan.mode, plan.config.experts_per_token, plan.dtype)
