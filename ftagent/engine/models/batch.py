"""What one step looks like to the layers: rows, where they come from, and the tensors all layers share.

Decode rows come first, in the order of their chunks, then the rows of each prefill chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ftagent.engine.context.pages import PAGE_TOKENS, token_runs

if TYPE_CHECKING:
    from ftagent.engine.chunk import Chunk

SEGMENT = 4096  # tokens; a decode row reads its past in pieces that end on multiples of this

Runs = list[tuple[int, int]]


class Span(NamedTuple):
    """Rows [begin, end) of the step are one prefill chunk; `past` are the runs of its earlier tokens."""

    begin: int
    end: int
    slot: int
    past: Runs


@dataclass(frozen=True, slots=True)
class Batch:
    """`decode` rows, then `spans`. Tensors have one entry for each row unless said otherwise."""

    decode: int
    spans: tuple[Span, ...]
    tokens: torch.Tensor  # int64
    positions: torch.Tensor  # int64
    places: torch.Tensor  # int64, where the row's key and value go: page * page size + offset
    decode_pasts: tuple[tuple[Runs, ...], ...]  # per decode row: its segments, the row itself included
    decode_slots: tuple[int, ...]
    decode_index: torch.Tensor  # int64 [decode], the same
    wanted: tuple[int, ...]  # rows whose logits are asked for, in the order of the chunks

    @property
    def rows(self) -> int:
        return len(self.tokens)


def make_batch(chunks: Sequence[Chunk], device: torch.device) -> Batch:
    """Lay out the rows of `chunks`."""
    ordered = [chunk for chunk in chunks if len(chunk.tokens) == 1]
    decode = len(ordered)
    ordered += [chunk for chunk in chunks if len(chunk.tokens) > 1]
    tokens: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    spans: list[Span] = []
    last_row: dict[int, int] = {}  # id of a chunk to its last row
    for chunk in ordered:
        begin, end = len(tokens), len(tokens) + len(chunk.tokens)
        tokens += chunk.tokens
        own = range(chunk.start, chunk.start + len(chunk.tokens))
        positions += own
        places += [
            chunk.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS for position in own
        ]
        last_row[id(chunk)] = end - 1
        if len(chunk.tokens) > 1:
            spans.append(Span(begin, end, chunk.slot, token_runs(chunk.pages, 0, chunk.start)))
    slots = [chunk.slot for chunk in ordered[:decode]]
    integers = torch.tensor([tokens, positions, places], device=device)
    return Batch(
        decode=decode,
        spans=tuple(spans),
        tokens=integers[0],
        positions=integers[1],
        places=integers[2],
        decode_pasts=tuple(_segments(chunk) for chunk in ordered[:decode]),
        decode_slots=tuple(slots),
        decode_index=torch.tensor(slots, dtype=torch.int64, device=device),
        wanted=tuple(last_row[id(chunk)] for chunk in chunks if chunk.want_logits),
    )


def _segments(chunk: Chunk) -> tuple[Runs, ...]:
    end = chunk.start + 1
    return tuple(
        token_runs(chunk.pages, begin, min(begin + SEGMENT, end)) for begin in range(0, end, SEGMENT)
    )
