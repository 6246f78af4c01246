"""What each protocol's usage says besides its own fields. Clients take fields that they do not know."""

from __future__ import annotations

from typing import Any

from ftagent.events import Usage


def divergence_field(usage: Usage) -> dict[str, Any]:
    """`prompt_divergence`, where the prompt changed though it should have continued the one before it."""
    found = usage.divergence
    if found is None:
        return {}
    names = ("turn", "token", "block", "lost")
    return {"prompt_divergence": {name: getattr(found, name) for name in names}}
