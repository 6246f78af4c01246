"""How a prompt's experts should reach the device: gather what is routed, or stream whole layers ahead.

Pure integers, nanoseconds and bytes. A short suffix asks for few experts: waiting for the router and bringing
only those is cheaper. A long one asks for nearly all: then the copies of the next layer need not wait for its
router and run beside this layer's work.
"""

from __future__ import annotations

from typing import NamedTuple

# Routing is correlated: n tokens ask for as many experts as n ** SPREAD independent ones would. Fitted to the
# published counts of a 256-expert top-8 model: 13 % at 8 tokens, 45 % at 64, 76 % at 256, 96 % at 1,024.
SPREAD = 0.69


class PrefillLoad(NamedTuple):
    """One layer of one pass: `tokens` rows, and what the device's own work on them takes."""

    tokens: int
    experts: int
    per_token: int
    missing: int  # experts of the layer that are in no slot
    fetch_ns: int  # one expert over the link
    device_ns: int  # attention, router and experts of one layer, copies left out


def routed_share(tokens: int, experts: int, per_token: int) -> float:
    """Expected share of a layer's experts that `tokens` tokens ask for, 0..1."""
    independent: float = tokens**SPREAD
    missed: float = (1 - per_token / experts) ** independent
    return 1 - missed


def stream_ahead(load: PrefillLoad) -> bool:
    """Whether to copy every missing expert of a layer before its routing is known.

    Streaming hides the copies behind the work of the layer before and copies too many; gathering copies only
    what is asked for, after the router has spoken.
    """
    asked_for = round(load.missing * routed_share(load.tokens, load.experts, load.per_token))
    streamed = max(load.missing * load.fetch_ns, load.device_ns)
    gathered = asked_for * load.fetch_ns + load.device_ns
    return streamed <= gathered


class Group(NamedTuple):
    """Experts [first, last) of a layer that are computed together."""

    first: int
    last: int


def group_experts(rows: list[int], missing: list[bool], most_rows: int, most_missing: int) -> list[Group]:
    """Cut a layer's experts into groups in the order of their ids.

    A group has at most `most_rows` rows (one expert may have more) and `most_missing` missing experts that
    are asked for. The cut depends on the ring and the workspace, so sums of float32 parts are compared within
    a tolerance, not bit by bit, between two machines.
    """
    groups: list[Group] = []
    first = taken = fetched = 0
    for expert, count in enumerate(rows):
        fetch = bool(count) and missing[expert]
        if expert > first and (taken + count > most_rows or fetched + fetch > most_missing):
            groups.append(Group(first, expert))
            first, taken, fetched = expert, 0, 0
        taken += count
        fetched += fetch
    groups.append(Group(first, len(rows)))
    return [group for group in groups if any(rows[group.first : group.last])]
