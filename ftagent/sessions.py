"""Chat history on disk: one file of JSON lines per session, append-only, readable after a crash.

    {"type":"session","version":1,"id":"20261130-223015-9f3a","started":1796077815.2,"model":"demo"}
    {"type":"message","role":"user","blocks":[{"type":"text","text":"hello"}],"time":1796077815.2}
    {"type":"message","role":"assistant","blocks":[...],"time":1796077816.0,"stopped":true}
    {"type":"retract","time":1796077816.1}

`retract` withdraws the message before it (a prompt that was never answered). Times are seconds since 1970.
Knows no screen and no engine. Files are private to the user: prompts may hold anything.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from ftagent.conversation import Block, Conversation, Message, Role, Text, Thinking
from ftagent.errors import ConfigError, FtError
from ftagent.paths import data_dir

VERSION = 1
NEWEST = "newest"
"""In place of an id: the session that was used last."""

_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_logger = logging.getLogger(__name__)


def default_directory() -> Path:
    """`sessions` under the user's data directory."""
    return data_dir() / "sessions"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a session. `stopped` marks an answer that the user or a fault cut short."""

    message: Message
    time: float
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One row of the list. `first_line` is the first line of the first prompt; `turns` counts prompts."""

    id: str
    started: float  # seconds since 1970
    used: float  # when the last message was written, seconds since 1970
    first_line: str
    turns: int
    model: str


class Session:
    """One conversation, in memory and on disk; SessionStore makes it. No file before the first message."""

    def __init__(self, path: Path, model: str, started: float, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._messages: list[StoredMessage] = []
        self._on_disk = False
        self.id = path.stem
        self.model = model
        self.started = started

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        return tuple(self._messages)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def prompts(self) -> tuple[str, ...]:
        """What the user typed, oldest first."""
        return tuple(entry.message.text for entry in self._messages if entry.message.role == "user")

    def conversation(self, thinking: bool | None = None) -> Conversation:
        """All of it, thinking included: what of it the model sees again is the template's decision."""
        return Conversation(tuple(entry.message for entry in self._messages), thinking=thinking)

    def append(self, message: Message, *, stopped: bool = False) -> None:
        """Keep `message`, on disk when this returns. Raises FtError if it could only be kept in memory."""
        entry = StoredMessage(message, self._clock(), stopped)
        self._messages.append(entry)
        self._write(_encode(entry))

    def retract(self) -> None:
        """Withdraw the newest message. Raises FtError if it could only be withdrawn in memory."""
        self._messages.pop()
        self._write({"type": "retract", "time": self._clock()})

    def _write(self, record: Mapping[str, Any]) -> None:
        """One write per record, so that a crash can cut the last line only."""
        lines = [record]
        if not self._on_disk:
            lines.insert(0, self._header())
        data = b"".join(_line(line) for line in lines)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, _missing_newline(descriptor) + data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise FtError(
                f"cannot write the session to {self._path}: {error.strerror}; it is kept in memory only"
            ) from error
        self._on_disk = True

    def _header(self) -> dict[str, Any]:
        return {
            "type": "session",
            "version": VERSION,
            "id": self.id,
            "started": self.started,
            "model": self.model,
        }

    def _load(self, log_level: int) -> None:
        """Take in every whole line of the file; a damaged one is skipped, and logged at `log_level`."""
        self._on_disk = True
        for number, line in _lines(self._path):
            try:
                self._take(json.loads(line))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                _logger.log(log_level, "%s line %d is skipped: %r", self._path, number, error)

    def _take(self, record: Mapping[str, Any]) -> None:
        match record["type"]:
            case "session":
                self.started, self.model = float(record["started"]), str(record["model"])
            case "message":
                self._messages.append(_decode(record))
            case "retract":
                self._messages.pop()
            case other:
                raise ValueError(f"unknown type {other!r}")


class SessionStore:
    """All sessions under one directory, which is made when the first message is written."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self._clock = clock

    def create(self, model: str = "") -> Session:
        """A new, empty session for the model called `model`."""
        now = self._clock()
        stamp = datetime.fromtimestamp(now).strftime("%Y%m%d-%H%M%S")
        path = self.directory / f"{stamp}-{secrets.token_hex(2)}.jsonl"
        return Session(path, model, now, self._clock)

    def resume(self, wanted: str = NEWEST) -> Session:
        """The session whose id starts with `wanted`, or the one used last.

        Raises ConfigError when there is none, or more than one.
        """
        listed = self.summaries()
        if wanted == NEWEST:
            found = listed[:1]
        else:
            found = tuple(summary for summary in listed if summary.id.startswith(wanted))
        if len(found) == 1:
            return self._open(found[0].id, logging.WARNING)
        raise ConfigError(_why_none(wanted, found, listed, self.directory))

    def summaries(self) -> tuple[SessionSummary, ...]:
        """Every session that has a prompt, the one used last first."""
        sessions = [self._open(path.stem, logging.DEBUG) for path in self._paths()]
        rows = [_summary(session) for session in sessions if session.prompts]
        return tuple(sorted(rows, key=lambda row: (row.used, row.id), reverse=True))

    def _paths(self) -> list[Path]:
        return [path for path in self.directory.glob("*.jsonl") if _ID.fullmatch(path.stem)]

    def _open(self, session_id: str, log_level: int) -> Session:
        path = self.directory / f"{session_id}.jsonl"
        session = Session(path, "", path.stat().st_mtime, self._clock)
        session._load(log_level)
        return session


def _summary(session: Session) -> SessionSummary:
    lines = session.prompts[0].strip().splitlines() or [""]
    return SessionSummary(
        id=session.id,
        started=session.started,
        used=session.messages[-1].time,
        first_line=lines[0],
        turns=len(session.prompts),
        model=session.model,
    )


def _why_none(
    wanted: str, found: tuple[SessionSummary, ...], listed: tuple[SessionSummary, ...], directory: Path
) -> str:
    if not listed:
        return f"no session to resume: {directory} holds none; start one with `ftagent chat`"
    if found:
        names = ", ".join(summary.id for summary in found[:4])
        return f"{len(found)} sessions start with {wanted!r} ({names}); give more of the id"
    return f"no session starts with {wanted!r}; the newest is {listed[0].id}, and /sessions in chat lists all"


def _line(record: Mapping[str, Any]) -> bytes:
    # surrogatepass: a terminal may hand over half a character, and a record must never fail for it.
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _missing_newline(descriptor: int) -> bytes:
    """A newline if the file ends in a cut-off line, so that the next record does not join it."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # Split at LF alone: other line separators may stand unescaped inside a JSON string.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _encode(entry: StoredMessage) -> dict[str, Any]:
    record: dict[str, Any] = {
        "type": "message",
        "role": entry.message.role,
        "blocks": [_encode_block(block) for block in entry.message.blocks],
        "time": entry.time,
    }
    if entry.stopped:
        record["stopped"] = True
    return record


def _encode_block(block: Block) -> dict[str, str]:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text):
            return {"type": "thinking", "text": text}
        case _:
            raise TypeError(f"a chat holds text and thinking only, not {type(block).__name__}")


def _decode(record: Mapping[str, Any]) -> StoredMessage:
    role: Role = record["role"]
    if role not in get_args(Role):
        raise ValueError(f"unknown role {role!r}")
    blocks = tuple(_decode_block(block) for block in record["blocks"])
    return StoredMessage(Message(role, blocks), float(record["time"]), bool(record.get("stopped", False)))


def _decode_block(block: Mapping[str, Any]) -> Block:
    match block["type"]:
        case "text":
            return Text(str(block["text"]))
        case "thinking":
            return Thinking(str(block["text"]))
        case other:
            raise ValueError(f"unknown block type {other!r}")
