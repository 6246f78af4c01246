"""The `experts` option in its three forms."""

from __future__ import annotations

import pytest

from ftagent.engine.experts.sizing import slots_from_option
from ftagent.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "slots"),
    [
        ("96", 96),
        ("1", 1),
        ("9999", 128),
        ("0.5", 64),
        ("1.0", 128),
        ("10KiB", 10),
        ("1KB", 0),
        ("1GiB", 128),
    ],
)
def test_forms(option: str, slots: int) -> None:
    if slots == 0:
        with pytest.raises(ConfigError, match="holds no expert"):
            slots_from_option(option, 128, 1024)
    else:
        assert slots_from_option(option, 128, 1024) == slots


@pytest.mark.parametrize("option", ["", "many", "1.5", "0", "0.0", "-3", "2 XB"])
def test_refusals(option: str) -> None:
    with pytest.raises(ConfigError, match="experts: "):
        slots_from_option(option, 128, 1024)
