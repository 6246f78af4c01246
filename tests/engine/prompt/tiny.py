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

    def tokens(self, text: str) -> Iterator[int]:
        """Added tokens where they are written, else single characters."""
        while text:
            marker = next((mark for mark in self.added_tokens if text.startswith(mark)), text[0])
            yield self.id_of(marker)
            text = text[len(marker) :]


@functools.cache
def tiny(native: bool = True) -> Tiny:
    return Tiny(ADDED if native else ADDED[:2])


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
) -> Constraint:
    found = constraint_for(form, conversation, tiny(native), thinking_open, json_schema, auto)
    assert found is not None
    return found


def allowed(constraint: Constraint, native: bool = True) -> set[str] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    vocabulary = tiny(native)
    return {
        vocabulary.decode_bytes([token]).decode(errors="replace") for token in np.flatnonzero(mask).tolist()
    }


def follow(constraint: Constraint, text: str, native: bool = True) -> str:
    """Advance over `text` as long as it is allowed, by the longest allowed token; what is left of it.

    Where text is forced, only its canonical tokens are allowed, so single characters would not do.
    """
    vocabulary = tiny(native)
    while text:
        options = allowed(constraint, native)
        if options is None:
            token = next(vocabulary.tokens(text))
        else:
            fitting = [option for option in options if text.startswith(option)]
            if not fitting:
                return text
            token = vocabulary.id_of(max(fitting, key=len))
        constraint.advance(token)
        text = text.removeprefix(vocabulary.decode_bytes([token]).decode())
    return ""


ENDS = {"<|im_end|>", "<|endoftext|>"}
FIND = (
    "<tool_call>\n<function=find>\n<parameter=q>\na b\n</parameter>\n"
    "<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
)
FIND_JSON = '<tool_call>\n{"name": "find", "arguments": {"q": "a b", "limit": 3}}\n</tool_call>'
PING = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
