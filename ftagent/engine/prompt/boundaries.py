"""Marks in what the template is given, found again in what it writes: where each block stands in the prompt.

A leaf is one piece of text that somebody said (a user's words, a tool's result, one argument). Marks are
noncharacters, which `canonical.clean` has removed from all leaves, so nobody can forge one. A pair encloses
each leaf, inside of its outer white space, so that templates that trim do the same with and without marks.
Guards enclose each added token that is written inside a leaf, so that it is not taken for markup.

Knows characters and offsets; token positions come from `encode_prompt`.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ftagent.engine.prompt.memory import KnownPrefix
from ftagent.engine.prompt.tokenizer import Tokenizer

LeafKind = Literal["system", "user", "thinking", "text", "call", "argument", "result"]

_OPEN, _CLOSE, _GUARD_OPEN, _GUARD_CLOSE = "\ufdd0", "\ufdd1", "\ufdee", "\ufdef"
_DIGIT, _BASE, _DIGITS = 0xFDD2, 28, 4
_MARKS = _OPEN + _CLOSE + _GUARD_OPEN + _GUARD_CLOSE
_MARK = re.compile(f"[{_MARKS}][\ufdd2-\ufded]{{0,{_DIGITS}}}")
_ZERO_WIDTH_SPACE = "\u200b"


class Span(NamedTuple):
    """Characters [start, end) of the prompt that hold leaf number `leaf`."""

    start: int
    end: int
    leaf: int


class Leaf(NamedTuple):
    kind: LeafKind
    message: int  # index in the conversation


class Inner(NamedTuple):
    """Where further blocks begin in a leaf of `length` characters, white space around it left out."""

    length: int
    edges: tuple[int, ...]


@dataclass(slots=True)
class Marker:
    """Marks leaves while a conversation is written for the template, numbering them in order of writing.

    `enclosed`: numbers of the leaves to enclose. Guards are always set; without `invisible_guards` they are a
    zero-width space inside the token, which stays in the prompt.
    """

    tokenizer: Tokenizer
    enclosed: Container[int] = ()
    invisible_guards: bool = True
    leaves: list[Leaf] = field(default_factory=list)
    inner: dict[int, Inner] = field(default_factory=dict)  # of the leaves that have further blocks

    def leaf(self, kind: LeafKind, message: int, text: str, edges: Sequence[int] = ()) -> str:
        number = len(self.leaves)
        self.leaves.append(Leaf(kind, message))
        if edges:
            length, begin = len(text.strip()), len(text) - len(text.lstrip())
            inside = tuple(edge - begin for edge in edges if begin < edge < begin + length)
            self.inner[number] = Inner(length, inside)
        guarded = self.guard(text)
        if number not in self.enclosed:
            return guarded
        core = guarded.strip()
        if not core:
            return guarded
        start = guarded.index(core)
        digits = _digits(number)
        return f"{guarded[:start]}{_OPEN}{digits}{core}{_CLOSE}{digits}{guarded[start + len(core) :]}"

    def guard(self, text: str) -> str:
        """`text` with a guard on each side of every added token that is written in it."""
        spans = self.tokenizer.added_spans(text)
        if not spans:
            return text
        cuts = [0, *itertools.chain.from_iterable(spans), len(text)]
        pieces = [text[first:second] for first, second in itertools.pairwise(cuts)]
        return "".join(self._guarded(piece) if index % 2 else piece for index, piece in enumerate(pieces))

    def _guarded(self, token: str) -> str:
        if self.invisible_guards:
            return f"{_GUARD_OPEN}{token}{_GUARD_CLOSE}"
        return f"{token[0]}{_ZERO_WIDTH_SPACE}{token[1:]}"


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A rendering without its marks.

    `spans` in order of their start; `guarded`: where added tokens are words and not markup.
    """

    text: str
    spans: tuple[Span, ...]
    guarded: tuple[tuple[int, int], ...]

    def once(self, repeated: Container[int] = ()) -> dict[int, Span]:
        """The spans of the leaves that were rendered exactly once, by leaf.

        `repeated`: leaves that may come again later, of which the first span counts.
        """
        found: dict[int, Span] = {}
        several = set()
        for span in self.spans:
            if span.leaf in found and span.leaf in repeated:
                continue
            if span.leaf in found:
                several.add(span.leaf)
            found[span.leaf] = span
        return {leaf: span for leaf, span in found.items() if leaf not in several}

    def words(self) -> list[tuple[int, int]]:
        """The parts of `text` that somebody said, ascending and disjoint: no added token is in them."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.guarded, *((span.start, span.end) for span in self.spans)]):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


def unmark(rendering: str) -> Unmarked:
    """Take the marks out of `rendering` and note where they stood. Marks that a template broke stay in."""
    if not any(mark in rendering for mark in _MARKS):
        return Unmarked(rendering, (), ())
    pieces: list[str] = []
    length = last = 0
    opened: dict[int, int] = {}
    guard_start: int | None = None
    spans: list[Span] = []
    guarded: list[tuple[int, int]] = []
    for match in _MARK.finditer(rendering):
        mark = match.group()
        if mark[0] in (_OPEN, _CLOSE) and len(mark) <= _DIGITS:
            continue
        pieces.append(rendering[last : match.start()])
        length += len(pieces[-1])
        last = match.end()
        if mark == _GUARD_OPEN:
            guard_start = length
        elif mark == _GUARD_CLOSE:
            if guard_start is not None:
                guarded.append((guard_start, length))
            guard_start = None
        elif mark[0] == _OPEN:
            opened[_number(mark)] = length
        elif (start := opened.pop(_number(mark), None)) is not None:
            spans.append(Span(start, length, _number(mark)))
    pieces.append(rendering[last:])
    return Unmarked("".join(pieces), tuple(sorted(spans)), tuple(guarded))


class Encoded(NamedTuple):
    """A prompt's ids, the position of each edge in them, and where the control tokens stand in its text."""

    ids: list[int]
    positions: list[int]
    markup: tuple[tuple[int, int], ...]


def encode_prompt(
    tokenizer: Tokenizer,
    text: str,
    words: Sequence[tuple[int, int]],
    cuts: Iterable[int],
    edges: Sequence[int],
    known: KnownPrefix | None = None,
    *,
    certain: bool = False,
) -> Encoded:
    """Token ids of `text`, and for each character offset in `edges` the number of tokens wholly before it.

    No added token is recognised where it touches `words` (disjoint, ascending). Tokens end at each offset in
    `cuts`; apart from that the ids are those of the text as a whole, so edges change nothing. `known`, a
    beginning of `text`, keeps its ids, provided that the same control tokens stand in it; that is not looked
    at if it is `certain`, and then nothing is said of the words in it.
    """
    if known is not None and certain:
        markup = [*known.markup, *_markup(tokenizer, text, words, len(known.text))]
    else:
        markup = _markup(tokenizer, text, words)
    ids: list[int] = []
    positions: dict[int, int] = {}
    queue = sorted(set(edges), reverse=True)
    begin = 0
    if known is not None and tuple(span for span in markup if span[0] < len(known.text)) == known.markup:
        begin = len(known.text)
        ids += known.token_ids
        ends = tokenizer.token_ends(ids)
        while queue and queue[-1] <= begin:
            edge = queue.pop()
            positions[edge] = bisect_right(ends, len(text[:edge].encode("utf-8")))
    for start, end, added in _pieces(len(text), markup, [begin, *cuts], begin):
        before = len(ids)
        piece = text[start:end]
        new = [tokenizer.added_tokens[piece]] if added else tokenizer.encode_plain(piece)
        ids += new
        inside = []
        while queue and queue[-1] <= end:
            inside.append(queue.pop())
        counts = _counts(tokenizer, piece, new, [edge - start for edge in inside])
        positions |= {edge: before + count for edge, count in zip(inside, counts, strict=True)}
    return Encoded(ids, [positions.get(edge, len(ids)) for edge in edges], tuple(markup))


def common_prefix(first: str, second: str) -> int:
    """How many characters `first` and `second` have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _markup(
    tokenizer: Tokenizer, text: str, words: Sequence[tuple[int, int]], position: int = 0
) -> list[tuple[int, int]]:
    """Where added tokens stand in `text` from `position` on, outside of `words`."""
    found: list[tuple[int, int]] = []
    for start, end in (*words, (len(text), len(text))):
        spans = tokenizer.added_spans(text[position:start])
        found += [(position + first, position + last) for first, last in spans]
        position = end
    return found


def _pieces(
    length: int, markup: Sequence[tuple[int, int]], cuts: Iterable[int], begin: int
) -> Iterator[tuple[int, int, bool]]:
    """The text from `begin` on, cut at markup and at `cuts`: (start, end, whether an added token)."""
    stops = {length, *cuts, *itertools.chain.from_iterable(markup)}
    known = set(markup)
    for span in itertools.pairwise(sorted(stop for stop in stops if stop >= begin)):
        yield (*span, span in known)


def _counts(tokenizer: Tokenizer, piece: str, ids: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """For each character offset of `piece`, how many of its tokens `ids` end at or before it."""
    if all(offset in (0, len(piece)) for offset in offsets):
        return [len(ids) if offset else 0 for offset in offsets]
    ends = tokenizer.token_ends(ids)
    normal = tokenizer.normalize(piece)
    counts = []
    for offset in offsets:
        head = tokenizer.normalize(piece[:offset])
        if not normal.startswith(head):
            # A character at the edge was composed with the one before it: step back behind it.
            head = head[: common_prefix(head, normal)]
        counts.append(bisect_right(ends, len(head.encode("utf-8"))))
    return counts


def _digits(number: int) -> str:
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, _BASE)
        digits.append(chr(_DIGIT + digit))
    return "".join(digits)


def _number(mark: str) -> int:
    number = 0
    for digit in reversed(mark[1:]):
        number = number * _BASE + ord(digit) - _DIGIT
    return number
