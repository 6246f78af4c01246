"""What the forms share: thinking between `<think>` and `</think>`, and content around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ftagent.engine.prompt.forms import Rule, State

THINKING = (
    Rule("</think>", "switch", "content"),
    Rule("<think>", "drop", "thinking", when=("start",)),
)
CONTENT = (
    Rule("<think>", "switch", "thinking", when=("start",)),
    Rule("<think>", "switch", "thinking", when=("native", "line_start")),
    Rule("<think>", "switch", "thinking", when=("line_start",), followed=("",)),
    Rule("<think>", "literal", "content"),
    Rule("</think>", "drop", "content", pairs="<think>"),
)


def table(states: Mapping[str, State]) -> Mapping[str, State]:
    return MappingProxyType(dict(states))


def native(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules as they hold inside thinking: only for markers that came as tokens of their own."""
    return tuple(rule._replace(when=(*rule.when, "native")) for rule in rules)


def bracketed(opens: str, closes: str, to: str) -> tuple[Rule, ...]:
    """In content: `opens` may begin calls in state `to`; both are text where no tool is offered."""
    return (
        Rule(opens, "open", to, when=("tools",)),
        Rule(opens, "literal", "content"),
        Rule(closes, "drop", "content", pairs=opens),
    )


PLAIN = table({"content": State("content", CONTENT), "thinking": State("thinking", THINKING)})
