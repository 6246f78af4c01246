"""What the scheduler handles: requests, and pieces of their work. Plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ftagent.engine.context.checks import Check
from ftagent.engine.context.sharing import Awaited
from ftagent.engine.context.tree import ID_BYTES, token_key
from ftagent.engine.context.visits import Visit


@dataclass(slots=True, eq=False)
class Job:
    """One request as the scheduler sees it. `tokens` is the prompt and what was generated so far.

    `limit` bounds prompt and reply together. `marks` are prompt positions, in order, at which the state is
    kept; where that takes it, a chunk ends there. `head` prompt tokens stay as they are in later turns; None:
    all. `agent`: more turns are to be expected, as it offers tools. The states at the marks `lasting` are
    kept for later runs. `computed` tokens are in `pages` and in the state of `slot`. `awaited`: who computes
    the beginning of its prompt just now. `check`: its hit is checked, so it runs cold; a `shadow` is what
    runs warm beside it, and has no reader.
    """

    id: str
    tokens: list[int]
    limit: int
    marks: tuple[int, ...] = ()
    head: int | None = None
    agent: bool = False
    lasting: tuple[int, ...] = ()
    prompt: int = field(init=False)
    pages: list[int] = field(init=False, default_factory=list)
    slot: int | None = field(init=False, default=None)
    computed: int = field(init=False, default=0)
    cached: int = field(init=False, default=0)
    arrival: int = field(init=False, default=-1)
    cancelled: bool = field(init=False, default=False)
    visit: Visit | None = field(init=False, default=None)
    awaited: Awaited | None = field(init=False, default=None)
    check: Check | None = field(init=False, default=None)
    shadow: bool = field(init=False, default=False)
    _key: bytearray = field(init=False, default_factory=bytearray, repr=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.key()  # here, since the thread that steps has no time for it

    def key(self) -> bytearray:
        """All tokens as memory; see `tree.token_key`."""
        known = len(self._key) // ID_BYTES
        if known < len(self.tokens):
            self._key += token_key(self.tokens[known:])
        return self._key

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def full(self) -> bool:
        """No further token may be generated."""
        return len(self.tokens) >= self.limit


class Piece(NamedTuple):
    """Work of one step for one request: compute `length` tokens from position `start`, and keep the states
    behind the positions `keep` inside.
    """

    job: Job
    start: int
    length: int
    wants_logits: bool
    keep: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """It computes a token that this request generated before, and nothing else."""
        return self.start >= self.job.prompt and self.length == 1


def share_evenly(wants: Sequence[int], budget: int) -> list[int]:
    """Split `budget` so that nobody gets more than wanted and no one could get more but from a richer one.

    >>> share_evenly([10, 900, 700], 512)
    [10, 251, 251]
    """
    shares = [0] * len(wants)
    order = sorted(range(len(wants)), key=lambda index: wants[index])
    for place, index in enumerate(order):
        shares[index] = min(wants[index], budget // (len(order) - place))
        budget -= shares[index]
    return shares
