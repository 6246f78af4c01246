"""Calls that are the whole reply, as JSON: Llama 3, and Mistral's with a token before them.

Llama's calls have no marker, so an object counts only if it names an offered tool; anything else is an answer
in JSON. Source: the families' chat templates.
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import CONTENT, PLAIN, THINKING, table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State, Thoughts

_TAG = "<|python_tag|>"
_KEYS = tuple(f'"{key}"' for key in ("name", "type", "function", "parameters"))
_OBJECT = Rule("{", "json_call", "json")
_BARE = _OBJECT._replace(when=("start", "tools"), followed=_KEYS)

_llama_states = {
    "content": State("content", (*CONTENT, Rule(_TAG, "open", "tagged", when=("tools",)), _BARE)),
    "thinking": State("thinking", THINKING),
    "tagged": State("blank", (_OBJECT, Rule("[", "drop", "tagged"))),
    "json": State("json", (), then="after"),
    "after": State(
        "leave",
        (_OBJECT._replace(followed=_KEYS), *(Rule(mark, "drop", "after") for mark in (";", ",", "]", _TAG))),
    ),
}

LLAMA3 = FormTable(
    table(_llama_states),
    Spelling("{", '"name": "', '", "parameters": ', "", "}", apart=None),
    offered_only=True,
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
)

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAMED = Rule(_CALLS, "call", "arguments", when=("tools",), named=True, followed=(_ARGUMENTS, _ID, "{"))
_LIST = Rule(_CALLS, "open", "calls", when=("tools",))
_mistral_thoughts = (
    Rule("[/THINK]", "switch", "content"),
    Rule("[THINK]", "drop", "thinking", when=("start",)),
)
_mistral_content = (
    Rule("[THINK]", "switch", "thinking", when=("start",)),
    Rule("[THINK]", "literal", "content"),
    Rule("[/THINK]", "drop", "content", pairs="[THINK]"),
)
_mistral_states = {
    "content": State("content", (*_mistral_content, _NAMED, _LIST, Rule(_CALLS, "literal", "content"))),
    "thinking": State("thinking", _mistral_thoughts),
    "calls": State("blank", (_OBJECT, Rule("[", "drop", "calls"))),
    "arguments": State(
        "arguments",
        (
            Rule(_ARGUMENTS, "drop", "arguments"),
            Rule(_ID, "drop", "arguments", named=True),
            Rule("{", "json_arguments", "json"),
            _NAMED,
        ),
        then="raw",
    ),
    "raw": State("value", (_NAMED,)),
    "json": State("json", (_NAMED,), then="after"),
    "after": State(
        "leave", (_NAMED, _LIST, _OBJECT, *(Rule(mark, "drop", "after") for mark in (",", "]", "}")))
    ),
}

MISTRAL = FormTable(
    table(_mistral_states),
    Spelling(f"{_CALLS}[", '{"name": "', '", "arguments": ', "}", "]", joins=", ", bars=_CALLS),
    (_CALLS, _ARGUMENTS, _ID, "[THINK]", "[/THINK]"),
    thoughts=Thoughts("[THINK]", "[/THINK]"),
    stops=("</s>",),
)

PLAIN_FORM = FormTable(PLAIN)
