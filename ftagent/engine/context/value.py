"""What an anchor is worth, and which one goes first. Pure integers: knows no tree, no pool and no clock.

The order within a rank is GreedyDual-Size (Cao and Irani, 1997): worth is time saved per byte, on top of
the level that the last victim had when the anchor was last used, so that what is worth much but never used
goes in the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

_SCALE = 1 << 20  # keeps fractions of a token per byte

# A conversation that has not been used for so many requests may give way to a request that nobody has
# continued yet.
STALE_REQUESTS = 256


class Rank(IntEnum):
    """Lower ranks go first, whatever the worth."""

    ONE_SHOT = 0  # of a request that nobody has continued or shared: a title, a summary
    SHARED = 1  # of a conversation, or used by several
    NEWEST = 2  # where a conversation goes on


class Order(NamedTuple):
    """Sorts anchors, the first to go first."""

    rank: Rank
    level: int


def worth(gap_tokens: int, ns_per_token: int, freed_bytes: int) -> int:
    """Time saved per byte: `gap_tokens` lie between the anchor and the place before it where a request could
    resume, and `freed_bytes` of snapshot and pages are held for it alone.

    >>> worth(2000, 10, 1 << 20) > worth(100, 10, 1 << 20)
    True
    """
    return gap_tokens * ns_per_token * _SCALE // max(freed_bytes, 1)


def rank_of(*, newest: bool, goes_on: bool, uses: int) -> Rank:
    """`goes_on`: its conversation has had several turns or will have, and with `newest` from here. `uses`
    requests have resumed at the anchor.
    """
    if not goes_on and not uses:
        return Rank.ONE_SHOT
    return Rank.NEWEST if newest and goes_on else Rank.SHARED


def may_displace(goes_on: bool, rank: Rank, idle_requests: int) -> bool:
    """Whether a request, of a conversation that `goes_on` or not, may have an anchor of `rank` dropped to
    keep its own, when that anchor's conversation was last used `idle_requests` requests ago.
    """
    return goes_on or rank is not Rank.NEWEST or idle_requests > STALE_REQUESTS
