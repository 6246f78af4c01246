"""What one step looks like to the layers: rows, where they come from, and the tensors all layers share.

Decode rows come first, in the order of their chunks, then the rows of each prefill chunk. With `fused` (on a
device) all rows are prefill rows, and a chunk is cut into spans short enough that a layer can do them one
after the other in little memory: decode steps have kernels of their own there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from ftagent.engine.context.pages import PAGE_TOKENS, token_runs

if TYPE_CHECKING:
    from ftagent.engine.chunk import Chunk

SEGMENT = 4096  # tokens; a decode row reads its past in pieces that end on multiples of this
FUSED_ROWS = 4096  # of the longest span of a fused step; a multiple of the delta rule's chunk

Runs = list[tuple[int, int]]


class Span(NamedTuple):
    """Rows [begin, end) of the step are one prefill chunk, or the next rows of one in a fused step.

    `start` is the position of the first row; `past` are the runs of the request's earlier tokens, `own` those
    of the rows themselves. States are kept behind the positions `marks`, the span's end perhaps among them.
    """

    begin: int
    end: int
    start: int
    slot: int
    past: Runs
    own: Runs
    marks: tuple[int, ...] = ()

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.end)

    def pieces(self) -> list[slice]:
        """Its rows, counted from its first, cut at the marks."""
        ends = [mark - self.start for mark in self.marks]
        if ends[-1:] != [self.end - self.begin]:
            ends.append(self.end - self.begin)
        return [slice(first, last) for first, last in pairwise((0, *ends))]


@dataclass(frozen=True, slots=True)
class Batch:
    """`decode` rows, then `spans`. Tensors have one entry for each row unless said otherwise."""

    fused: bool  # the layers run the kernels of `kernels.gpu` where they have one; decode is 0
    decode: int
    spans: tuple[Span, ...]
    tokens: torch.Tensor  # int64
    positions: torch.Tensor  # int64
    places: torch.Tensor  # int64, where the row's key and value go: page * page size + offset
    decode_pasts: tuple[tuple[Runs, ...], ...]  # per decode row: its segments, the row itself included
    decode_slots: tuple[int, ...]
    decode_starts: tuple[int, ...]  # per decode row: its position
    decode_index: torch.Tensor  # int64 [decode], the same
    wanted: torch.Tensor  # int64, rows whose logits are asked for, in the order of the chunks

    @property
    def rows(self) -> int:
        return len(self.tokens)


def make_batch(chunks: Sequence[Chunk], device: torch.device, fused: bool = False) -> Batch:
    """Lay out the rows of `chunks`."""
    ordered = [] if fused else [chunk for chunk in chunks if len(chunk.tokens) == 1]
    decode = len(ordered)
    ordered += [chunk for chunk in chunks if fused or len(chunk.tokens) > 1]
    tokens: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    spans: list[Span] = []
    last_row: dict[int, int] = {}  # id of a chunk to its last row
    for chunk in ordered:
        begin = len(tokens)
        tokens += chunk.tokens
        own = range(chunk.start, chunk.start + len(chunk.tokens))
        positions += own
        places += [
            chunk.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS for position in own
        ]
        last_row[id(chunk)] = len(tokens) - 1
        if fused or len(chunk.tokens) > 1:
            spans += _spans(chunk, begin, FUSED_ROWS if fused else len(chunk.tokens))
    slots = [chunk.slot for chunk in ordered[:decode]]
    integers = torch.tensor([tokens, positions, places], device=device)
    wanted = [last_row[id(chunk)] for chunk in chunks if chunk.want_logits]
    return Batch(
        fused=fused,
        decode=decode,
        spans=tuple(spans),
        tokens=integers[0],
        positions=integers[1],
        places=integers[2],
        decode_pasts=tuple(_segments(chunk) for chunk in ordered[:decode]),
        decode_slots=tuple(slots),
        decode_starts=tuple(positions[:decode]),
        decode_index=torch.tensor(slots, dtype=torch.int64, device=device),
        wanted=torch.tensor(wanted, dtype=torch.int64, device=device),
    )


def _spans(chunk: Chunk, begin: int, longest: int) -> list[Span]:
    """The rows of a chunk, which start at row `begin` of the step, in spans of up to `longest`."""
    spans: list[Span] = []
    for first in range(0, len(chunk.tokens), longest):
        last = min(first + longest, len(chunk.tokens))
        start = chunk.start + first
        past = token_runs(chunk.pages, 0, start)
        own = token_runs(chunk.pages, start, chunk.start + last)
        marks = tuple(mark for mark in chunk.keep if start < mark <= chunk.start + last)
        spans.append(Span(begin + first, begin + last, start, chunk.slot, past, own, marks))
    return spans


def _segments(chunk: Chunk) -> tuple[Runs, ...]:
    end = chunk.start + 1
    return tuple(
        token_runs(chunk.pages, begin, min(begin + SEGMENT, end)) for begin in range(0, end, SEGMENT)
    )
