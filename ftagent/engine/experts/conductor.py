"""The Python face of the conductor: one native thread that serves the misses of decode steps.

It reads what the decode kernels post in the mailbox, shares missing experts between link and CPU, and answers
with plans; see machine/native/conductor.h for how, `mailbox` for where. Knows addresses, not tensors. Python
waits here for a step's end and never takes part in one.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Collection, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from dataclasses import astuple, dataclass
from typing import NamedTuple, Protocol

from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.link import Link
from ftagent.engine.experts.mailbox import MailboxLayout, Offsets
from ftagent.engine.experts.native_policy import NativePolicy, bind
from ftagent.engine.experts.sizing import slots_in_reserve
from ftagent.engine.machine.handles import Handle
from ftagent.engine.options import Mode

log = logging.getLogger(__name__)

MODES: tuple[Mode, ...] = ("hybrid", "offload", "cpu")  # by the library's numbers
MOST_PAIRS = 1024  # of a layer
_MESSAGE = 500  # bytes for a sentence from the library


class Executor(Protocol):
    """The CPU side: `handle` is the address of the ft::Executor."""

    @property
    def handle(self) -> int: ...

    @property
    def native(self) -> Handle: ...


class Addresses(NamedTuple):
    """Where things lie. All but `mailbox` and `rows` are the device's addresses."""

    mailbox: int
    rows: Sequence[int]  # host rows of all experts, [layers * experts]
    slots: Sequence[int]  # [slots]
    slot_of: int  # int32 [layers, experts]
    landed: int  # int32 [slots], zeros


@dataclass(frozen=True)
class ConductorOptions:
    """`core`: to pin the thread to, None for none. `grain`: records by which an expert is shared. `reserve`:
    slots kept free for look-ahead and backfill, None for a few. `piece_bytes`: what they move at a time;
    `pieces` of them may be under way, which is what a layer's own copies wait for at most. `watchdog_s`:
    longest CPU part or copy; `post_s`: longest wait for the device's next layer.
    """

    mode: Mode = "hybrid"
    core: int | None = None
    grain: int = 16
    reserve: int | None = None
    piece_bytes: int = 2 << 20
    pieces: int = 1
    watchdog_s: float = 1.0
    post_s: float = 5.0


class StepCounters(NamedTuple):
    """One step. An expert that a layer needs counts once, however many rows need it."""

    hits: int
    misses: int
    fetched: int  # missing experts that came whole while the layer waited
    split: int  # shared by link and CPU
    cpu_experts: int  # computed by the CPU, wholly or in part
    backfilled: int  # completed on an idle link after the CPU had computed them
    guessed: int  # look-ahead fetches begun
    guess_used: int  # experts from look-ahead at their first use
    evictions: int
    bytes_link: int  # all that was put on the link
    bytes_cpu: int  # weights that the CPU read
    link_ns: int  # sum over layers of the time from the request to the last copy waited for
    cpu_ns: int  # sum over layers of the time of the CPU's part
    records_fetched: int
    records_missed: int
    records_optimum: int  # that the split would have fetched with the constants measured since
    layer_hits: tuple[int, ...]
    layer_misses: tuple[int, ...]

    @property
    def q(self) -> float | None:
        """Share of the missing records that came over the link while the layer waited."""
        return self.records_fetched / self.records_missed if self.records_missed else None

    @property
    def optimum(self) -> float | None:
        """What `q` would have been with the constants measured since."""
        return self.records_optimum / self.records_missed if self.records_missed else None


class LayerTimes(NamedTuple):
    """Of one layer of a step, in nanoseconds since the step was asked for; 0 for what there was not."""

    post: int  # the device named the layer's experts
    answered: int
    landed: int  # the copies that the layer waits for
    computed: int  # the CPU's part


class _Costs(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64) for name in ("fetch_fixed", "fetch_expert", "cpu_fixed", "cpu_expert", "cpu_row")
    )


class _Offsets(ctypes.Structure):
    _fields_ = tuple((name, c_int64) for name in Offsets._fields)


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, c_int64) for name in StepCounters._fields[:-2])


class _Setup(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("layers", "experts", "rows", "per_token", "guesses")),
        *((name, c_int32) for name in ("hidden", "intermediate", "itemsize")),
        ("offsets", _Offsets),
        ("mailbox", c_uint64),
        ("rows_at", POINTER(c_uint64)),
        ("slots_at", POINTER(c_uint64)),
        ("slot_of", c_uint64),
        ("landed", c_uint64),
        ("policy", c_void_p),
        ("executor", c_void_p),
        ("link", c_void_p),
        ("costs", _Costs),
        *((name, c_int32) for name in ("mode", "core", "grain", "reserve")),
        ("piece_bytes", c_int64),
        ("pieces", c_int32),
        ("watchdog_ns", c_int64),
        ("post_ns", c_int64),
    )


class Conductor:
    """Serves steps of `layout.layers` layers. Keeps policy, executor and link alive; they are its own while a
    step runs and until `settle`.
    """

    def __init__(
        self,
        layout: MailboxLayout,
        intermediate: int,
        addresses: Addresses,
        policy: NativePolicy,
        executor: Executor | None,
        link: Link,
        costs: CostModel,
        options: ConductorOptions,
    ) -> None:
        assert (policy.layers, policy.experts) == (layout.layers, layout.experts), "policy and layout differ"
        assert len(addresses.rows) == layout.layers * layout.experts, f"{len(addresses.rows)=}"
        assert len(addresses.slots) == policy.slots, f"{len(addresses.slots)=}"
        assert layout.pairs <= MOST_PAIRS, f"{layout.pairs} pairs of a layer; at most {MOST_PAIRS}"
        self._layout = layout
        self._library = policy.library
        _bind_all(self._library)
        self._keep = (policy, executor, link)
        self._rows = (c_uint64 * len(addresses.rows))(*addresses.rows)
        self._slots = (c_uint64 * len(addresses.slots))(*addresses.slots)
        setup = self._setup(intermediate, addresses, costs, options)
        self.failed: str | None = None
        """Why the last step failed: its result must not be used, and the device's tables are to be written
        anew from the policy."""
        self.mode: Mode = options.mode
        """In which the last step ran, or the one after a fall-back will."""
        address = self._library.ft_conductor_new(byref(setup))
        self._native = Handle(address, self._library.ft_conductor_free)
        for part in (policy, executor, link):
            if part is not None:
                part.native.used_by(self._native)

    def _setup(
        self, intermediate: int, addresses: Addresses, costs: CostModel, options: ConductorOptions
    ) -> _Setup:
        policy, executor, link = self._keep
        layout = self._layout
        reserve = options.reserve
        if reserve is None:
            reserve = slots_in_reserve(policy.slots, layout.per_token)
        sizes = (layout.layers, layout.experts, layout.rows, layout.per_token, layout.guesses, layout.hidden)
        return _Setup(
            *sizes,
            intermediate,
            layout.itemsize,
            _Offsets(*layout.offsets),
            addresses.mailbox,
            self._rows,
            self._slots,
            addresses.slot_of,
            addresses.landed,
            policy.handle,
            executor.handle if executor is not None else None,
            link.handle,
            _Costs(*astuple(costs)),
            _mode_number(options.mode),
            -1 if options.core is None else options.core,
            options.grain,
            reserve,
            options.piece_bytes,
            options.pieces,
            int(options.watchdog_s * 1e9),
            int(options.post_s * 1e9),
        )

    def close(self) -> None:
        """Settle and end the thread. Waits for a step that runs."""
        self._native.close()

    @property
    def _handle(self) -> int:
        return self._native.address

    def begin_step(self, epoch: int, rows: int) -> None:
        """Before the step is launched. `epoch` is positive and differs from the last one; `rows` are live."""
        assert 0 < epoch < 1 << 31, f"{epoch=}"
        assert 0 < rows <= self._layout.rows, f"{rows=}"
        self._library.ft_conductor_begin(self._handle, epoch, rows)

    def end_step(self) -> StepCounters:
        """Wait until the last layer is served. `failed` then says how the step went; after a failure the
        conductor is settled.
        """
        counts = _Counts()
        layers = self._layout.layers
        per_layer = (c_int64 * (2 * layers))()
        whole = self._library.ft_conductor_end(self._handle, byref(counts), per_layer)
        before, self.mode = self.mode, MODES[self._library.ft_conductor_mode(self._handle)]
        self.failed = None if whole else self._failure()
        if self.failed is not None:
            fallback = f"; falling back from {before} to {self.mode}" if before != self.mode else ""
            log.warning("a decode step failed: %s%s", self.failed, fallback)
        values = {name: getattr(counts, name) for name in StepCounters._fields[:-2]}
        return StepCounters(
            **values, layer_hits=tuple(per_layer[:layers]), layer_misses=tuple(per_layer[layers:])
        )

    def layer_times(self) -> list[LayerTimes]:
        """When each layer of the last step was served."""
        flat = (c_int64 * (4 * self._layout.layers))()
        self._library.ft_conductor_times(self._handle, flat)
        return [LayerTimes(*flat[at : at + 4]) for at in range(0, len(flat), 4)]

    def settle(self) -> None:
        """End or drop what is in flight. Until the next step policy, executor and link are the caller's."""
        self._library.ft_conductor_settle(self._handle)

    def set_mode(self, mode: Mode) -> None:
        """From the next step on; without a sound CPU side or link the step runs in the mode that is left."""
        self._library.ft_conductor_set_mode(self._handle, _mode_number(mode))

    @property
    def costs(self) -> CostModel:
        """As corrected by the steps so far."""
        costs = _Costs()
        self._library.ft_conductor_costs(self._handle, byref(costs))
        return CostModel(
            costs.fetch_fixed, costs.fetch_expert, costs.cpu_fixed, costs.cpu_expert, costs.cpu_row
        )

    def set_costs(self, costs: CostModel) -> None:
        """From the next step on."""
        self._library.ft_conductor_set_costs(self._handle, byref(_Costs(*astuple(costs))))

    def set_watchdog(self, watchdog_s: float, post_s: float) -> None:
        """See ConductorOptions. The first layer of a step may take six times as long to be posted."""
        self._library.ft_conductor_watchdog(self._handle, int(watchdog_s * 1e9), int(post_s * 1e9))

    def set_unlinked(self, layers: Collection[int]) -> None:
        """Settles, and leaves the missing experts of `layers` to the CPU in mode hybrid: no look-ahead and no
        backfill either. For layers whose host memory could not be registered, from where the driver's copies
        block the thread that asks for them. In mode offload, and without a CPU side, they still come over
        the link.
        """
        flags = (c_uint8 * self._layout.layers)(*(layer in layers for layer in range(self._layout.layers)))
        self._library.ft_conductor_unlinked(self._handle, flags)

    def check_integrity(self) -> None:
        """Settle, then raise AssertionError when anything is left in flight or the tables disagree."""
        message = ctypes.create_string_buffer(_MESSAGE)
        sound = self._library.ft_conductor_check(self._handle, message, _MESSAGE)
        assert sound, message.value.decode()

    def _failure(self) -> str:
        message = ctypes.create_string_buffer(_MESSAGE)
        self._library.ft_conductor_failure(self._handle, message, _MESSAGE)
        return message.value.decode()


def _mode_number(mode: Mode) -> int:
    if mode not in MODES:
        raise ValueError(f"the conductor has no mode {mode!r}; it has {', '.join(MODES)}")
    return MODES.index(mode)


def _bind_all(library: ctypes.CDLL) -> None:
    handle = c_void_p
    bind(library, "ft_conductor_new", c_void_p, POINTER(_Setup))
    for name in ("free", "settle"):
        bind(library, f"ft_conductor_{name}", None, handle)
    bind(library, "ft_conductor_begin", None, handle, c_int32, c_int32)
    bind(library, "ft_conductor_end", c_int, handle, POINTER(_Counts), POINTER(c_int64))
    bind(library, "ft_conductor_times", None, handle, POINTER(c_int64))
    bind(library, "ft_conductor_set_mode", None, handle, c_int32)
    bind(library, "ft_conductor_mode", c_int32, handle)
    bind(library, "ft_conductor_set_costs", None, handle, POINTER(_Costs))
    bind(library, "ft_conductor_costs", None, handle, POINTER(_Costs))
    bind(library, "ft_conductor_watchdog", None, handle, c_int64, c_int64)
    bind(library, "ft_conductor_unlinked", None, handle, POINTER(c_uint8))
    for name in ("failure", "check"):
        kind = None if name == "failure" else c_int
        bind(library, f"ft_conductor_{name}", kind, handle, c_char_p, c_int)
