"""From the user's `experts` option to a number of slots. Pure; knows sizes, not tensors."""

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
