"""Qwen3 (JSON calls) and Qwen3-Coder, Qwen3.5 (XML-like calls), both between `<tool_call>` tags.

Source: the families' chat templates.
"""

from __future__ import annotations

from ftagent.engine.prompt.families.common import CONTENT, THINKING, bracketed, native, table
from ftagent.engine.prompt.forms import FormTable, Rule, Spelling, State

_OPEN = Rule("<tool_call>", "open", "call", when=("tools",))
_CLOSE = Rule("</tool_call>", "end_call", "content")
_FUNCTION = Rule("<function=", "call", "body", closes=">")
_PARAMETER = Rule("<parameter=", "parameter", "value", closes=">")

# Small models leave out closers. A closer inside a value counts only where the call can go on after it, so
# that a file about this very form survives.
_VALUE = (
    Rule(
        "</parameter>",
        "end_parameter",
        "body",
        followed=("<parameter=", "</function>", "</tool_call>", "<tool_call>", ""),
    ),
    Rule("</function>", "end_call", "after", followed=("</tool_call>", "")),
    Rule("</tool_call>", "end_call", "content", followed=("<tool_call>", "")),
    Rule("<parameter=", "parameter", "value", closes=">", when=("next_parameter",)),
)


_JSON_SPELLING = Spelling(
    "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n", "</tool_call>", bars="<tool_call>"
)
_XML_SPELLING = Spelling(
    "<tool_call>",
    "\n<function=",
    ">\n",
    "</function>\n",
    "</tool_call>",
    parameter="<parameter=",
    after_parameter=">\n",
    end_parameter="\n</parameter>",
    bars="<tool_call>",
)


def _form(spelling: Spelling, *, bare_function: bool) -> FormTable:
    """Either spelling is read whichever was taught; a bare <function=...> only where it was taught."""
    bare = (_FUNCTION._replace(when=("offered",)),) if bare_function else ()
    json_next = (Rule("{", "json_call", "json"), Rule("[", "drop", "call"))
    between = tuple(Rule(mark, "drop", "after") for mark in ("}", "]", ","))
    states = {
        "content": State("content", (*CONTENT, *bracketed("<tool_call>", "</tool_call>", "call"), *bare)),
        "thinking": State("thinking", (*THINKING, *native([_OPEN]))),
        "call": State("blank", (_FUNCTION, *json_next)),
        "body": State(
            "stray",
            (
                _PARAMETER,
                Rule("</function>", "end_call", "after"),
                _CLOSE,
                _FUNCTION,
                _OPEN,
                Rule("</parameter>", "drop", "body"),
            ),
        ),
        "value": State("value", _VALUE),
        "json": State("json", (_CLOSE, _OPEN), then="after"),
        "after": State("leave", (_CLOSE, _FUNCTION, _OPEN, json_next[0], *between)),
    }
    return FormTable(table(states), spelling, value_layout=True, stops=("<|im_end|>", "<|endoftext|>"))


QWEN3 = _form(_JSON_SPELLING, bare_function=False)
QWEN3_5 = _form(_XML_SPELLING, bare_function=True)
