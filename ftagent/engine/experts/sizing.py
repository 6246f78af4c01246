"""From the user's `experts` option to a number of slots, and how layers share them. Pure; knows sizes, not
tensors.
"""

from __future__ import annotations

from ftagent.errors import ConfigError
from ftagent.settings import parse_size


def slots_from_option(option: str, experts: int, slot_bytes: int) -> int:
    """Slots for "96" (count), "0.5" (fraction of all `experts`) or "2GiB" (size), at most `experts`.

    Raises ConfigError for anything else, and for room for less than one expert.
    """
    text = option.strip()
    if text.isdigit():
        slots = int(text)
    elif "." in text and text.replace(".", "", 1).isdigit():
        if not 0 < float(text) <= 1:
            raise ConfigError(f"experts: {text} is not a fraction between 0 and 1")
        slots = int(float(text) * experts)
    else:
        try:
            slots = parse_size(text) // slot_bytes
        except ValueError as error:
            raise ConfigError(
                f"experts: {text!r} is neither a count (96), a fraction (0.5) nor a size (2GiB)"
            ) from error
    if slots < 1:
        raise ConfigError(f"experts: {text} holds no expert; one takes {slot_bytes} bytes")
    return min(slots, experts)


def layer_floor(slots: int, layers: int, per_token: int) -> int:
    """Experts of a layer that other layers cannot take: those of one token, or fewer where slots are few, so
    that beside all other layers' floors and the slots kept free one layer finds room for a whole token.
    """
    room = slots - per_token - slots_in_reserve(slots, per_token)
    return min(per_token, max(room, 0) // max(layers - 1, 1), slots // layers)


def rows_with_room(slots: int, layers: int, per_token: int) -> int:
    """Rows of a decode step whose experts all find slots at once, at least 1: more need the CPU."""
    kept = (layers - 1) * layer_floor(slots, layers, per_token) + slots_in_reserve(slots, per_token)
    return max((slots - kept) // per_token, 1)


def slots_in_reserve(slots: int, per_token: int) -> int:
    """Slots kept free for look-ahead and backfill."""
    return min(per_token, slots // 32)
