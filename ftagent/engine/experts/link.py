"""The native copy stream into device slots: through the CUDA driver, or a loopback for tests.

Copies, then writes of 4-byte words behind them, in the order of submission. Knows addresses, no experts.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from ftagent.engine.experts.native_policy import bind
from ftagent.engine.machine.handles import Handle
from ftagent.errors import EngineError

DRIVER = "libcuda.so.1"
_MESSAGE = 400  # bytes for a sentence from the library


class LinkFailed(EngineError):
    """Copies into the device's slots fail; the message names the driver's call and error."""


class Copy(NamedTuple):
    """`bytes` from host memory at `source` to the device's at `target`."""

    target: int
    source: int
    bytes: int


class Write(NamedTuple):
    """A 32-bit word at a device address."""

    address: int
    value: int


class _Copy(ctypes.Structure):
    _fields_ = (("target", c_uint64), ("source", c_uint64), ("bytes", c_int64))


class _Write(ctypes.Structure):
    _fields_ = (("address", c_uint64), ("value", c_uint32))


class _Options(ctypes.Structure):
    _fields_ = (
        ("bytes_per_s", c_double),
        ("max_delay_ns", c_int64),
        ("seed", c_uint32),
        ("fail_at", c_int64),
        ("stall_at", c_int64),
    )


class Link:
    """A copy stream. One thread at a time may submit: the conductor's, once it has the link."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self.native = Handle(handle, library.ft_link_free)

    @property
    def handle(self) -> int:
        """Address of the ft::Link, for the conductor; 0 once closed."""
        return self.native.address

    def close(self) -> None:
        """Waits for what is under way."""
        self.native.close()

    def submit(self, copies: Sequence[Copy], writes: Sequence[Write] = ()) -> int:
        """Number of the submission. Returns before the copies are done. Raises LinkFailed."""
        packed = (_Copy * len(copies))(*(_Copy(*copy) for copy in copies))
        words = (_Write * len(writes))(*(_Write(write.address, write.value & 0xFFFFFFFF) for write in writes))
        mark = self._library.ft_link_submit(self.handle, packed, len(copies), words, len(writes))
        if not mark:
            raise LinkFailed(self.error)
        return int(mark)

    def wait(self, mark: int, timeout_s: float) -> None:
        """Until a submission is done. Raises LinkFailed on an error or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self._library.ft_link_reached(self.handle, mark):
            if not self._library.ft_link_sound(self.handle):
                raise LinkFailed(self.error)
            if time.monotonic() > deadline:
                raise LinkFailed(f"a copy to the device did not end within {timeout_s} s")

    @property
    def error(self) -> str:
        """Empty while all is well."""
        text: bytes = self._library.ft_link_error(self.handle)
        return text.decode()


def cuda_link(library: ctypes.CDLL, device: int, driver: str = DRIVER) -> Link:
    """A stream of the highest priority on the device's primary context. Raises LinkFailed."""
    _bind_all(library)
    message = ctypes.create_string_buffer(_MESSAGE)
    handle = library.ft_link_cuda_new(device, driver.encode(), message, _MESSAGE)
    if not handle:
        raise LinkFailed(f"no copy stream on CUDA device {device}: {message.value.decode()}")
    return Link(library, handle)


def loopback_link(
    library: ctypes.CDLL,
    bytes_per_s: float = 0,
    max_delay_s: float = 0,
    seed: int = 0,
    fail_at: int = 0,
    stall_at: int = 0,
) -> Link:
    """The same with memcpy on a thread; `target` is host memory. A submission ends after the time that
    `bytes_per_s` gives it (0: none) and a random delay. From `fail_at` on (from 1) submissions are refused,
    from `stall_at` on they never end.
    """
    _bind_all(library)
    options = _Options(bytes_per_s, int(max_delay_s * 1e9), seed, fail_at, stall_at)
    return Link(library, library.ft_link_loopback_new(byref(options)))


def _bind_all(library: ctypes.CDLL) -> None:
    handle = c_void_p
    bind(library, "ft_link_cuda_new", c_void_p, c_int, c_char_p, c_char_p, c_int)
    bind(library, "ft_link_loopback_new", c_void_p, POINTER(_Options))
    bind(library, "ft_link_free", None, handle)
    bind(library, "ft_link_submit", c_uint32, handle, POINTER(_Copy), c_int, POINTER(_Write), c_int)
    bind(library, "ft_link_reached", c_int, handle, c_uint32)
    bind(library, "ft_link_sound", c_int, handle)
    bind(library, "ft_link_error", c_char_p, handle)
