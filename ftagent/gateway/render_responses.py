"""Reply events as OpenAI Responses events, or as one response object.

https://platform.openai.com/docs/api-reference/responses-streaming. Each block of the fold is one item with
one id from its first event to the last; events are numbered. Streamed and whole come from one fold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ftagent.errors import FtError
from ftagent.events import Event, Finished, TokenLogprob, Usage
from ftagent.gateway.divergence import divergence_field
from ftagent.gateway.errors import fault_of
from ftagent.gateway.fold import Closed, Grew, Opened, Part, ReplyBlock, ReplyFold
from ftagent.gateway.sse import encode_event
from ftagent.gateway.wire_responses import Called
from ftagent.gateway.wire_responses_items import seal

_PREFIXES = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known before the reply. `created` is in Unix seconds.

    `settings` are repeated in every object. `called` has the client's names of the tools. `summary`:
    reasoning is sent as its own summary; `sealed`: also as opaque text; `logprobs` are wanted.
    """

    id: str
    created: int
    settings: Mapping[str, Any]
    called: Mapping[str, Called]
    summary: bool = False
    sealed: bool = False
    logprobs: bool = False


class ResponseRenderer:
    """Renders one reply. `on_end` gets the whole object when the reply has ended as the model wished."""

    def __init__(self, head: ResponseHead, on_end: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._head = head
        self._on_end = on_end
        self._fold = ReplyFold()
        self._items: list[dict[str, Any]] = []  # complete ones
        self._sent = 0  # events
        self._body: dict[str, Any] | None = None  # the whole object, at the end

    def begin(self) -> bytes:
        beginning = self._response("in_progress")
        return self._lifecycle("created", beginning) + self._lifecycle("in_progress", beginning)

    def push(self, event: Event) -> bytes:
        parts = self._fold.push(event)
        chunks = [self._numbered(data) for part in parts for data in self._part_events(part)]
        if isinstance(event, Finished):
            self._body = body = self._ended(event)
            chunks.append(self._lifecycle(body["status"], body))
            if self._on_end is not None:
                self._on_end(body)
        return b"".join(chunks)

    def keepalive(self) -> bytes:
        # Codex counts only real events as signs of life, so no comment will do.
        return self._lifecycle("in_progress", self._response("in_progress"))

    def fail(self, error: Exception) -> bytes:
        fault = fault_of(error, "openai-responses")
        # Of the codes that the SDK's type allows, the two that tell who is at fault.
        code = "server_error" if fault.status >= 500 else "invalid_prompt"
        body = self._response("failed", error={"code": code, "message": fault.message})
        return self._lifecycle("failed", body)

    def whole(self) -> dict[str, Any]:
        if self._body is None:
            raise FtError("a response was rendered before it was finished")
        return self._body

    def _ended(self, finished: Finished) -> dict[str, Any]:
        usage = _usage(finished.usage)
        if finished.reason == "length":
            details = {"reason": "max_output_tokens"}
            return self._response("incomplete", incomplete_details=details, usage=usage)
        completed = max(self._head.created, int(time.time()))
        return self._response("completed", completed_at=completed, usage=usage)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            **self._head.settings,
            "output": list(self._items),
            "usage": None,
            **fields,
        }

    def _lifecycle(self, name: str, response: dict[str, Any]) -> bytes:
        return self._numbered({"type": f"response.{name}", "response": response})

    def _numbered(self, data: dict[str, Any]) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return encode_event({"type": data["type"], "sequence_number": number, **data}, data["type"])

    def _part_events(self, part: Part) -> Iterator[dict[str, Any]]:
        block = part.block
        match part:
            case Opened():
                item = self._item(block, "in_progress", "")
                yield {"type": "response.output_item.added", "output_index": block.index, "item": item}
            case Closed():
                # Only the end of the reply leaves a block open; one that the limit cut is not complete.
                finished = self._fold.finished
                cut = finished is not None and finished.reason == "length"
                self._items.append(self._item(block, "incomplete" if cut else "completed", block.text))
        yield from self._call_events(part) if block.call else self._text_events(part)
        if isinstance(part, Closed):
            item = self._items[-1]
            yield {"type": "response.output_item.done", "output_index": block.index, "item": item}

    def _call_events(self, part: Part) -> Iterator[dict[str, Any]]:
        block = part.block
        place = {"item_id": self._item_id(block), "output_index": block.index}
        kind = self._called(block).kind
        if kind == "tool_search":
            return
        if kind == "function":
            name = "response.function_call_arguments"
            if isinstance(part, Grew):
                yield {"type": f"{name}.delta", **place, "delta": part.text}
            elif isinstance(part, Closed):
                words = {"arguments": block.text, "name": self._called(block).name}
                yield {"type": f"{name}.done", **place, **words}
        elif isinstance(part, Closed):
            # The raw text is inside a JSON string, so it is sent in one piece when that string is complete.
            raw, name = block.free_text(), "response.custom_tool_call_input"
            yield {"type": f"{name}.delta", **place, "delta": raw}
            yield {"type": f"{name}.done", **place, "input": raw}

    def _text_events(self, part: Part) -> Iterator[dict[str, Any]]:
        block = part.block
        summary = block.kind == "thinking" and self._head.summary
        index = {"summary_index": 0} if summary else {"content_index": 0}
        place = {"item_id": self._item_id(block), "output_index": block.index, **index}
        part_name = "response.reasoning_summary_part" if summary else "response.content_part"
        said = "output_text" if block.kind == "text" else "reasoning_text"
        words = f"response.{'reasoning_summary_text' if summary else said}"
        match part:
            case Opened():
                yield {"type": f"{part_name}.added", **place, "part": self._text_part(block, "")}
            case Grew():
                logprobs = {"logprobs": self._logprobs(part.logprobs)} if block.kind == "text" else {}
                yield {"type": f"{words}.delta", **place, "delta": part.text, **logprobs}
            case Closed():
                logprobs = {"logprobs": self._logprobs(block.logprobs)} if block.kind == "text" else {}
                yield {"type": f"{words}.done", **place, "text": block.text, **logprobs}
                yield {"type": f"{part_name}.done", **place, "part": self._text_part(block, block.text)}

    def _text_part(self, block: ReplyBlock, text: str) -> dict[str, Any]:
        if block.kind == "thinking":
            return {"type": "summary_text" if self._head.summary else "reasoning_text", "text": text}
        logprobs = self._logprobs(block.logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, block: ReplyBlock, status: str, text: str) -> dict[str, Any]:
        """`text` is empty while the item is in progress, then all of it."""
        if block.call is not None:
            return self._call_item(block, status, text)
        parts = [] if status == "in_progress" else [self._text_part(block, text)]
        base = {"id": self._item_id(block), "status": status}
        if block.kind == "text":
            return {"type": "message", **base, "role": "assistant", "content": parts}
        filled, empty = ("summary", "content") if self._head.summary else ("content", "summary")
        sealed = seal(text) if self._head.sealed and parts else None
        return {"type": "reasoning", **base, filled: parts, empty: [], "encrypted_content": sealed}

    def _call_item(self, block: ReplyBlock, status: str, text: str) -> dict[str, Any]:
        assert block.call is not None
        called = self._called(block)
        base = {"id": self._item_id(block), "status": status, "call_id": block.call.id}
        if called.kind == "tool_search":
            arguments = block.arguments() if text else {}
            return {"type": "tool_search_call", **base, "execution": "client", "arguments": arguments}
        base["name"] = called.name
        if called.namespace is not None:
            base["namespace"] = called.namespace
        if called.kind == "custom":
            return {"type": "custom_tool_call", **base, "input": block.free_text() if text else ""}
        return {"type": "function_call", **base, "arguments": text}

    def _called(self, block: ReplyBlock) -> Called:
        assert block.call is not None
        return self._head.called.get(block.call.name) or Called("function", block.call.name)

    def _item_id(self, block: ReplyBlock) -> str:
        prefix = {"text": "msg", "thinking": "rs"}.get(block.kind) or _PREFIXES[self._called(block).kind]
        return f"{prefix}_{self._head.id.removeprefix('resp_')}_{block.index}"

    def _logprobs(self, tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        if not self._head.logprobs:
            return []
        return [
            {
                **_logprob(token.text, token.logprob),
                "top_logprobs": [_logprob(text, value) for _, text, value in token.top],
            }
            for token in tokens
        ]


def _logprob(text: str, logprob: float) -> dict[str, Any]:
    # Part of a character has no text of its own, so its bytes are not known from it.
    return {"token": text, "logprob": logprob, "bytes": [] if "\ufffd" in text else list(text.encode())}


def _usage(usage: Usage) -> dict[str, Any]:
    """Cached tokens are counted inside the input, reasoning inside the output."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **divergence_field(usage),
    }
