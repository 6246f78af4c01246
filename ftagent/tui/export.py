"""A session as a Markdown document, for /export. Knows no widget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ftagent.answer import safe_text
from ftagent.errors import ConfigError
from ftagent.sessions import Session, StoredMessage


def as_markdown(session: Session) -> str:
    """What was said, without thinking; answers that were cut short say so."""
    title = f"# Session {session.id}\n\nModel: {session.model or 'unknown'}\n"
    return title + "".join(_turn(entry) for entry in session.messages)


def write_export(session: Session, name: str) -> Path:
    """Write the document to a new file called `name`; returns its path.

    Raises ConfigError when the file exists or cannot be written: an export never replaces anything.
    """
    path = Path(name).expanduser()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(as_markdown(session))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; choose another name") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return path


def last_answer(entries: Sequence[StoredMessage]) -> str:
    """The text of the newest answer; empty when there is none."""
    texts = (entry.message.text for entry in reversed(entries) if entry.message.role == "assistant")
    return safe_text(next(texts, ""))


def _turn(entry: StoredMessage) -> str:
    speaker = "You" if entry.message.role == "user" else "Model"
    mark = " (stopped)" if entry.stopped else ""
    return f"\n## {speaker}{mark}\n\n{safe_text(entry.message.text).strip()}\n"
