"""Why a prompt could not go on where the one before it ended: the first token that differs, and its block.

Agents put dates, counters and the like into their prompts. Where such a span stands in front of what was the
same, all behind it is computed again. Pure: knows ids and boundaries, no text, no cache and no log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ftagent.conversation import Boundary, BoundaryKind
from ftagent.engine.context.tree import ID_BYTES, Key, common_ids, token_key
from ftagent.engine.stats import Divergence

CONVERSATIONS = 64  # that are watched at a time

_BEGINS: dict[BoundaryKind, str] = {
    "user": "user",
    "thinking_start": "thinking",
    "tool_call": "tool_call",
    "tool_result": "tool_result",
}
_ENDS: dict[BoundaryKind, str] = {
    "system_end": "system",
    "tools_end": "tools",
    "thinking_end": "thinking",
    "assistant_end": "assistant",
}
# Blocks that clients leave as they are from turn to turn: what changes there is a volatile span.
_STEADY = ("system", "tools", "user")


def block_at(boundaries: Sequence[Boundary], token: int) -> tuple[str, int]:
    """Kind and message of the block that token number `token` stands in; ("template", -1) between blocks."""
    before = [edge for edge in boundaries if edge.position <= token]
    after = [edge for edge in boundaries if edge.position > token]
    if before and before[-1].kind in _BEGINS:
        return _BEGINS[before[-1].kind], before[-1].message
    if after and after[0].kind in _ENDS:
        return _ENDS[after[0].kind], after[0].message
    return "template", -1


def place_name(boundaries: Sequence[Boundary], position: int) -> str:
    """What stands at `position`: the edge there ("user[3]"), or the block that it is inside of."""
    edge = next((edge for edge in boundaries if edge.position == position), None)
    if edge is not None:
        return block_name(edge.kind, edge.message)
    return f"inside {block_name(*block_at(boundaries, position))}"


def block_name(kind: str, message: int) -> str:
    """ "system[0]", or the kind alone where no message is meant."""
    return kind if message < 0 else f"{kind}[{message}]"


def find_divergence(
    before: tuple[Key, Sequence[Boundary]], after: tuple[Key, Sequence[Boundary]], turn: int
) -> Divergence | None:
    """Where the prompt of turn number `turn` leaves the one before; None when it goes on behind it."""
    old, new = before[0], after[0]
    length = len(old) // ID_BYTES
    token = common_ids(old, new)
    if token == length:
        return None
    kind, message = block_at(before[1], token)
    where = block_name(kind, message)
    # Where another block stands now, blocks were left out or put together, as in a compaction.
    same = block_at(after[1], token) == (kind, message)
    return Divergence(turn, token, where, length - token, volatile=same and kind in _STEADY)


@dataclass(slots=True)
class _Watched:
    turn: int
    prompt: tuple[Key, Sequence[Boundary]]
    told: bool = False


class PromptWatch:
    """Compares each prompt with the one before it in its conversation. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: OrderedDict[Hashable, _Watched] = OrderedDict()
        self.newest: Divergence | None = None  # in a block that should not change
        self._counts: dict[str, int] = {}

    def note(
        self,
        conversation: Hashable,
        token_ids: Sequence[int],
        boundaries: Sequence[Boundary],
        said: int | None = None,
    ) -> tuple[Divergence | None, bool]:
        """A conversation's next prompt; behind its first `said` tokens is only what the reply begins with.

        Returns the volatile span in it, if there is one, and whether that is the first of this conversation.
        """
        prompt = (token_key(token_ids[:said]), boundaries)
        with self._lock:
            known = self._watched.get(conversation)
            if known is None:
                self._watched[conversation] = _Watched(1, prompt)
                if len(self._watched) > CONVERSATIONS:
                    self._watched.popitem(last=False)
                return None, False
            self._watched.move_to_end(conversation)
            known.turn += 1
            found = find_divergence(known.prompt, prompt, known.turn)
            known.prompt = prompt
            if found is None or not found.volatile:
                return None, False
            self.newest = found
            kind = found.block.partition("[")[0]
            self._counts[kind] = self._counts.get(kind, 0) + 1
            first, known.told = not known.told, True
            return found, first

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Volatile spans since start, by kind of block."""
        with self._lock:
            return tuple(sorted(self._counts.items()))
