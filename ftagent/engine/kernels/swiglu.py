"""How the gate and the up side of an MLP become one: the numbers of it, without torch."""

from __future__ import annotations

from typing import NamedTuple


class Swiglu(NamedTuple):
    """(up + offset) * gate * sigmoid(alpha * gate), where gate is at most `limit` and up at most that far
    from zero. As it stands, silu(gate) * up.
    """

    alpha: float = 1.0
    limit: float | None = None
    offset: float = 0.0
