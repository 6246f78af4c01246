"""The unit of work of a step, as scheduler and runner agree on it. Plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one request.

    `start` is the position of tokens[0]; `pages` are the KV pages that cover positions [0, start +
    len(tokens)); `slot` is the recurrent state slot, which has seen exactly the tokens before `start`. The
    states behind the positions `keep`, in order and inside the chunk, are kept (see `pools.States.inside`).
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    slot: int
    want_logits: bool
    keep: Sequence[int] = ()
