"""Reply events as OpenAI chat completion or text completion chunks, or as one object.

https://platform.openai.com/docs/api-reference/chat. `reasoning_content` is the field that local servers and
their clients agreed on for thinking. Streamed and whole come from one fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ftagent.errors import FtError
from ftagent.events import Event, Finished, FinishReason, TokenLogprob, Usage
from ftagent.gateway.divergence import divergence_field
from ftagent.gateway.errors import error_body, fault_of
from ftagent.gateway.fold import Closed, Grew, Opened, Part, ReplyBlock, ReplyFold
from ftagent.gateway.sse import DONE, encode_event

_FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",
}


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every object of one reply repeats. `created` is in Unix seconds."""

    id: str
    model: str
    created: int
    include_usage: bool = False  # streams only: one more chunk with the usage
    logprobs: bool = False


class ChatRenderer:
    """Renders one chat reply. Calls of `custom_tools` carry free-form text instead of JSON arguments."""

    def __init__(self, head: ReplyHead, custom_tools: frozenset[str] = frozenset()) -> None:
        self._head = head
        self._custom_tools = custom_tools
        self._fold = ReplyFold()
        self._role_sent = False

    def begin(self) -> bytes:
        # Benchmarks take the first chunk for the first token, so nothing is sent before it.
        return b""

    def push(self, event: Event) -> bytes:
        chunks = [chunk for part in self._fold.push(event) for chunk in self._part_chunks(part)]
        if isinstance(event, Finished):
            # A reply without a single delta still names its role.
            delta = {} if self._role_sent else {"content": ""}
            chunks.append(self._chunk(delta, finish=_FINISH_REASONS[event.reason]))
            if self._head.include_usage:
                chunks.append(
                    {**self._object("chat.completion.chunk"), "choices": [], "usage": _usage(event.usage)}
                )
            return b"".join(map(encode_event, chunks)) + DONE
        return b"".join(map(encode_event, chunks))

    def keepalive(self) -> bytes:
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return encode_event({**self._object("chat.completion.chunk"), "choices": [choice]})

    def fail(self, error: Exception) -> bytes:
        return encode_event(error_body(fault_of(error, "openai"), "openai"))

    def whole(self) -> dict[str, Any]:
        finished = _finished(self._fold)
        blocks = self._fold.blocks
        calls = [self._call(block) for block in blocks if block.kind == "tool"]
        text, reasoning = _joined(blocks, "text"), _joined(blocks, "thinking")
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _FINISH_REASONS[finished.reason],
        }
        if self._head.logprobs:
            tokens = [token for block in blocks if block.kind == "text" for token in block.logprobs]
            choice["logprobs"] = _chat_logprobs(tokens)
        return {**self._object("chat.completion"), "choices": [choice], "usage": _usage(finished.usage)}

    def _part_chunks(self, part: Part) -> list[dict[str, Any]]:
        block = part.block
        if block.call is not None:
            return self._call_chunks(part, block)
        if not isinstance(part, Grew):
            return []
        if block.kind == "thinking":
            return [self._chunk({"reasoning_content": part.text})]
        return [self._chunk({"content": part.text}, logprobs=part.logprobs)]

    def _call_chunks(self, part: Part, block: ReplyBlock) -> list[dict[str, Any]]:
        assert block.call is not None
        index = block.call.index
        if block.call.name in self._custom_tools:
            # The raw text is inside a JSON string, so it is sent in one piece when that string is complete.
            return (
                [self._call_chunk({"index": index, **self._call(block)})] if isinstance(part, Closed) else []
            )
        match part:
            case Opened():
                return [self._call_chunk({"index": index, **_function_call(block, "")})]
            case Grew(_, text):
                return [self._call_chunk({"index": index, "function": {"arguments": text}})]
        return []

    def _call_chunk(self, call: dict[str, Any]) -> dict[str, Any]:
        return self._chunk({"tool_calls": [call]})

    def _call(self, block: ReplyBlock) -> dict[str, Any]:
        assert block.call is not None
        if block.call.name not in self._custom_tools:
            return _function_call(block, block.text)
        custom = {"name": block.call.name, "input": block.free_text()}
        return {"id": block.call.id, "type": "custom", "custom": custom}

    def _chunk(
        self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        if not self._role_sent:
            delta = {"role": "assistant", **delta}
            self._role_sent = True
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        if self._head.logprobs:
            choice["logprobs"] = _chat_logprobs(logprobs) if logprobs else None
        return {**self._object("chat.completion.chunk"), "choices": [choice]}

    def _object(self, kind: str) -> dict[str, Any]:
        return _object(self._head, kind)


class CompletionRenderer:
    """Renders one text completion of a raw prompt."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._fold = ReplyFold()
        self._offset = 0  # characters of the reported tokens so far

    def begin(self) -> bytes:
        return b""

    def push(self, event: Event) -> bytes:
        parts = self._fold.push(event)
        chunks = [self._chunk(part.text, part.logprobs) for part in parts if isinstance(part, Grew)]
        if not isinstance(event, Finished):
            return b"".join(map(encode_event, chunks))
        # Tokens without a delta of their own (the end-of-text token) are reported with the last chunk.
        chunks.append(self._chunk("", self._fold.unplaced, finish=_FINISH_REASONS[event.reason]))
        if self._head.include_usage:
            chunks.append({**self._object(), "choices": [], "usage": _usage(event.usage)})
        return b"".join(map(encode_event, chunks)) + DONE

    def keepalive(self) -> bytes:
        return encode_event(self._chunk("", ()))

    def fail(self, error: Exception) -> bytes:
        return encode_event(error_body(fault_of(error, "openai"), "openai"))

    def whole(self) -> dict[str, Any]:
        finished = _finished(self._fold)
        blocks = self._fold.blocks
        tokens = [token for block in blocks for token in block.logprobs] + self._fold.unplaced
        choice = {
            "index": 0,
            "text": "".join(block.text for block in blocks),
            "logprobs": _completion_logprobs(tokens, 0) if self._head.logprobs else None,
            "finish_reason": _FINISH_REASONS[finished.reason],
        }
        return {**self._object(), "choices": [choice], "usage": _usage(finished.usage)}

    def _chunk(
        self, text: str, tokens: Sequence[TokenLogprob], *, finish: str | None = None
    ) -> dict[str, Any]:
        logprobs = None
        if self._head.logprobs and tokens:
            logprobs = _completion_logprobs(tokens, self._offset)
            self._offset += sum(len(token.text) for token in tokens)
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {**self._object(), "choices": [choice]}

    def _object(self) -> dict[str, Any]:
        return _object(self._head, "text_completion")


def _object(head: ReplyHead, kind: str) -> dict[str, Any]:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model}


def _finished(fold: ReplyFold) -> Finished:
    if fold.finished is None:
        raise FtError("a reply was rendered before it was finished")
    return fold.finished


def _joined(blocks: Iterable[ReplyBlock], kind: str) -> str:
    return "".join(block.text for block in blocks if block.kind == kind)


def _function_call(block: ReplyBlock, arguments: str) -> dict[str, Any]:
    assert block.call is not None
    function = {"name": block.call.name, "arguments": arguments}
    return {"id": block.call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    """OpenAI counts cached tokens inside the prompt, and reasoning inside the completion."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        **divergence_field(usage),
    }


def _chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    def entry(text: str, logprob: float) -> dict[str, Any]:
        # Part of a character has no text of its own, so its bytes are not known from it either.
        known = "�" not in text
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}

    content = [
        {
            **entry(token.text, token.logprob),
            "top_logprobs": [entry(text, value) for _, text, value in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(tokens: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """`start` is the offset in characters of the first token in the completion's text."""
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{text: value for _, text, value in reversed(token.top)} for token in tokens],
        "text_offset": offsets,
    }
