"""MiniMax-M2: a block of invocations with named parameters, values as bare text.

Source: the family's chat template.
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import CONTENT, THINKING, bracketed, native, table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = Rule("<invoke name=", "call", "invoke", closes=">")
_INVOKE_END = Rule("</invoke>", "end_call", "after")
_BLOCK_END = Rule(_CLOSE, "end_call", "content")
# A closer counts only where the call can go on after it, so that a file about this very form survives.
_VALUE_ENDS = (
    Rule("</parameter>", "end_parameter", "invoke", followed=("<parameter name=", "</invoke>", _CLOSE, "")),
    _INVOKE_END._replace(followed=(_CLOSE, "<invoke name=", "")),
    _BLOCK_END._replace(followed=("",)),
)

_opens = bracketed(_OPEN, _CLOSE, "calls")
_states = {
    "content": State("content", (*CONTENT, *_opens, _INVOKE._replace(when=("offered",)))),
    "thinking": State("thinking", (*THINKING, *native(_opens[:1]))),
    "calls": State("blank", (_INVOKE,)),
    "invoke": State(
        "stray",
        (
            Rule("<parameter name=", "parameter", "value", closes=">"),
            _INVOKE_END,
            _BLOCK_END,
            _INVOKE,
            Rule("</parameter>", "drop", "invoke"),
        ),
    ),
    "value": State("value", _VALUE_ENDS),
    "after": State("leave", (_BLOCK_END, _INVOKE, _INVOKE_END)),
}
_spelling = Spelling(
    _OPEN,
    '\n<invoke name="',
    '">\n',
    "</invoke>",
    f"\n{_CLOSE}",
    parameter='<parameter name="',
    after_parameter='">',
    end_parameter="</parameter>",
    joins="",
    bars=_OPEN,
)

MINIMAX_M2 = FormTable(table(_states), _spelling, (_OPEN, _CLOSE), stops=("[e~[",))
