"""Headers of harmony messages: whose message it is, on which channel, and to whom it goes.

A header is what stands between `<|start|>` and `<|message|>`, or the rest of one after a prompt that ends
inside it. Models put the recipient before the channel or behind it, name the channel twice, or leave out the
data type's marker; all of these say the same. Pure text; knows no parser.
Source: the harmony response format (openai/harmony, docs/format.md).
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_HEADER = 320  # characters
_NAMESPACE = "functions."
_NOBODY = frozenset({"assistant", "user", "all", "self", "final", "commentary", "analysis"})
_ROLES = frozenset({"assistant", "user", "system", "developer", "tool"})
_CHANNELS = frozenset({"analysis", "commentary", "final"})
_PIECE = re.compile(
    r"(?P<mark><\|(?:start|channel|constrain)\|>)|to=(?P<to>[^\s<]{1,256})|(?P<word>[A-Za-z_][A-Za-z0-9_.\-]*)|\s+"
)
_MARKS_ONLY = re.compile(r"(?:<\|\w+\|>|\s)*")
_IMPOSSIBLE = re.compile(r"[^\w.=:/$@\- \t\r\n]")
_DATA_TYPES = frozenset({"json", "code", "text", "string", "python", "xml", "yaml", "bash", "shell", "html"})


class Header(NamedTuple):
    """`call` is the name of the called tool, "" for words; `thinking`: words of the model for itself."""

    thinking: bool
    call: str = ""


def header_prefix(text: str, room: int) -> int:
    """How many characters of `text`, which holds no markers, may go on with a header of `room` characters."""
    found = _IMPOSSIBLE.search(text)
    return max(0, min(found.start() if found else len(text), room))


def is_words(text: str) -> bool:
    """Whether what looked like a header, and has no body, holds words that may not be lost."""
    header = read_header(text)
    return not _MARKS_ONLY.fullmatch(text) if header is None else bool(header.call)


def read_header(text: str) -> Header | None:
    """What a header says, its markers included; None for text that is none."""
    channel = recipient = role = ""
    position, mark = 0, "<|start|>" if not text.lstrip().startswith("<|channel|>") else ""
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return None
        position = piece.end()
        if piece["mark"]:
            mark = piece["mark"]
            role = "" if mark == "<|start|>" else role
        elif piece["to"]:
            if recipient not in ("", piece["to"]):
                return None
            recipient = piece["to"]
        elif word := piece["word"]:
            if mark == "<|channel|>" and word in _CHANNELS:
                channel = word
            elif mark == "<|start|>" and not role and (word in _ROLES or "." in word):
                role = word
            elif word.lower() not in _DATA_TYPES | _CHANNELS:
                return None
    if recipient and recipient not in _NOBODY:
        return Header(False, recipient.removeprefix(_NAMESPACE))
    if not (channel or role):
        return None
    return Header(channel == "analysis" and role in ("", "assistant"))
