"""Harmony, the form of gpt-oss: a reply is several messages, each with a header that says what it is.

Source: the harmony response format's own description (openai/harmony, docs/format.md).
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State, Thoughts

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (_END, _CALL, _RETURN)

_HEADERS = tuple(Rule(mark, "header", "header") for mark in (_START, _CHANNEL))
# The prompt ends inside a header, so a reply may go on with the header's words.
_RECIPIENT = tuple(Rule(mark, "header", "header", when=("start",)) for mark in (" to=", "to="))
_CLOSED = tuple(Rule(mark, "end_call", "content") for mark in _ENDS)

_states = {
    "content": State(
        "content",
        (
            *_HEADERS,
            *_RECIPIENT,
            *(Rule(mark, "drop", "content") for mark in (*_ENDS, _MESSAGE, _CONSTRAIN)),
        ),
    ),
    "thinking": State("thinking", (*_HEADERS, *(Rule(mark, "switch", "content") for mark in _ENDS))),
    "header": State(
        "header",
        (
            Rule(_MESSAGE, "message", "content"),
            *(Rule(mark, "header", "header") for mark in (_START, _CHANNEL, _CONSTRAIN)),
            *(Rule(mark, "drop", "content") for mark in _ENDS),
        ),
    ),
    "arguments": State("arguments", (Rule("{", "json_arguments", "json"), *_CLOSED, *_HEADERS), then="raw"),
    "raw": State("value", (*_CLOSED, *_HEADERS)),
    "json": State("json", (*_CLOSED, *_HEADERS), then="after"),
    "after": State("leave", (*_CLOSED, *_HEADERS, Rule("}", "drop", "after"))),
}

HARMONY = FormTable(
    table(_states),
    Spelling(f"{_CHANNEL}commentary to=functions.", "", f" {_CONSTRAIN}json{_MESSAGE}", "", "", apart=None),
    (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
    paragraphs=True,
    thoughts=Thoughts(
        f"{_CHANNEL}analysis{_MESSAGE}",
        _END,
        resumes=f"{_START}assistant",
        answer=f"{_CHANNEL}final{_MESSAGE}",
    ),
    stops=(_RETURN, _CALL),
    efforts=("low", "medium", "high"),
)
