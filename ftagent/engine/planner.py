"""Bytes before load: how much memory each pool takes, and what is left for expert slots. Pure integers; knows
neither torch nor files.

The context asked for is served first, the rest goes to experts. A plan that does not fit is refused with need
and have, pool by pool, before a byte of the model is read; `draft_cpu` and `draft_device` give it anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ftagent.engine.context.keeping import NOTHING, Kept, kept_for_device, kept_on_cpu
from ftagent.engine.experts.sizing import slots_from_option
from ftagent.engine.options import EngineOptions, Mode
from ftagent.errors import ConfigError, LoadFailed
from ftagent.settings import parse_size

MIB = 2**20
GIB = 2**30
DEFAULT_CONTEXT = 65536
LEAST_DEFAULT_CONTEXT = 2048
SPARE_KV_BYTES = 384 * MIB  # on the CPU, KV room beyond one full context is given up to this much
RESERVE_BYTES = 600 * MIB  # what CUDA itself, its libraries and captured graphs take
HOST_RESERVE_BYTES = 512 * MIB  # the process beside the banks: interpreter, libraries, read buffers
DECODE_BYTES = 64 * MIB  # buffers of a decode step, logits left out
GROUP_PAIRS = 49_152  # (token, rank) pairs of one prefill pass whose experts are computed together
CHUNKS = (32768, 16384, 8192, 4096, 2048, 1024, 512, 256)  # prompt tokens of one prefill pass
CHUNK_SHARE = 12  # the workspace of a pass takes at most this part of what dense weights and CUDA leave
RING_SHARE = 32  # and the staging ring this part
MOST_STAGED = 64  # experts in the ring: more do not make the link faster
LEAST_STAGED = 4
COPIES_BYTES = 32 * MIB  # of the buffer through which kept prompts pass, at least: fills the link in one copy


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What a model takes, in bytes where nothing else is said."""

    dense: int  # all weights but the routed experts
    experts: int  # number of routed experts in all layers
    per_token: int  # experts per token
    slot_bytes: int  # one expert in a slot
    bank_bytes: int  # all experts in host memory
    page_bytes: int
    page_tokens: int
    state_bytes: int  # recurrent state of one request, and the last keys and values of its window layers
    context: int  # tokens the model was made for
    hidden: int
    widest: int  # values of one token between the layers' matrices, at most
    intermediate: int  # of an expert
    vocab: int
    itemsize: int  # of the compute dtype
    shared: bool = False  # slots may be views of the banks (CPU, stored in the compute dtype)


Kind = Literal[
    "dense",
    "kv",
    "states",
    "slots",
    "staging",
    "prefill",
    "decode",
    "copies",
    "cuda",
    "banks",
    "process",
    "kept",
]


class Pool(NamedTuple):
    """Memory for one purpose: `name` says it to people, with what it is sized for."""

    name: str
    bytes: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be allocated. `pools` lists the device's memory (on the CPU: what a device would hold), and
    `host` what is in the host's.
    """

    context: int  # tokens
    pages: int
    mode: Mode
    slots: int
    pools: tuple[Pool, ...] = ()
    chunk_tokens: int = 1024  # prompt tokens of one pass
    staging: int = 0  # experts in the staging ring
    kept: Kept = NOTHING
    copies_bytes: int = 0  # of the buffer through which kept prompts pass
    host: tuple[Pool, ...] = ()
    have: int | None = None  # bytes of the device that may be used; None on the CPU without a bound
    host_have: int = 0  # and of the host's memory
    refusals: tuple[str, ...] = ()  # what does not fit, a line each; a model is loaded only without

    @property
    def device_bytes(self) -> int:
        return _sum(self.pools)

    @property
    def host_bytes(self) -> int:
        return _sum(self.host)


def plan_cpu(sizes: ModelSizes, options: EngineOptions, free: int, where: str) -> Plan:
    """Everything in host memory, of which `free` bytes are available. `options.vram` bounds what a device
    would hold: dense weights, KV pages, states and expert slots. `where` names the model in messages.

    Raises LoadFailed when the model does not fit, ConfigError for an option that cannot be honoured.
    """
    return _fitting(draft_cpu(sizes, options, free, where))


def draft_cpu(sizes: ModelSizes, options: EngineOptions, free: int, where: str) -> Plan:
    """As `plan_cpu`, but a plan that does not fit is given too, and says so."""
    context = _asked_context(sizes, options) or min(sizes.context, DEFAULT_CONTEXT)
    pages = -(-context // sizes.page_tokens)
    have, vram = option_bytes("ram", options.ram), option_bytes("vram", options.vram)
    have = free * 9 // 10 if have is None else have
    fixed = (
        Pool("dense weights", sizes.dense, "dense"),
        _kv_pool(sizes, pages, context),
        Pool("states", options.max_running * sizes.state_bytes, "states"),
    )
    device = _sum(fixed)
    need = sizes.bank_bytes + device
    slot = max(sizes.slot_bytes, 1)  # a model without experts has slots of nothing
    fitting = sizes.experts if sizes.shared else (have - need) // slot
    if vram is not None:
        fitting = min(fitting, (vram - device) // slot)
    slots = _slots(sizes, options, fitting)
    pools: tuple[Pool, ...] = (*fixed, _slot_pool(sizes, slots))
    refusals = () if vram is None else _refusals(where, "device memory (vram)", pools, vram, _LESS)
    host: tuple[Pool, ...] = (*fixed, Pool("experts", sizes.bank_bytes, "banks"))
    host = host if sizes.shared else (*host, pools[-1])
    kept = kept_on_cpu(options.anchors, sizes.state_bytes, have - _sum(host))
    if options.anchors is not None:  # else it takes what is left
        host = (*host, Pool("kept prompts", kept.total(sizes.state_bytes), "kept"))
    refusals += _refusals(where, "memory", host, have, _less_host(sizes, have, _LESS))
    if vram is None:
        room = min(max(have - _sum(host), 0), SPARE_KV_BYTES - pages * sizes.page_bytes)
        pages += max(min(room // max(sizes.page_bytes, 1), pages * (options.max_running - 1)), 0)
        kv = _kv_pool(sizes, pages, max(context, pages * sizes.page_tokens))
        pools, host = _replaced(pools, kv), _replaced(host, kv)
    return Plan(
        *(context, pages, _mode(options, slots, sizes, refusals), slots, pools),
        kept=kept,
        host=host,
        have=vram,
        host_have=have,
        refusals=refusals,
    )


def plan_device(sizes: ModelSizes, options: EngineOptions, free: int, host_free: int, where: str) -> Plan:
    """Experts in host memory (`host_free` bytes available), all else and some experts on a device with `free`
    bytes, of which `options.vram` may be used in all.

    Raises LoadFailed when the model does not fit, ConfigError for an option that cannot be honoured.
    """
    return _fitting(draft_device(sizes, options, free, host_free, where))


def draft_device(sizes: ModelSizes, options: EngineOptions, free: int, host_free: int, where: str) -> Plan:
    """As `plan_device`, but a plan that does not fit is given too, and says so."""
    have = _device_budget(options, free)
    context = _asked_context(sizes, options)
    copies = max(COPIES_BYTES, sizes.state_bytes)
    fixed: tuple[Pool, ...] = (
        Pool("dense weights", sizes.dense, "dense"),
        Pool("states", options.max_running * sizes.state_bytes, "states"),
        Pool("copies of kept prompts", copies, "copies"),
        Pool("decode", DECODE_BYTES + 2 * 4 * options.max_running * sizes.vocab, "decode"),
        Pool("CUDA", RESERVE_BYTES, "cuda"),
    )
    room = have - _sum(fixed)
    chunk = options.chunk_tokens or _chunk(sizes, room, context or sizes.context)
    staging = _staging(sizes, room)
    prefill = Pool(f"prefill of {chunk} tokens", prefill_bytes(sizes, chunk), "prefill")
    fixed = (*fixed, Pool("staging", staging * sizes.slot_bytes, "staging"), prefill)
    room = have - _sum(fixed)
    context = context or _default_context(sizes, room)
    pages = -(-context // sizes.page_tokens)
    kv = _kv_pool(sizes, pages, context)
    slots = _device_slots(sizes, options, (room - kv.bytes) // max(sizes.slot_bytes, 1))
    pools = (*fixed, kv, _slot_pool(sizes, slots))
    refusals = _refusals(where, "device memory (vram)", pools, have, _LESS_DEVICE)
    if slots == sizes.experts and not refusals:  # what experts leave goes to more requests at once
        spare = (have - _sum(pools)) // max(sizes.page_bytes, 1)
        pages += min(spare, pages * (options.max_running - 1))
        pools = (*fixed, _kv_pool(sizes, pages, pages * sizes.page_tokens), pools[-1])
    ram = option_bytes("ram", options.ram)
    host_have = host_free if ram is None else ram
    kept, host = _plan_host(sizes, options, host_have)
    refusals += _refusals(where, "memory", host, host_have, _remedy(sizes, options, host_have))
    mode = _mode(options, slots, sizes, refusals)
    return Plan(
        *(context, pages, mode, slots, pools, chunk, staging, kept, copies, host, have, host_have, refusals)
    )


def _plan_host(sizes: ModelSizes, options: EngineOptions, have: int) -> tuple[Kept, tuple[Pool, ...]]:
    """Host memory of a device's runner: experts and the process, then kept prompts."""
    host: tuple[Pool, ...] = (
        Pool("experts", sizes.bank_bytes, "banks"),
        Pool("process", HOST_RESERVE_BYTES, "process"),
    )
    kept = kept_for_device(options.anchors, sizes.state_bytes, have - _sum(host))
    return kept, (*host, Pool("kept prompts", kept.total(sizes.state_bytes), "kept"))


def prefill_bytes(sizes: ModelSizes, tokens: int) -> int:
    """Workspace of a pass over `tokens` rows: the residual in float32, three rows of the compute dtype as
    wide as the widest, and activations and outputs of a group of experts' pairs.
    """
    rows = tokens * (4 * sizes.hidden + 3 * sizes.itemsize * sizes.widest)
    pairs = min(tokens * sizes.per_token, GROUP_PAIRS)
    return rows + pairs * sizes.itemsize * (sizes.hidden + sizes.intermediate)


def no_memory(where: str, plan: Plan, reason: str) -> LoadFailed:
    """What to say when the device refuses memory that was planned: somebody else has taken it meanwhile, or
    it lies in pieces.
    """
    return LoadFailed(
        f"{where}: the device has no room for the {plan.device_bytes / GIB:.3f} GiB that were planned "
        f"({_parts(plan.pools)}): {reason}; see what else uses it (nvidia-smi), or use less (--vram)"
    )


def choose_mode(asked: Mode, slots: int, experts: int) -> Mode:
    """The mode that will run. Raises ConfigError when the slots do not allow the one asked for. Without
    experts there is nothing to place, and every mode is the same.
    """
    if not experts:
        return "fused"
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


def option_bytes(name: str, text: str | None) -> int | None:
    """Bytes of a size option; None when it was not given. Raises ConfigError."""
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


_LESS = "ask for a shorter context or fewer experts in slots"
_LESS_DEVICE = "allow more (--vram), or ask for a shorter context (--context) or fewer experts (--experts)"


def _remedy(sizes: ModelSizes, options: EngineOptions, have: int) -> str:
    """What to do when the host's memory does not hold a device's experts and kept prompts."""
    remedy = "use a model with smaller experts"
    if options.anchors is not None:
        remedy = f"keep fewer prompts (--anchors), or {remedy}"
    return _less_host(sizes, have, remedy)


def _less_host(sizes: ModelSizes, have: int, remedy: str) -> str:
    """`remedy`, or more where even the experts alone are more than the host `have`s."""
    if sizes.bank_bytes <= have:
        return remedy
    return "all experts must be in memory, since experts on disk are not supported yet: use a smaller model"


def _refusals(where: str, what: str, pools: tuple[Pool, ...], have: int, remedy: str) -> tuple[str, ...]:
    """Why `pools` are not taken: nothing, or one line."""
    need = _sum(pools)
    if need <= have:
        return ()
    reason = f"{where}: needs {need / GIB:.3f} GiB of {what}, {have / GIB:.3f} GiB may be used"
    return (f"{reason} ({_parts(pools)}); {remedy}",)


def _fitting(plan: Plan) -> Plan:
    """`plan`, which fits. Raises LoadFailed."""
    if plan.refusals:
        raise LoadFailed(plan.refusals[0])
    return plan


def _mode(options: EngineOptions, slots: int, sizes: ModelSizes, refusals: tuple[str, ...]) -> Mode:
    """See `choose_mode`. Of a plan that does not fit only the refusals count."""
    return choose_mode("auto" if refusals else options.mode, slots, sizes.experts)


def _parts(pools: tuple[Pool, ...]) -> str:
    return ", ".join(f"{pool.name} {pool.bytes / GIB:.3f}" for pool in pools if pool.bytes)


def _sum(pools: tuple[Pool, ...]) -> int:
    return sum(pool.bytes for pool in pools)


def _asked_context(sizes: ModelSizes, options: EngineOptions) -> int | None:
    if options.context and options.context > sizes.context:
        raise ConfigError(f"context {options.context} is more than the {sizes.context} tokens of this model")
    return options.context


def _device_budget(options: EngineOptions, free: int) -> int:
    """What may be used of a device: the cap, or what is free less a margin for whoever shares it."""
    available = free - max(256 * MIB, free // 50)
    vram = option_bytes("vram", options.vram)
    return available if vram is None else min(vram, available)


def _default_context(sizes: ModelSizes, room: int) -> int:
    """The default context, halved until its KV leaves half of the room to experts."""
    context = min(sizes.context, DEFAULT_CONTEXT)
    while context > LEAST_DEFAULT_CONTEXT and 2 * sizes.page_bytes * context > room * sizes.page_tokens:
        context //= 2
    return context


def _chunk(sizes: ModelSizes, room: int, context: int) -> int:
    """Prompt tokens of one pass: an expert crosses the link once for each, so as many as memory allows."""
    for tokens in CHUNKS:
        if prefill_bytes(sizes, tokens) <= room // CHUNK_SHARE and tokens <= max(context, CHUNKS[-1]):
            return tokens
    return CHUNKS[-1]


def _staging(sizes: ModelSizes, room: int) -> int:
    if not sizes.experts:
        return 0
    return min(max(room // RING_SHARE // sizes.slot_bytes, LEAST_STAGED), MOST_STAGED)


def _slots(sizes: ModelSizes, options: EngineOptions, fitting: int) -> int:
    """Slots as asked for, or as many as fit."""
    if not sizes.experts:
        return 0
    if options.experts is not None:
        return slots_from_option(options.experts, sizes.experts, sizes.slot_bytes)
    return 0 if options.mode == "cpu" else max(min(sizes.experts, fitting), 0)


def _device_slots(sizes: ModelSizes, options: EngineOptions, fitting: int) -> int:
    """As `_slots`, and the experts of one token at least where a device has to compute them."""
    slots = _slots(sizes, options, fitting)
    least = 0 if options.mode == "cpu" else min(sizes.per_token, sizes.experts)
    if options.experts is not None and slots < least:
        raise ConfigError(f"experts: {slots} slots are fewer than the {least} experts of one token")
    return max(slots, least)


def _slot_pool(sizes: ModelSizes, slots: int) -> Pool:
    return Pool(f"{slots} expert slots", slots * sizes.slot_bytes, "slots")


def _replaced(pools: tuple[Pool, ...], new: Pool) -> tuple[Pool, ...]:
    """`pools` with `new` in the place of the one of its kind."""
    return tuple(new if pool.kind == new.kind else pool for pool in pools)


def _kv_pool(sizes: ModelSizes, pages: int, tokens: int) -> Pool:
    return Pool(f"KV of {tokens} tokens", pages * sizes.page_bytes, "kv")
