"""A vocabulary of bytes, some words and the markers, and walks through what a constraint allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tiktoken

from ftagent.conversation import Conversation, ToolChoice, ToolSpec
from ftagent.engine.prompt.grammar import Constraint, constraint_for
from ftagent.engine.prompt.parsers import ReplyForm
from tests.engine.prompt.call_forms import BY_FORM
from tests.engine.prompt.replies import MARKERS, TOOLS

ADDED = ("<|im_end|>", "<|endoftext|>", *sorted(MARKERS))
WORDS = (
    ">\n",
    "\n<",
    "</",
    "parameter",
    "function",
    "\n</parameter>",
    "\n</parameter>\n",
    "true",
    ": ",
    ", ",
    '"}',
)


class Tiny:
    """A vocabulary: single bytes, some words, and markers that are added tokens (or not)."""

    def __init__(self, added: Sequence[str] = ADDED) -> None:
        pieces = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in ("é", "世", *WORDS))]
        ranks = {piece: index for index, piece in enumerate(pieces)}
        self.added_tokens = {text: len(ranks) + index for index, text in enumerate(added)}
        self.encoding = tiktoken.Encoding(
            "tiny", pat_str=r"\s+|\S+", mergeable_ranks=ranks, special_tokens=self.added_tokens
        )
        self.eos_ids = (self.added_tokens["<|im_end|>"], self.added_tokens["<|endoftext|>"])

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.encoding.decode_single_token_bytes(token) for token in ids)

    def id_of(self, text: str) -> int:
        return self.added_tokens.get(text) or self.encoding.encode_single_token(text.encode())

    def tokens(self, text: str | bytes) -> Iterator[int]:
        """Added tokens where they are written, else single bytes."""
        left = text.encode() if isinstance(text, str) else text
        marks = {mark.encode(): token for mark, token in self.added_tokens.items()}
        while left:
            mark = next((mark for mark in marks if left.startswith(mark)), left[:1])
            yield marks.get(mark) or self.encoding.encode_single_token(mark)
            left = left[len(mark) :]


@functools.cache
def tiny(native: bool = True) -> Tiny:
    return Tiny(ADDED if native else ADDED[:2])


@functools.cache
def of_form(form: ReplyForm, native: bool = True) -> Tiny:
    """A vocabulary with the markers of a form, or without."""
    return Tiny((*ADDED[:2], *sorted(BY_FORM[form].markers)) if native else ADDED[:2])


def asking(mode: Any = "required", tools: Sequence[ToolSpec] = TOOLS, **choice: Any) -> Conversation:
    return Conversation((), tuple(tools), ToolChoice(mode, **choice), thinking=False)


def constrained(
    conversation: Conversation,
    form: ReplyForm = "qwen3_5",
    *,
    native: bool = True,
    thinking_open: bool = False,
    json_schema: str | None = None,
    auto: bool = False,
    vocabulary: Tiny | None = None,
) -> Constraint:
    vocabulary = vocabulary or tiny(native)
    found = constraint_for(form, conversation, vocabulary, thinking_open, json_schema, auto)
    assert found is not None
    return found


def allowed(constraint: Constraint, native: bool = True, vocabulary: Tiny | None = None) -> set[str] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    vocabulary = vocabulary or tiny(native)
    return {
        vocabulary.decode_bytes([token]).decode(errors="replace") for token in np.flatnonzero(mask).tolist()
    }


def follow(constraint: Constraint, text: str, native: bool = True, vocabulary: Tiny | None = None) -> str:
    """Advance over `text` as long as it is allowed, by the longest allowed token; what is left of it.

    Where text is forced, only its canonical tokens are allowed, so single characters would not do.
    """
    vocabulary = vocabulary or tiny(native)
    left = text.encode()
    marks = [mark.encode() for mark in vocabulary.added_tokens]
    while left:
        mask = constraint.mask()
        if mask is None:
            token = next(vocabulary.tokens(left))
        else:
            spelled = {vocabulary.decode_bytes([token]): token for token in np.flatnonzero(mask).tolist()}
            plain = min((at for mark in marks if (at := left.find(mark)) > 0), default=len(left))
            fitting = [piece for piece in spelled if left.startswith(piece) and len(piece) <= plain]
            fitting += [mark for mark in marks if mark in spelled and left.startswith(mark)]
            if not fitting:
                return left.decode(errors="replace")
            token = spelled[max(fitting, key=len)]
        constraint.advance(token)
        left = left.removeprefix(vocabulary.decode_bytes([token]))
    return ""


ENDS = {"<|im_end|>", "<|endoftext|>"}
FIND = (
    "<tool_call>\n<function=find>\n<parameter=q>\na b\n</parameter>\n"
    "<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
)
FIND_JSON = '<tool_call>\n{"name": "find", "arguments": {"q": "a b", "limit": 3}}\n</tool_call>'
PING = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
