"""Which tokens may come next: calls that satisfy the offered schemas, content that satisfies a JSON Schema.

`constraint_for` decides what a request needs; a `Constraint` follows one reply. Masks are computed by
llguidance on the CPU. Compiled grammars are cached per vocabulary. Knows no model and no sampling.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ftagent.conversation import Conversation, ToolSpec
from ftagent.engine.prompt.form_registry import ReplyForm, form_table
from ftagent.engine.prompt.forms import FormTable, Spelling
from ftagent.engine.prompt.matchers import GrammarError, Mask, Running, Vocabulary, compiler_for
from ftagent.engine.prompt.reply_grammars import (
    Calls,
    Thinking,
    start_call,
    start_calls,
    start_structured,
    start_words,
)
from ftagent.errors import BadRequest

log = logging.getLogger(__name__)

_QUOTES = (b"`", b"'", b'"')


class Constraint(ABC):
    """Follows one reply. Deterministic; used by one thread at a time."""

    @abstractmethod
    def mask(self) -> Mask | None:
        """Allowed tokens, bool [vocab]; None when every token is allowed."""

    @abstractmethod
    def advance(self, token_id: int) -> None:
        """Take note of a token of the reply."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the reply is complete, so that only an end-of-turn token may follow."""

    def apply(self, logits: Any) -> None:
        """Set the logits of tokens that are not allowed to -inf, in place.

        `logits`: numpy or torch, float [vocab]; entries beyond the vocabulary (padding) are never allowed.
        """
        allowed = self.mask()
        if allowed is None:
            return
        denied = np.ones(logits.shape[-1], dtype=np.bool_)
        shared = min(len(denied), len(allowed))
        denied[:shared] = ~allowed[:shared]
        if isinstance(logits, np.ndarray):
            logits[denied] = -np.inf
        else:
            import torch  # only a caller that has tensors pays for it

            logits.masked_fill_(torch.from_numpy(denied).to(logits.device), float("-inf"))


def constraint_for(
    form: ReplyForm | FormTable,
    conversation: Conversation,
    tokenizer: Vocabulary,
    thinking_open: bool,
    json_schema: str | None,
    auto: bool,
) -> Constraint | None:
    """What this reply must keep to; None when it is free.

    Tool choice `required` and `named` are always enforced (one call exactly when calls may not be parallel),
    `none` bars the marker of calls where it is one token. `json_schema` (as text) binds the content. `auto`:
    the model writes freely, but a call that it opens must be a valid call.
    Raises BadRequest, naming the field, for a choice or a schema that cannot be enforced.
    """
    table = form_table(form)
    choice, spelling = conversation.tool_choice, table.spelling
    calls = None
    if spelling is not None and conversation.tools:
        calls = Calls(table, conversation.tools, choice.parallel)
    may_open = not thinking_open and conversation.thinking is not False
    thinking = Thinking(thinking_open, may_open, table.thoughts)
    if choice.mode in ("required", "named"):
        if spelling is None:
            raise BadRequest("this model's chat template knows no tool calls", field="tool_choice")
        wanted = Calls(table, _chosen(conversation), choice.parallel)
        return _required(tokenizer, thinking, wanted)
    if json_schema is not None:
        schema = _parse_schema(json_schema)
        allowed = calls if choice.mode == "auto" else None
        return InGrammar(start_structured(compiler_for(tokenizer), table, thinking, allowed, schema))
    if calls is None or spelling is None:
        return None
    if choice.mode == "none":
        return _without_calls(tokenizer, table, spelling, thinking)
    return FreeUntilCall(tokenizer, thinking_open, calls) if auto and len(spelling.opens) > 1 else None


def _without_calls(
    tokenizer: Vocabulary, table: FormTable, spelling: Spelling, thinking: Thinking
) -> Constraint | None:
    if spelling.bars in tokenizer.added_tokens:
        return NoCall(tokenizer.encoding.n_vocab, tokenizer.added_tokens[spelling.bars])
    if table.thoughts.answer and table.words & set(tokenizer.added_tokens):
        return InGrammar(start_words(compiler_for(tokenizer), table, thinking))
    return None


def _required(tokenizer: Vocabulary, thinking: Thinking, calls: Calls) -> Constraint | None:
    try:
        return InGrammar(start_calls(compiler_for(tokenizer), thinking, calls))
    except GrammarError as error:
        log.warning("the tool choice cannot be enforced: %s", error)
        return None


def _chosen(conversation: Conversation) -> Sequence[ToolSpec]:
    choice, tools = conversation.tool_choice, conversation.tools
    if not tools:
        raise BadRequest(
            f"tool_choice {choice.mode!r} needs tools, but none are offered", field="tool_choice"
        )
    if choice.mode == "required":
        return tools
    named = [tool for tool in tools if tool.name == choice.name]
    if not named:
        offered = ", ".join(tool.name for tool in tools[:8])
        raise BadRequest(
            f"tool_choice names {choice.name!r}, which is not offered (offered: {offered})",
            field="tool_choice",
        )
    return named[:1]


def _parse_schema(text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"json_schema is not JSON: {error}", field="json_schema") from None
    if not isinstance(schema, dict | bool):
        raise BadRequest("json_schema must be a JSON object (a schema)", field="json_schema")
    return schema


class NoCall(Constraint):
    """Everything but the marker that opens a call."""

    def __init__(self, size: int, opener: int) -> None:
        self._allowed = np.ones(size, dtype=np.bool_)
        self._allowed[opener] = False

    def mask(self) -> Mask | None:
        return self._allowed

    def advance(self, token_id: int) -> None:
        pass

    @property
    def finished(self) -> bool:
        return False


class InGrammar(Constraint):
    """One grammar from the first token to the last."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def mask(self) -> Mask | None:
        return self._running.mask()

    def advance(self, token_id: int) -> None:
        self._running.advance(token_id)

    @property
    def finished(self) -> bool:
        return self._running.complete


class FreeUntilCall(Constraint):
    """Free text; from an opening marker to its closing one a valid call. Costs nothing before the marker.

    A marker inside thinking or right after a quotation mark is a word the model writes about.
    """

    def __init__(self, tokenizer: Vocabulary, thinking_open: bool, calls: Calls) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self._thinking = thinking_open
        self._running: Running | None = None
        self._over = False  # the only call is complete
        added, thoughts = tokenizer.added_tokens, calls.table.thoughts
        opens = calls.table.spelling.opens if calls.table.spelling else ""
        self._native = added.get(opens)
        self._opener = opens.encode()
        self._think = (added.get(thoughts.opens.strip()), added.get(thoughts.closes))
        self._thoughts = (thoughts.closes.encode(), thoughts.opens.strip().encode())
        self._tail = b""  # the last bytes of the text, as far as a marker can reach back
        self._kept_bytes = 2 * max(map(len, (self._opener, *self._thoughts)))

    def mask(self) -> Mask | None:
        if self._running is not None:
            return self._running.mask()
        return compiler_for(self._tokenizer).only_eos() if self._over else None

    @property
    def finished(self) -> bool:
        return self._over

    def advance(self, token_id: int) -> None:
        if self._running is not None:
            self._running.advance(token_id)
            self._after_call_token(self._running)
        elif not self._over:
            self._watch(token_id)

    def _after_call_token(self, running: Running) -> None:
        if running.complete:
            self._over = not self._calls.parallel
        if running.complete or running.failed:
            self._running, self._tail = None, b""

    def _watch(self, token_id: int) -> None:
        opened, closed = self._think
        if token_id in (opened, closed):
            self._thinking = token_id == opened
        if token_id == self._native and not self._thinking and self._tail[-1:] not in _QUOTES:
            self._running = self._start()
            return
        text = self._tail + self._tokenizer.decode_bytes([token_id])
        self._tail = text[-self._kept_bytes :]
        if self._native is None or None in self._think:
            self._watch_text(text)

    def _watch_text(self, text: bytes) -> None:
        """Markers that are ordinary text in this vocabulary."""
        for marker, opens in zip(self._thoughts, (False, True), strict=True):
            at = text.find(marker)
            if at >= 0:
                self._thinking = opens
                text = text[at + len(marker) :]
        opener = self._opener
        at = -1 if self._thinking or self._native is not None else text.find(opener)
        if at >= 0:
            before, text = text[:at], text[at + len(opener) :]
            if before[-1:] not in _QUOTES:
                self._running = self._start(text)
        self._tail = text[-self._kept_bytes :]

    def _start(self, begun: bytes = b"") -> Running | None:
        """A match of the call. `begun`: bytes of it that came in one token with the marker."""
        try:
            running = start_call(compiler_for(self._tokenizer), self._calls)
        except GrammarError as error:
            log.warning("calls cannot be constrained: %s", error)
            return None
        return running if not begun or running.advance_bytes(begun) else None


def warm_up(tokenizer: Vocabulary) -> None:
    """Prepare the vocabulary (about 2 s for 250k tokens), so that no request has to wait for it."""
    compiler_for(tokenizer)
