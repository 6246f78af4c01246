"""What two requests share is computed once: the later one waits for the chunks of the earlier one.

An agent that gives up waiting sends the same request again while the first prefill still runs, and subagents
start together behind one long prompt. Pure decisions on integers: knows no pool and no thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ftagent.engine.context.marks import with_fork
from ftagent.engine.context.tree import Key, common_ids

LEAST_SHARED = 32  # tokens that a request must save for it to wait


class Leader(Protocol):
    """A request that runs (`slot` is its own); `computed` tokens of `key` are done."""

    prompt: int
    marks: tuple[int, ...]
    slot: int | None
    computed: int

    def key(self) -> Key: ...


class Awaited(NamedTuple):
    """`leader` computes the first `position` tokens of a prompt that waits."""

    leader: Leader
    position: int

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: they are computed, or the leader runs no more."""
        return self.leader.slot is None or self.leader.computed >= self.position


def find_leader(
    key: Key, length: int, known: int, running: Iterable[Leader], *, stateful: bool
) -> Awaited | None:
    """Whom a prompt of `length` ids had better wait for, if it could be resumed at `known` now.

    With a recurrent state the leader gets a mark where the two part: it can be resumed nowhere else.
    """
    best: Awaited | None = None
    for leader in running:
        shared = min(common_ids(key, leader.key()), length - 1, leader.prompt)
        found = Awaited(leader, shared)
        if shared - known >= LEAST_SHARED and not found.is_over and (best is None or shared > best.position):
            best = found
    if best is None or not stateful:
        return best
    leader = best.leader
    leader.marks = with_fork(leader.marks, leader.computed, best.position)
    mark = Awaited(leader, max((mark for mark in leader.marks if mark <= best.position), default=0))
    return mark if mark.position - known >= LEAST_SHARED and not mark.is_over else None
