"""How much host memory kept prompts may take, and how it is divided. Pure integers; knows no torch."""

from __future__ import annotations

import re
from typing import NamedTuple

from ftagent.engine.context.arena import rounded
from ftagent.errors import ConfigError
from ftagent.settings import parse_size

GIB = 2**30
FEWEST_STATES, MOST_STATES = 4, 64  # to resume at, unless the user says otherwise
CPU_STATES_BYTES = GIB  # on the CPU: for states, within these bounds
CPU_PAGES_BYTES, CPU_PART = GIB, 16  # for pages, and the part of what is left that they may take
DEVICE_BYTES, DEVICE_PART = 8 * GIB, 8  # for both: registered memory that nobody else gets


class Kept(NamedTuple):
    """`states` of prompts may be kept to resume at, and beside them `bytes` of what conversations lose."""

    states: int
    bytes: int

    def total(self, state_bytes: int) -> int:
        """Bytes in all, when a state takes `state_bytes`."""
        return self.states * rounded(state_bytes) + self.bytes


NOTHING = Kept(0, 0)


def kept_on_cpu(asked: str | None, state_bytes: int, spare: int) -> Kept:
    """In a process with `spare` bytes left. `asked`: see `EngineOptions.anchors`. Raises ConfigError."""
    pages = max(min(CPU_PAGES_BYTES, spare // CPU_PART), 0)
    states = MOST_STATES
    if state_bytes:
        states = min(MOST_STATES, max(FEWEST_STATES, CPU_STATES_BYTES // state_bytes))
    return _asked(asked, state_bytes, Kept(states, pages))


def kept_for_device(asked: str | None, state_bytes: int, spare: int) -> Kept:
    """For a device, when experts and the process leave `spare` bytes of host memory."""
    return _asked(asked, state_bytes, _divided(max(min(DEVICE_BYTES, spare // DEVICE_PART), 0), state_bytes))


def _asked(asked: str | None, state_bytes: int, default: Kept) -> Kept:
    if asked is None:
        return default
    if re.fullmatch(r"\d+", asked):
        return Kept(int(asked), default.bytes) if int(asked) else NOTHING
    try:
        return _divided(parse_size(asked), state_bytes)
    except ValueError as error:
        raise ConfigError(f"anchors: {error}") from error


def _divided(size: int, state_bytes: int) -> Kept:
    """Half of `size` bytes for states, more where few would fit."""
    if not state_bytes:
        return Kept(MOST_STATES, size)
    place = rounded(state_bytes)
    states = max(min(MOST_STATES, size // 2 // place), min(FEWEST_STATES, size // place))
    return Kept(states, size - states * place)
