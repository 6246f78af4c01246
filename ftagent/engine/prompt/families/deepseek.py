"""DeepSeek V3, R1 and V3.1: calls between tokens of their own, arguments as one JSON object.

V3 and R1 write `function`, a separator, the name and a fenced block; V3.1 the name, a separator and the bare
object. Either is read whichever was taught.
Source: the families' chat templates.
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import CONTENT, THINKING, bracketed, native, table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
END_OF_TURN = "<｜end▁of▁sentence｜>"

_NAME = (
    Rule(f"{_CALL}function{_SEPARATOR}", "call", "arguments", named=True, followed=("```", "{", _CALL_END)),
    Rule(_CALL, "call", "arguments", closes=_SEPARATOR, followed=("{", _CALL_END)),
)
_END = (
    Rule(_CALL_END, "end_call", "after"),
    Rule(_CALLS_END, "end_call", "content"),
)
_FENCES = (Rule("```json", "drop", "arguments"), Rule("```", "drop", "arguments"))
_LAYOUT = tuple(Rule(mark, "drop", "after") for mark in ("```", "}", ","))

_V3_SPELLING = Spelling(
    _CALLS,
    f"{_CALL}function{_SEPARATOR}",
    "\n```json\n",
    f"\n```{_CALL_END}",
    _CALLS_END,
    joins="\n",
    bars=_CALLS,
)
_V31_SPELLING = Spelling(_CALLS, _CALL, _SEPARATOR, _CALL_END, _CALLS_END, joins="", bars=_CALLS)


def _form(spelling: Spelling) -> FormTable:
    opens = bracketed(_CALLS, _CALLS_END, "calls")
    bare = tuple(rule._replace(when=("tools",)) for rule in _NAME)  # the outer token was left out
    strays = (Rule(_CALL_END, "drop", "content", pairs=_CALL), Rule(_CALL, "literal", "content"))
    states = {
        "content": State("content", (*CONTENT, *opens, *bare, *strays)),
        "thinking": State("thinking", (*THINKING, *native([opens[0], *bare]))),
        "calls": State("blank", _NAME),
        "arguments": State("arguments", (Rule("{", "json_arguments", "json"), *_FENCES, *_END), then="raw"),
        "raw": State("value", _END),
        "json": State("json", (*_END, *_NAME), then="after"),
        "after": State("leave", (*_END, *_NAME, *_LAYOUT)),
    }
    tokens = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    return FormTable(table(states), spelling, tokens, stops=(END_OF_TURN,))


DEEPSEEK_V3 = _form(_V3_SPELLING)
DEEPSEEK_V31 = _form(_V31_SPELLING)
