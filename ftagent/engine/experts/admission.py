"""Which experts of a layer deserve a slot after a prompt has been routed: prefill warms the slots.

Pure integers. A layer's share of the slots goes to the experts that most rows of the prompt asked for; the
others of the layer make way. Slots of other layers are left alone, so one long prompt does not push out what
the layers behind it are about to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Slots(Protocol):
    """What is needed of `policy.ExpertPolicy`."""

    slots: int
    layers: int

    @property
    def resident(self) -> int: ...

    def lookup(self, layer: int, expert: int, /) -> int | None: ...


class Admission(NamedTuple):
    """`expert` should get a slot: a free one, or the one of `victim` of the same layer."""

    expert: int
    victim: int | None


def admissions(
    policy: Slots, layer: int, rows: Sequence[int], staged: Sequence[int], computed: int
) -> list[Admission]:
    """Admissions among `staged` missing experts, whose copies are on the device now.

    `rows` are this pass's rows of each expert of the layer. Experts from `computed` on may still be read in
    their slots by work that is not queued yet, so only those before it, and those that nobody asked for, make
    way. An expert with not more rows than its victim stays out.
    """
    resident = [expert for expert in range(len(rows)) if policy.lookup(layer, expert) is not None]
    share = max(policy.slots // policy.layers, 1)
    free = min(policy.slots - policy.resident, max(share - len(resident), 0))
    victims = sorted(
        (expert for expert in resident if expert < computed or not rows[expert]),
        key=lambda expert: (rows[expert], expert),
    )
    found: list[Admission] = []
    for expert in sorted(staged, key=lambda expert: (-rows[expert], expert)):
        if free:
            free -= 1
            found.append(Admission(expert, None))
        elif victims and rows[victims[0]] < rows[expert]:
            found.append(Admission(expert, victims.pop(0)))
        else:
            break
    return found
