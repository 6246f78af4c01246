"""Which positions of a prompt are worth an anchor. Plain integers; knows no cache and no model."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from ftagent.conversation import Boundary

LAST_EDGES = 3
LAST_USERS = 2
LAST_THINKING = 16
NEAR = 16  # tokens
LEAST_OPENING = 128  # tokens behind system and tools that are worth a file of their own


def choose_marks(
    boundaries: Sequence[Boundary], tokens: int, reply_begins: int | None = None
) -> tuple[int, ...]:
    """Prompt positions, in order, that are worth an anchor. `reply_begins`: where the reply's markup does.

    Agents edit at boundaries, mostly near the end, and share system and tools. Kept are the ends of system
    and tools, the end of what sessions in one place begin with if that is much more, the last LAST_USERS
    blocks of the user, the thinking blocks behind the last one (where the next user turn strips thinking; the
    first and the last LAST_THINKING), the last LAST_EDGES edges, the end of all that was said, and the end of
    the prompt before its last token: that has to be computed when the same prompt is sent again. A mark less
    than NEAR tokens behind another is left out (one as near to the start as well): each costs a state,
    on the CPU a step too, and the earlier one is valid wherever the later one is.
    """
    found = [edge for edge in boundaries if 0 < edge.position <= tokens]
    wanted = {edge.position for edge in found if edge.kind in ("system_end", "tools_end")}
    opening = _opening(found)
    if opening - max((position for position in wanted if position <= opening), default=0) >= LEAST_OPENING:
        wanted.add(opening)
    user = _last_user(found)
    thinking = sorted(
        {edge.position for edge in found if edge.kind == "thinking_start" and edge.position >= user}
    )
    wanted.update(position for position in (user, *thinking[:1], *thinking[-LAST_THINKING:]) if position)
    wanted.update(sorted({edge.position for edge in found})[-LAST_EDGES:])
    wanted.update(sorted({edge.position for edge in found if edge.kind == "user"})[-LAST_USERS:])
    if reply_begins is not None:
        wanted.add(reply_begins)
    marks: list[int] = []
    for position in sorted(wanted | {tokens - 1}):
        if position - (marks[-1] if marks else 0) >= NEAR:
            marks.append(position)
    return tuple(marks)


def lasting_marks(boundaries: Sequence[Boundary], marks: Sequence[int]) -> tuple[int, ...]:
    """The marks whose states are worth keeping for later runs: the deepest in what all of an agent's requests
    begin with, its system text and tools, and in what its sessions in one place begin with.
    """
    ends = [edge.position for edge in boundaries if edge.kind in ("system_end", "tools_end")]
    user = min((edge.position for edge in boundaries if edge.kind == "user"), default=0)
    head = _deepest(marks, max((position for position in ends if position <= user), default=0))
    opening = _deepest(marks, _opening(boundaries))
    return tuple(mark for mark in (head, opening if opening - head >= LEAST_OPENING else 0) if mark)


def _opening(boundaries: Sequence[Boundary]) -> int:
    """Where the user's last block in front of the first reply begins: the person's own words, or what is
    known to change. The next session in the same place begins with what stands before it.
    """
    ours = ("user", "system_end", "tools_end")
    reply = min((edge.position for edge in boundaries if edge.kind not in ours), default=1 << 62)
    users = (edge.position for edge in boundaries if edge.kind == "user")
    return max((position for position in users if position <= reply), default=0)


def _deepest(marks: Sequence[int], position: int) -> int:
    return max((mark for mark in marks if mark <= position), default=0)


def stable_head(boundaries: Sequence[Boundary], tokens: int) -> int:
    """How much of a prompt the next turn leaves as it is: all of it, or what stands before the first thinking
    block behind the last user message.
    """
    user = _last_user(boundaries)
    starts = [edge.position for edge in boundaries if edge.kind == "thinking_start" and edge.position >= user]
    return min([*starts, tokens])


def _last_user(boundaries: Sequence[Boundary]) -> int:
    return max((edge.position for edge in boundaries if edge.kind == "user"), default=0)


def with_fork(marks: Sequence[int], position: int, fork: int) -> tuple[int, ...]:
    """`marks` and one at `fork`, up to which a prompt was known though it resumes at `position`.

    A fork less than NEAR tokens behind `position` or another mark is not worth a step.
    """
    place = bisect_right(marks, fork)
    before = max(position, marks[place - 1] if place else 0)
    if fork - before < NEAR:
        return tuple(marks)
    added = list(marks)
    insort(added, fork)
    return tuple(added)
