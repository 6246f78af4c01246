"""ExpertPolicy with its tables in the native library, where prefill (Python) and the conductor share them.

Same methods and same decisions as `policy.ExpertPolicy`, which is the specification; a property test holds
both equal. Not safe for two threads at once: Python may call it only while the conductor is settled.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_void_p

from ftagent.engine.experts.policy import ExpertPolicy, Placement, Worth
from ftagent.engine.machine.handles import Handle

_MESSAGE = 200  # bytes for a sentence from the library


class _Placement(ctypes.Structure):
    _fields_ = (("slot", c_int32), ("evicted", c_int32))


class _Worth(ctypes.Structure):
    _fields_ = (("step", c_int64), ("frequency", c_int64))


def bind(library: ctypes.CDLL, name: str, result: type | None, *arguments: object) -> None:
    """Declare a function of the library; ctypes would take 64-bit handles for ints otherwise."""
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments


class NativePolicy:
    """Look-up table and replacement of `slots` slots for `layers` x `experts` experts; see ExpertPolicy."""

    def __init__(self, library: ctypes.CDLL, layers: int, experts: int, slots: int, floor: int) -> None:
        assert min(layers, experts, slots) > 0, f"policy: {layers=} {experts=} {slots=}"
        assert 0 <= floor * layers <= slots, f"floor {floor} x {layers} layers does not fit {slots} slots"
        self.layers = layers
        self.experts = experts
        self.slots = slots
        self.floor = floor
        self.library = library  # for the conductor
        _bind_all(library)
        self.native = Handle(library.ft_policy_new(layers, experts, slots, floor), library.ft_policy_free)

    @property
    def handle(self) -> int:
        """Address of the ft::Policy, for the conductor."""
        return self.native.address

    @property
    def resident(self) -> int:
        return int(self.library.ft_policy_resident(self.handle))

    def layer_resident(self, layer: int) -> int:
        self._check_key(layer, 0)
        return int(self.library.ft_policy_layer_resident(self.handle, layer))

    def begin_step(self) -> None:
        self.library.ft_policy_begin_step(self.handle)

    def lookup(self, layer: int, expert: int) -> int | None:
        self._check_key(layer, expert)
        slot = self.library.ft_policy_lookup(self.handle, layer, expert)
        return None if slot < 0 else int(slot)

    def layer_slots(self, layer: int) -> list[int | None]:
        self._check_key(layer, 0)
        found = (c_int32 * self.experts)()
        self.library.ft_policy_layer_slots(self.handle, layer, found)
        return [None if slot < 0 else slot for slot in found]

    def slot(self, layer: int, expert: int) -> int:
        slot = self.lookup(layer, expert)
        if slot is None:
            raise KeyError(expert)
        return slot

    def use(self, layer: int, expert: int) -> None:
        self.slot(layer, expert)
        self.library.ft_policy_use(self.handle, layer, expert)

    def miss(self, layer: int, expert: int) -> None:
        self._check_missing(layer, expert)
        self.library.ft_policy_miss(self.handle, layer, expert)

    def place(self, layer: int, expert: int, used: bool = True) -> Placement | None:
        self._check_missing(layer, expert)
        out = _Placement()
        if not self.library.ft_policy_place(self.handle, layer, expert, used, byref(out)):
            return None
        return self._placement(out)

    def evict(self, layer: int, worth: Worth | None = None) -> Placement | None:
        self._check_key(layer, 0)
        out = _Placement()
        limit = None if worth is None else byref(_Worth(*worth))
        if not self.library.ft_policy_evict(self.handle, layer, limit, byref(out)):
            return None
        return self._placement(out)

    def remove(self, layer: int, expert: int) -> int:
        slot = self.slot(layer, expert)
        assert not self.library.ft_policy_pinned(self.handle, slot), f"slot {slot} is pinned"
        return int(self.library.ft_policy_remove(self.handle, layer, expert))

    def pin(self, slot: int) -> None:
        self._check_slot(slot)
        self.library.ft_policy_pin(self.handle, slot)

    def unpin(self, slot: int) -> None:
        self._check_slot(slot)
        assert self.library.ft_policy_unpin(self.handle, slot), f"slot {slot} is not pinned"

    def frequency(self, layer: int, expert: int) -> int:
        self._check_key(layer, expert)
        return int(self.library.ft_policy_frequency(self.handle, layer, expert))

    def worth(self, layer: int, expert: int) -> Worth:
        self._check_key(layer, expert)
        out = _Worth()
        self.library.ft_policy_worth(self.handle, layer, expert, byref(out))
        return Worth(out.step, out.frequency)

    def frequencies(self) -> list[int]:
        values = (c_int64 * (self.layers * self.experts))()
        self.library.ft_policy_frequencies(self.handle, values)
        return list(values)

    def restore(self, frequencies: list[int]) -> None:
        assert len(frequencies) == self.layers * self.experts, f"{len(frequencies)=}"
        self.library.ft_policy_restore(self.handle, (c_int64 * len(frequencies))(*frequencies))

    def check_integrity(self) -> None:
        message = ctypes.create_string_buffer(_MESSAGE)
        sound = self.library.ft_policy_check(self.handle, message, _MESSAGE)
        assert sound, message.value.decode()

    def _placement(self, out: _Placement) -> Placement:
        return Placement(out.slot, None if out.evicted < 0 else divmod(out.evicted, self.experts))

    def _check_key(self, layer: int, expert: int) -> None:
        # The library does not look: an index out of bounds would damage memory.
        if not (0 <= layer < self.layers and 0 <= expert < self.experts):
            raise IndexError(f"expert {expert} of layer {layer}; {self.layers} layers of {self.experts}")

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} of {self.slots}")

    def _check_missing(self, layer: int, expert: int) -> None:
        assert self.lookup(layer, expert) is None, f"expert {expert} of layer {layer} is resident already"


Policy = ExpertPolicy | NativePolicy
"""Either: the caller need not know which."""


def make_policy(library: ctypes.CDLL | None, layers: int, experts: int, slots: int, floor: int) -> Policy:
    """The native policy where there is a library, else the Python one."""
    if library is None:
        return ExpertPolicy(layers, experts, slots, floor)
    return NativePolicy(library, layers, experts, slots, floor)


def _bind_all(library: ctypes.CDLL) -> None:
    placement, worth, values = POINTER(_Placement), POINTER(_Worth), POINTER(c_int64)
    handle = c_void_p
    bind(library, "ft_policy_new", c_void_p, c_int, c_int, c_int, c_int)
    bind(library, "ft_policy_free", None, handle)
    for name in ("resident", "begin_step"):
        bind(library, f"ft_policy_{name}", None if name == "begin_step" else c_int, handle)
    for name in ("layer_resident", "pinned", "unpin"):
        bind(library, f"ft_policy_{name}", c_int, handle, c_int)
    bind(library, "ft_policy_pin", None, handle, c_int)
    bind(library, "ft_policy_layer_slots", None, handle, c_int, POINTER(c_int32))
    for name in ("lookup", "remove"):
        bind(library, f"ft_policy_{name}", c_int, handle, c_int, c_int)
    for name in ("use", "miss"):
        bind(library, f"ft_policy_{name}", None, handle, c_int, c_int)
    bind(library, "ft_policy_place", c_int, handle, c_int, c_int, c_int, placement)
    bind(library, "ft_policy_evict", c_int, handle, c_int, worth, placement)
    bind(library, "ft_policy_frequency", c_int64, handle, c_int, c_int)
    bind(library, "ft_policy_worth", None, handle, c_int, c_int, worth)
    bind(library, "ft_policy_frequencies", None, handle, values)
    bind(library, "ft_policy_restore", None, handle, values)
    bind(library, "ft_policy_check", c_int, handle, c_char_p, c_int)
