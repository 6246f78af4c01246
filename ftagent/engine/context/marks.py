"""Which positions of a prompt are worth an anchor. Plain integers; knows no cache and no model."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from ftagent.conversation import Boundary

LAST_EDGES = 3
LAST_THINKING = 16
NEAR = 16  # tokens


def choose_marks(boundaries: Sequence[Boundary], tokens: int) -> tuple[int, ...]:
    """Prompt positions, in order, that are worth an anchor.

    Agents edit at boundaries, mostly near the end, and share system and tools. Kept are the ends of system
    and tools, the last user message, the thinking blocks behind it (where the next user turn strips thinking;
    the first and the last LAST_THINKING), the last LAST_EDGES edges and the end of the prompt, before its
    last token: that has to be computed when the same prompt is sent again. A mark less than NEAR tokens
    behind another is left out (one as near to the start as well): each costs a step of its own, and the
    earlier one is valid wherever the later one is.
    """
    found = [edge for edge in boundaries if 0 < edge.position <= tokens]
    wanted = {edge.position for edge in found if edge.kind in ("system_end", "tools_end")}
    user = _last_user(found)
    thinking = sorted(
        {edge.position for edge in found if edge.kind == "thinking_start" and edge.position >= user}
    )
    wanted.update(position for position in (user, *thinking[:1], *thinking[-LAST_THINKING:]) if position)
    wanted.update(sorted({edge.position for edge in found})[-LAST_EDGES:])
    marks: list[int] = []
    for position in sorted(wanted | {tokens - 1}):
        if position - (marks[-1] if marks else 0) >= NEAR:
            marks.append(position)
    return tuple(marks)


def shared_head(boundaries: Sequence[Boundary], marks: Sequence[int]) -> int:
    """The deepest mark in what an agent's requests have in common, its system text and tools; 0 for none."""
    ends = [edge.position for edge in boundaries if edge.kind in ("system_end", "tools_end")]
    user = min((edge.position for edge in boundaries if edge.kind == "user"), default=0)
    end = max((position for position in ends if position <= user), default=0)
    return max((mark for mark in marks if mark <= end), default=0)


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
