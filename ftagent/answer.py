"""One answer without a screen (`ftagent chat -p`), and the reply that the chat screen collects the same way.

stdout carries the answer only; what is worth saying besides goes to stderr. Knows no Textual and no HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from ftagent.conversation import Block, Message, Text, Thinking
from ftagent.engine.api import Engine, GenerateRequest, SamplingParams
from ftagent.errors import ConfigError, FtError
from ftagent.events import Event, Failed, Finished, TextDelta, ThinkingDelta, ToolCallStart
from ftagent.sessions import Session

FAILED = 1  # the engine gave up in the middle of the answer
PIPE_CLOSED = 141  # 128 + SIGPIPE

# C0 and C1 controls but tab and newline, DEL, line breaks of other conventions, text direction overrides
# (they let text look like other text), and halves of surrogate pairs (no terminal can be sent one).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_text(text: str) -> str:
    """`text` without anything a terminal could take for a command. Newlines and tabs stay.

    Each removed character is dropped by itself, so the result of joined pieces equals the joined results.
    """
    return _UNSAFE.sub("", text.replace("\u2028", "\n").replace("\u2029", "\n"))


@dataclass(slots=True)
class Reply:
    """The blocks of one reply as its events come in; `finished` or `failed` is set at the end."""

    blocks: list[Block] = field(default_factory=list)
    finished: Finished | None = None
    failed: Failed | None = None
    refused_calls: list[str] = field(default_factory=list)  # names of calls made although no tool was offered

    def add(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                last = self.blocks[-1] if self.blocks else None
                joined = last.text + text if isinstance(last, Text) else text
                self._put(Text(joined), isinstance(last, Text))
            case ThinkingDelta(text):
                last = self.blocks[-1] if self.blocks else None
                joined = last.text + text if isinstance(last, Thinking) else text
                self._put(Thinking(joined), isinstance(last, Thinking))
            case ToolCallStart(_, _, name):
                self.refused_calls.append(name)
            case Finished():
                self.finished = event
            case Failed():
                self.failed = event

    def _put(self, block: Block, same_kind: bool) -> None:
        if same_kind:
            self.blocks[-1] = block
        else:
            self.blocks.append(block)

    @property
    def complete(self) -> bool:
        return self.finished is not None and self.finished.reason != "cancelled"

    @property
    def message(self) -> Message:
        return Message("assistant", tuple(self.blocks))

    def remark(self) -> str:
        """What the reader should know about how the reply ended; empty when it ended well."""
        if self.failed is not None:
            return f"failed: {self.failed.message}"
        if self.finished is None or self.finished.reason == "cancelled":
            return "stopped"
        if self.refused_calls:
            return f"the model asked for the tool {self.refused_calls[0]}, but a chat has no tools"
        if self.finished.reason == "length":
            return "cut off: the token limit is reached"
        return ""


def chat_request(session: Session, thinking: bool | None) -> GenerateRequest:
    """The request for the next answer of `session`: its whole conversation, no tools."""
    return GenerateRequest(session.conversation(thinking), SamplingParams(), session=session.id)


def combined_prompt(argument: str | None, stdin: TextIO) -> str:
    """The prompt of `-p`: the argument, then what is piped in, a blank line between.

    Raises ConfigError when there is neither, or when stdin is not UTF-8 text.
    """
    try:
        piped = "" if stdin.isatty() else stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"stdin is not text: {error.reason} at byte {error.start}; pipe in UTF-8"
        ) from error
    parts = [part for part in ((argument or "").strip(), piped.strip("\n")) if part.strip()]
    if not parts:
        raise ConfigError('no prompt: give one with `ftagent chat -p "..."` or pipe it in')
    return "\n\n".join(parts)


def answer_once(
    engine: Engine,
    prompt: str,
    *,
    as_json: bool,
    out: TextIO,
    err: TextIO,
    session: Session,
    thinking: bool | None = None,
) -> int:
    """Answer `prompt` as the next turn of `session`, streaming to `out`; returns the exit code.

    Plain: the answer's text only, and a last newline; remarks and errors go to `err`. As JSON lines: a
    `session` line, `thinking` and `text` deltas, then `finished` or `error`. What was answered is kept.
    Codes: 0 done, 1 failed midway, 130 on SIGINT, 143 on SIGTERM, 141 when `out` was closed, else the
    FtError's own.
    """
    printer = _JsonPrinter(out) if as_json else _TextPrinter(out, err)
    reply = Reply()
    record = Recorder(session, lambda warning: _narrate(err, warning))
    try:
        printer.begin(engine, session)
        record.prompt(prompt)
        code = _run(engine, chat_request(session, thinking), reply, printer)
        printer.end(reply, code)
        record.reply(reply)
    except FtError as error:
        printer.error(str(error), error.exit_code)
        record.reply(reply)
        code = error.exit_code
    except BrokenPipeError:
        record.reply(reply)
        _discard(out)
        code = PIPE_CLOSED
    return code


def _run(engine: Engine, request: GenerateRequest, reply: Reply, printer: _TextPrinter | _JsonPrinter) -> int:
    received: list[int] = []
    try:
        asyncio.run(_stream(engine, request, reply, printer, received.append))
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    return 0 if reply.complete else FAILED


async def _stream(
    engine: Engine,
    request: GenerateRequest,
    reply: Reply,
    printer: _TextPrinter | _JsonPrinter,
    on_signal: Callable[[int], None],
) -> None:
    with _cancelled_by_signals(on_signal):
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                reply.add(event)
                printer.event(event)


@contextmanager
def _cancelled_by_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Cancel the current task on SIGINT and SIGTERM.

    The loop's own handlers wake it at any moment; asyncio.run's may come just before a long wait and be
    seen after it. Only the main thread can have them.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()

    def stop(number: int) -> None:
        on_signal(number)
        task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _discard(out: TextIO) -> None:
    """Point the closed pipe's descriptor at nothing, or the interpreter complains when it flushes at exit."""
    with suppress(OSError):
        target = out.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


def _narrate(err: TextIO, text: str) -> None:
    err.write(f"ftagent: {safe_text(text)}\n")


class Recorder:
    """Keeps the turn in the session. A record that cannot be written costs one warning, never the answer."""

    def __init__(self, session: Session, warn: Callable[[str], None]) -> None:
        self._session = session
        self._warn = warn
        self._open = False  # a prompt is stored and its answer is not
        self._warned = False

    def prompt(self, prompt: str) -> None:
        self._open = True
        self._attempt(lambda: self._session.append(Message("user", (Text(prompt),))))

    def reply(self, reply: Reply) -> None:
        """Store what was answered, or withdraw the prompt that got no answer."""
        if self._open and reply.blocks:
            self._attempt(lambda: self._session.append(reply.message, stopped=not reply.complete))
        elif self._open:
            self._attempt(self._session.retract)
        self._open = False

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except FtError as error:
            if not self._warned:
                self._warn(str(error))
            self._warned = True


class _TextPrinter:
    """The answer as text. Control characters are left out where a terminal would act on them."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._terminal = out.isatty()
        self._at_line_start = True

    def begin(self, engine: Engine, session: Session) -> None:
        pass

    def event(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            text = safe_text(event.text) if self._terminal else event.text
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n") if text else self._at_line_start

    def error(self, message: str, code: int) -> None:
        self._close_line()
        _narrate(self._err, message)

    def end(self, reply: Reply, code: int) -> None:
        self._close_line()
        if remark := reply.remark():
            _narrate(self._err, remark)

    def _close_line(self) -> None:
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True


class _JsonPrinter:
    """One JSON object per line, flushed, so that a reader sees each event when it happens."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self, engine: Engine, session: Session) -> None:
        model = engine.model
        self._write(
            {
                "type": "session",
                "version": 1,
                "id": session.id,
                "model": model.id,
                "context": model.context,
                "embedded": model.embedded,
            }
        )

    def event(self, event: Event) -> None:
        if isinstance(event, ThinkingDelta):
            self._write({"type": "thinking", "text": event.text})
        elif isinstance(event, TextDelta):
            self._write({"type": "text", "text": event.text})

    def error(self, message: str, code: int) -> None:
        self._write({"type": "error", "message": message, "exit_code": code})

    def end(self, reply: Reply, code: int) -> None:
        if reply.failed is not None:
            self.error(reply.failed.message, code)
        elif reply.finished is None:
            self.error(reply.remark(), code)
        else:
            usage = asdict(reply.finished.usage)
            self._write({"type": "finished", "reason": reply.finished.reason, "usage": usage})

    def _write(self, record: Mapping[str, Any]) -> None:
        # ASCII only: some line readers split at U+2028 as well.
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()
