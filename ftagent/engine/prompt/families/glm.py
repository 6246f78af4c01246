"""GLM-4.5 to GLM-5: a call is the tool's name, then keys and values in tags of their own.

GLM-4 writes each tag on a line of its own, GLM-5 without a break; either is read.
Source: the families' chat templates.
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import CONTENT, THINKING, bracketed, native, table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State, Thoughts

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _VALUE = "<arg_key>", "<arg_value>"
_CALL = Rule(_OPEN, "call", "body", named=True, followed=(_KEY, _CLOSE))
_JSON = Rule(_OPEN, "open", "json_next", followed=("{",))  # what models of other families write
_END = Rule(_CLOSE, "end_call", "after")
_PARAMETER = Rule(_KEY, "parameter", "value", closes=f"</arg_key>\n{_VALUE}")
# A closer counts only where the call can go on after it, so that a file about this very form survives.
_VALUE_ENDS = (
    Rule("</arg_value>", "end_parameter", "body", followed=(_KEY, _CLOSE, _OPEN, "")),
    Rule(_CLOSE, "end_call", "after", followed=(_OPEN, "")),
)


def _form(gap: str, efforts: tuple[str, ...] = ()) -> FormTable:
    calls = tuple(rule._replace(when=("tools",)) for rule in (_CALL, _JSON))
    states = {
        "content": State("content", (*CONTENT, *calls, *bracketed(_OPEN, _CLOSE, "body")[1:])),
        "thinking": State("thinking", (*THINKING, *native(calls))),
        "body": State("stray", (_PARAMETER, _END, _CALL, Rule("</arg_value>", "drop", "body"))),
        "value": State("value", _VALUE_ENDS),
        "json_next": State("blank", (Rule("{", "json_call", "json"),)),
        "json": State("json", (_END, _CALL), then="after"),
        "after": State("leave", (_END, _CALL, _JSON)),
    }
    spelling = Spelling(
        _OPEN,
        "",
        gap,
        "",
        _CLOSE,
        parameter=_KEY,
        after_parameter=f"</arg_key>{gap}{_VALUE}",
        end_parameter="</arg_value>",
        after_value=gap,
        apart=gap,
        bars=_OPEN,
    )
    tokens = (_OPEN, _CLOSE, _KEY, "</arg_key>", _VALUE, "</arg_value>")
    stops = ("<|endoftext|>", "<|user|>", "<|observation|>")
    thoughts = Thoughts(f"{gap}<think>")
    return FormTable(table(states), spelling, tokens, thoughts=thoughts, stops=stops, efforts=efforts)


GLM4 = _form("\n")
GLM5 = _form("", efforts=("low", "high", "max"))
