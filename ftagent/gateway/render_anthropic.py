"""Reply events as Anthropic Messages events, or as one message.

https://platform.claude.com/docs/en/build-with-claude/streaming. Streamed and whole come from one fold.
"""

from __future__ import annotations

from typing import Any

from ftagent.errors import FtError
from ftagent.events import Event, Finished, FinishReason, Usage
from ftagent.gateway.divergence import divergence_field
from ftagent.gateway.errors import error_body, fault_of
from ftagent.gateway.fold import Closed, Grew, Opened, Part, ReplyBlock, ReplyFold
from ftagent.gateway.sse import encode_event

# Clients send it back with the thinking, and refuse a block without one. Nothing here depends on it.
SIGNATURE = "ftagent"

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "cancelled": "end_turn",
}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageRenderer:
    """Renders one reply. `model` is echoed as the client spelled it."""

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._fold = ReplyFold()

    def begin(self) -> bytes:
        # The prompt is counted later, so this usage is zero; message_delta has the figures.
        message = self._message([], None, _usage(Usage(0, 0)))
        return _event({"type": "message_start", "message": message})

    def push(self, event: Event) -> bytes:
        events = [item for part in self._fold.push(event) for item in _part_events(part)]
        if isinstance(event, Finished):
            events += self._end(event)
        return b"".join(map(_event, events))

    def keepalive(self) -> bytes:
        return _event({"type": "ping"})

    def fail(self, error: Exception) -> bytes:
        return _event(error_body(fault_of(error, "anthropic"), "anthropic"))

    def whole(self) -> dict[str, Any]:
        finished = self._fold.finished
        if finished is None:
            raise FtError("a message was rendered before it was finished")
        content = [_whole_block(block) for block in self._fold.blocks] or [_EMPTY_TEXT]
        return self._message(content, finished, _usage(finished.usage))

    def _end(self, finished: Finished) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if not self._fold.blocks:
            # Clients take a message without any block for a broken stream and ask again.
            events.append({"type": "content_block_start", "index": 0, "content_block": _EMPTY_TEXT})
            events.append({"type": "content_block_stop", "index": 0})
        delta = {
            "stop_reason": _STOP_REASONS[finished.reason],
            "stop_sequence": finished.stop_sequence,
            "stop_details": None,
        }
        events.append({"type": "message_delta", "delta": delta, "usage": _usage(finished.usage)})
        return [*events, {"type": "message_stop"}]

    def _message(
        self, content: list[dict[str, Any]], finished: Finished | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": _STOP_REASONS[finished.reason] if finished else None,
            "stop_sequence": finished.stop_sequence if finished else None,
            "stop_details": None,
            "usage": usage,
        }


_EMPTY_TEXT: dict[str, Any] = {"type": "text", "text": ""}


def _event(data: dict[str, Any]) -> bytes:
    return encode_event(data, data["type"])


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts cached tokens apart: input + read + created is the whole prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        **divergence_field(usage),
    }


def _part_events(part: Part) -> list[dict[str, Any]]:
    index = part.block.index
    match part:
        case Opened(block):
            return [{"type": "content_block_start", "index": index, "content_block": _empty_block(block)}]
        case Grew(block, text):
            if block.kind == "tool":
                return [_delta(index, "input_json_delta", partial_json=text)]
            kind, key = _DELTAS[block.kind]
            return [_delta(index, kind, **{key: text})]
        case Closed(block):
            stop = {"type": "content_block_stop", "index": index}
            if block.kind == "thinking":
                return [_delta(index, "signature_delta", signature=SIGNATURE), stop]
            return [stop]


def _delta(index: int, kind: str, **fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def _empty_block(block: ReplyBlock) -> dict[str, Any]:
    if block.call is not None:
        return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": {}}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return _EMPTY_TEXT


def _whole_block(block: ReplyBlock) -> dict[str, Any]:
    filled = _empty_block(block)
    if block.call is not None:
        return {**filled, "input": block.arguments()}
    if block.kind == "thinking":
        return {**filled, "thinking": block.text, "signature": SIGNATURE}
    return {**filled, "text": block.text}
