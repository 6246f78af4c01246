"""Offered tools told in the system's words, for templates that have no place for them, as DeepSeek V3.1's.

Knows the dict form that templates read, and the spelling of calls; knows no template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftagent.engine.prompt.forms import FormTable


def call_example(table: FormTable) -> str:
    """One call as the form spells it; "" for a form without calls."""
    spelling = table.spelling
    if spelling is None:
        return ""
    if spelling.parameter:
        value = f"VALUE{spelling.end_parameter}{spelling.after_value}"
        arguments = f"{spelling.parameter}PARAMETER{spelling.after_parameter}{value}"
    else:
        arguments = '{"PARAMETER": VALUE}'
    parts = (spelling.opens, spelling.head, "FUNCTION", spelling.after_name, arguments)
    return "".join((*parts, spelling.tail, spelling.closes))


def tell_tools(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], example: str, system: bool
) -> None:
    """Add the tools to the first system message of `messages`, in place, or to the first message of all.

    `system`: the template takes a system message, so that one may be put first.
    """
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = (
        "## Tools\n\nYou can call these functions, whose parameters are given as JSON Schema:\n\n"
        f"{functions}\n\n"
        "To call one, write exactly this, with its name and with arguments that satisfy its schema:\n\n"
        f"{example}"
    )
    if messages[0]["role"] == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{told}"
    elif system:
        messages.insert(0, {"role": "system", "content": told})
    else:
        messages[0]["content"] = f"{told}\n\n{messages[0]['content'] or ''}"
