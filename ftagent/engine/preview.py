"""What would happen to a model on this machine, or on one that is described: its memory plan and its speed.

Reads config.json and the headers of weights, as loading does before it takes memory; the plan is the one that
loading would make. Reads no weight, and needs no device: one that is not there is described by its size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from ftagent.engine.experts.calibration import calibrate, costs_from
from ftagent.engine.experts.forecast import (
    CPU_NS,
    DEVICE_NS,
    Rates,
    Work,
    cpu_decode,
    cpu_prefill,
    device_decode,
    device_prefill,
    hit_rate,
)
from ftagent.engine.load import Opened, device_formats, model_sizes, open_model, record_sizes
from ftagent.engine.machine.profile import Profile
from ftagent.engine.models.config import ModelConfig
from ftagent.engine.models.sizes import parameters
from ftagent.engine.options import EngineOptions
from ftagent.engine.planner import ModelSizes, Plan, draft_cpu, draft_device, option_bytes
from ftagent.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class Speed:
    """Expected tokens per second of one request behind a short prompt; None is unknown, for the reason in
    `unknown`. `hit_rate` is the estimate that decode rests on, None where no expert can miss; `measured` is
    the date of the machine's figures.
    """

    decode: float | None = None
    prefill: float | None = None
    hit_rate: float | None = None
    measured: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """`device` is "cpu", "cuda:N", or "cuda" for a GPU that was described by the memory it has."""

    directory: Path
    family: str
    device: str
    dtype: str  # of computation
    stored: tuple[str, ...]  # formats of the experts in the checkpoint
    parameters: int
    active_parameters: int
    per_token: int  # experts
    sizes: ModelSizes
    plan: Plan
    speed: Speed


def preview(directory: Path, options: EngineOptions) -> Preview:
    """The plan for the model of `directory`, whether it fits or not, and the speed to expect.

    With `options.vram` and the device left to choose, it is for a GPU with so much memory, be there one or
    not; else for the device that loading would take, with what is free there now. `options.ram` stands for
    free host memory. Raises LoadFailed for a checkpoint that could not be loaded anywhere, ConfigError for an
    option that cannot be honoured.
    """
    described = options.device == "auto" and options.vram is not None
    asked = replace(options, device="cuda") if described else options
    opened = open_model(directory, asked, device=torch.device("cuda") if described else None)
    host = psutil.virtual_memory().available
    where = str(directory)
    if opened.device.type == "cpu":
        sizes = model_sizes(opened, opened.formats)
        plan = draft_cpu(sizes, options, host, where)
    else:
        sizes = model_sizes(opened, device_formats(opened))
        plan = draft_device(sizes, options, _device_bytes(opened, options, described), host, where)
    return Preview(
        directory=directory,
        family=opened.config.family,
        device=str(opened.device),
        dtype=_name(opened.dtype),
        stored=tuple(sorted({_name(stored.dtype) for stored in opened.formats})),
        parameters=parameters(opened.config),
        active_parameters=parameters(opened.config, active=True),
        per_token=opened.config.experts_per_token,
        sizes=sizes,
        plan=plan,
        speed=_speed(opened, sizes, plan),
    )


def _device_bytes(opened: Opened, options: EngineOptions, described: bool) -> int:
    """Free bytes of the device: all of one that is described."""
    if described:
        return option_bytes("vram", options.vram) or 0
    return torch.cuda.mem_get_info(opened.device)[0]


def _speed(opened: Opened, sizes: ModelSizes, plan: Plan) -> Speed:
    """Of a plan that fits, on a machine that was measured."""
    if plan.refusals:
        return Speed(unknown="the model does not fit")
    cuda = opened.device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        return Speed(unknown="this machine has no such GPU to be measured")
    profile = calibrate(record_sizes(opened), (opened.device.index or 0) if cuda else None).profile
    if profile is None:
        return Speed(unknown="this machine was not measured: run `ftagent bench bandwidth`")
    missing = _unmeasured(opened, sizes, plan, profile)
    if missing is not None:
        return Speed(measured=profile.date, unknown=missing)
    work = work_of(opened.config, sizes)
    if not cuda:
        return _cpu_speed(work, _rates(opened, profile), profile)
    return _device_speed(opened, work, plan, profile)


def _cpu_speed(work: Work, rates: Rates, profile: Profile) -> Speed:
    prefill = cpu_prefill(work, Runner.chunk_tokens, rates) if work.moe_layers else None
    unknown = None if work.moe_layers else "products of prompts without experts are not measured on the CPU"
    return Speed(cpu_decode(work, rates), prefill, measured=profile.date, unknown=unknown)


def _device_speed(opened: Opened, work: Work, plan: Plan, profile: Profile) -> Speed:
    rates, total = _rates(opened, profile), work.moe_layers * work.experts
    slow = opened.config.unchained
    found = hit_rate(plan.slots / total) if total else None
    return Speed(
        decode=None if slow else device_decode(work, plan.slots, plan.mode, rates),
        prefill=None if plan.mode == "cpu" else device_prefill(work, plan.slots, plan.chunk_tokens, rates),
        hit_rate=found,
        measured=profile.date,
        unknown=f"decode takes the way of prompts ({slow})" if slow else None,
    )


def _unmeasured(opened: Opened, sizes: ModelSizes, plan: Plan, profile: Profile) -> str | None:
    """What of the figures that the speed depends on is not there, and how to come by it."""
    if opened.device.type == "cpu":
        if plan.slots < sizes.experts and not sizes.shared:
            return f"experts stored as {_name(opened.formats[0].dtype)} are not measured on the CPU"
        if profile.read_bytes_per_s is None:
            return "memory was not measured: run `ftagent bench bandwidth`"
    elif profile.device_bytes_per_s is None:
        return "the GPU's memory was not measured: run `ftagent bench bandwidth`"
    dtype = _name(opened.dtype)
    if sizes.experts and profile.cpu_for(dtype, sizes.slot_bytes) is None:
        return f"experts in {dtype} were not measured: run `ftagent bench bandwidth` with this model"
    return None


def _rates(opened: Opened, profile: Profile) -> Rates:
    costs = costs_from(profile, record_sizes(opened))
    if opened.device.type == "cuda":
        return Rates(costs, profile.device_bytes_per_s or 1, *DEVICE_NS)
    return Rates(costs, profile.read_bytes_per_s or 1, *CPU_NS)


def work_of(config: ModelConfig, sizes: ModelSizes) -> Work:
    """What a token of this model asks for."""
    table = 0 if config.tied else config.vocab * config.hidden * sizes.itemsize
    moe_layers = len(config.moe_layers)
    return Work(
        layers=len(config.layers),
        moe_layers=moe_layers,
        experts=config.experts if moe_layers else 0,
        per_token=config.experts_per_token if moe_layers else 0,
        intermediate=config.expert_intermediate,
        expert_weights=3 * config.hidden * config.expert_intermediate,
        expert_bytes=sizes.slot_bytes,
        dense_bytes=sizes.dense - table,
        weights=parameters(config, active=True),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
