"""DSML, the calls of DeepSeek V3.2, V4 and V4.1: invocations with parameters that say whether they are text.

The three differ in the names of their tags; each is read whichever was taught.
Source: the encoding references that ship with these checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

from ftagent.engine.prompt.families.common import CONTENT, THINKING, bracketed, native, table
from ftagent.engine.prompt.families.deepseek import END_OF_TURN
from ftagent.engine.prompt.forms import Action, FormTable, Rule, Spelling, State

_MARK = "｜DSML｜"  # one token of these vocabularies; the rest of a tag is text


class _Tags(NamedTuple):
    """The names of one version's tags."""

    block: str
    invoke: str = "invoke"
    parameter: str = "parameter"


_V32 = _Tags("function_calls")
_V4 = _Tags("tool_calls")
_V41 = _Tags(" calls", " invoke", " parameter")
_KNOWN = (_V32, _V4, _V41)


def _open(name: str) -> str:
    return f"<{_MARK}{name}"


def _close(name: str) -> str:
    return f"</{_MARK}{name}>"


_INVOKES = tuple(
    Rule(f"{_open(name)} name=", "call", "invoke", closes=">") for name in (_V4.invoke, _V41.invoke)
)
_BLOCK_ENDS = tuple(Rule(_close(tags.block), "end_call", "content") for tags in _KNOWN)
_INVOKE_ENDS = tuple(Rule(_close(name), "end_call", "after") for name in (_V4.invoke, _V41.invoke))
_KINDS: tuple[tuple[Action, str], ...] = (
    ("text_parameter", '" string="true">'),
    ("json_parameter", '" string="false">'),
    ("parameter", '">'),
)
_PARAMETERS = tuple(
    Rule(f'{_open(name)} name="', action, "value", closes=closes)
    for name in (_V4.parameter, _V41.parameter)
    for action, closes in _KINDS
)
# A closer counts only where the call can go on after it, so that a file about this very form survives.
_CAN_FOLLOW = (
    *(_open(name) for name in (_V4.parameter, _V41.parameter)),
    *(_close(name) for name in (_V4.invoke, _V41.invoke)),
    *(_close(tags.block) for tags in _KNOWN),
    "",
)
_VALUE_ENDS = (
    *(
        Rule(_close(name), "end_parameter", "invoke", followed=_CAN_FOLLOW)
        for name in (_V4.parameter, _V41.parameter)
    ),
    *(
        rule._replace(followed=(*(_close(tags.block) for tags in _KNOWN), _open("invoke"), ""))
        for rule in _INVOKE_ENDS
    ),
    *(rule._replace(followed=("",)) for rule in _BLOCK_ENDS),
)


def _spelling(tags: _Tags) -> Spelling:
    return Spelling(
        f"{_open(tags.block)}>",
        f'\n{_open(tags.invoke)} name="',
        '">\n',
        _close(tags.invoke),
        f"\n{_close(tags.block)}",
        parameter=f'{_open(tags.parameter)} name="',
        after_parameter='" string="true">',
        end_parameter=_close(tags.parameter),
        before_json='" string="false">',
        joins="",
        bars=_MARK,
    )


def _form(taught: _Tags) -> FormTable:
    blocks = [bracketed(f"{_open(tags.block)}>", _close(tags.block), "calls") for tags in _KNOWN]
    opens = [rule for rules in blocks for rule in rules]
    bare = [rule._replace(when=("tools",)) for rule in _INVOKES]  # the outer tag was left out
    states = {
        "content": State("content", (*CONTENT, *opens, *bare)),
        "thinking": State("thinking", (*THINKING, *native([*(rules[0] for rules in blocks), *bare]))),
        "calls": State("blank", _INVOKES),
        "invoke": State(
            "stray",
            (
                *_PARAMETERS,
                *_INVOKE_ENDS,
                *_BLOCK_ENDS,
                *_INVOKES,
                *(Rule(_close(name), "drop", "invoke") for name in (_V4.parameter, _V41.parameter)),
            ),
        ),
        "value": State("value", _VALUE_ENDS),
        "after": State("leave", (*_BLOCK_ENDS, *_INVOKES, *_INVOKE_ENDS)),
    }
    efforts = ("high", "max") if taught is _V4 else ("low", "high", "xhigh", "max") if taught is _V41 else ()
    return FormTable(table(states), _spelling(taught), (_MARK,), stops=(END_OF_TURN,), efforts=efforts)


DEEPSEEK_V32 = _form(_V32)
DEEPSEEK_V4 = _form(_V4)
DEEPSEEK_V41 = _form(_V41)
