"""Conversations as training rows: token ids and a weight for the loss of each.

Text is rendered by the chat template that ships with the model, so training sees what serving sends. Weights:
1 on what the assistant writes, a little on the rest.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
import tiktoken

from ftagent import demo
from ftagent.conversation import Conversation, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.demo.training import corpus, dialogues
from ftagent.engine.prompt.tokenizer import Tokenizer

_REPLY = "<|im_start|>assistant\n<think>\n"
_END = "<|im_end|>"
_SKIPPED_THOUGHT = "</think>\n\n"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((demo.directory() / "chat_template.jinja").read_text(encoding="utf-8"))


def _as_dict(message: Message) -> dict[str, Any]:
    calls = [
        {"function": {"name": b.name, "arguments": b.arguments}}
        for b in message.blocks
        if isinstance(b, ToolCall)
    ]
    thoughts = "".join(b.text for b in message.blocks if isinstance(b, Thinking))
    results = "".join(
        part.text
        for b in message.blocks
        if isinstance(b, ToolResult)
        for part in b.content
        if isinstance(part, Text)
    )
    return {
        "role": message.role,
        "content": message.text or results,
        "reasoning_content": thoughts,
        "tool_calls": calls,
    }


def rendered(conversation: Conversation) -> str:
    """The conversation as text, by the model's own template."""
    tools = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
        }
        for t in conversation.tools
    ]
    return _template().render(messages=[_as_dict(m) for m in conversation.messages], tools=tools)


@functools.cache
def encoding() -> tiktoken.Encoding:
    """The shipped tokenizer.json as a tiktoken encoding (ranks are vocabulary ids)."""
    return Tokenizer.from_directory(demo.directory()).encoding


@dataclass(frozen=True, slots=True)
class Row:
    """`ids` and `weights` of one length; weight i belongs to the prediction OF ids[i]."""

    ids: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float16]


def _spans(text: str, rest: float) -> Iterator[tuple[str, float]]:
    """Cut rendered text into (piece, weight). Pieces meet at control tokens only, as encoding does."""
    position = 0
    while True:
        start = text.find(_REPLY, position)
        if start < 0:
            yield text[position:], rest
            return
        start += len(_REPLY)
        if text.startswith(_SKIPPED_THOUGHT, start):
            start += len(_SKIPPED_THOUGHT)
        end = text.index(_END, start) + len(_END)
        yield text[position:start], rest
        yield text[start:end], 1.0
        position = end


def tokens_of(text: str, rest: float) -> tuple[list[int], list[float]]:
    """Ids and weights of rendered text; `rest` is the weight outside the assistant's words."""
    ids: list[int] = []
    weights: list[float] = []
    for piece, weight in _spans(text, rest):
        found = encoding().encode(piece, allowed_special="all")
        ids += found
        weights += [weight] * len(found)
    return ids, weights


@dataclass(frozen=True, slots=True)
class Mix:
    """What rows of a stage are made of."""

    length: int  # tokens per row
    rest: float  # weight outside the assistant's words
    text_share: float  # share of rows' documents that are plain text
    chat_share: float  # share that are chats; the others are agent sessions


def _document(rng: random.Random, mix: Mix, room: int) -> tuple[list[int], list[float]]:
    kind = rng.random()
    if kind < mix.text_share:
        ids = encoding().encode_ordinary(dialogues.text_piece(rng))
        return ids, [0.3] * len(ids)
    if kind < mix.text_share + mix.chat_share:
        conversation = dialogues.chat(rng, rng.choice((1, 1, 2, 3, 4)))
    else:
        # About 3.1 characters a token; a share of the room for the prefix, the rest for the exchanges.
        chars = int(room * 3.1 * rng.choice((0.0, 0.05, 0.2, 0.5, 0.8)) * rng.random())
        if mix.length > 4096:
            chars = int(room * 3.1 * rng.uniform(0.3, 0.92))
        conversation = dialogues.agent(
            rng, chars, rng.choice((1, 1, 2, 3, 5, 8) if mix.length <= 4096 else (1, 2, 4, 8, 12, 16))
        )
    if rng.random() < 0.12:
        conversation = dialogues.forget_thoughts(conversation, rng.choice((1, 2, 4)))
    return tokens_of(rendered(conversation), mix.rest)


def row(rng: random.Random, mix: Mix) -> Row:
    """One row of length + 1 tokens (inputs and targets overlap): documents, each ended by <|endoftext|>.

    The last document is cut where the row ends.
    """
    end = encoding().encode_single_token("<|endoftext|>")
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) <= mix.length:
        more_ids, more_weights = _document(rng, mix, mix.length + 1 - len(ids))
        ids += [*more_ids, end]
        weights += [*more_weights, mix.rest]
    return Row(np.array(ids[: mix.length + 1], np.uint16), np.array(weights[: mix.length + 1], np.float16))


def warm_up() -> None:
    """Build the tables that rows are made of, once, for processes forked later."""
    for table in (corpus.source_files, corpus.sentences, corpus.words, corpus.rare_words, corpus.fragments):
        table()
    encoding()
