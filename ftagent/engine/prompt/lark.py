"""Grammars as text, in llguidance's Lark dialect: thinking, calls of offered tools, structured content.

Only strings in, strings out: knows no vocabulary but the ids of marker tokens, and no matcher.
Source: llguidance's docs/syntax.md, parametric.md and json_schema.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from ftagent.engine.prompt.forms import Thoughts

Strictness = Literal["exact", "lenient", "names"]
"""`lenient` leaves out JSON Schema keywords that cannot be compiled; `names` keeps only names and types."""

COMPACT = {"whitespace_flexible": False, "item_separator": ",[ ]?", "key_separator": ":[ ]?"}
_PRETTY = {"whitespace_pattern": r"[ ]{1,8}|\n[ ]{0,32}"}


class Grammar:
    """A grammar under construction, over a vocabulary that has the `added` markers as single tokens."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        longest_first = sorted(added, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._rules: list[str] = []
        self._count = 0

    def is_native(self, text: str) -> bool:
        """Whether some marker in `text` is a token of its own, so that no ordinary text spells it."""
        return self._search.search(text) is not None

    def spell(self, text: str) -> str:
        """Exactly `text`, the markers in it as token ids."""
        parts, start = [], 0
        for found in self._search.finditer(text):
            parts += [literal(text[start : found.start()])] if found.start() > start else []
            parts.append(f"<[{self._added[found.group()]}]>")
            start = found.end()
        if start < len(text) or not parts:
            parts.append(literal(text[start:]))
        return " ".join(parts)

    def split(self, text: str) -> tuple[str, str]:
        """`text` before its first marker that is a token, and the rest from there on."""
        found = self._search.search(text)
        return (text[: found.start()], text[found.start() :]) if found else (text, "")

    def new_name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def define(self, head: str, body: str) -> None:
        """`head` is a name with its options or parameter."""
        self._rules.append(f"{head}: {body}")

    def add(self, body: str, options: str = "") -> str:
        """Define a rule of a new name; that name."""
        name = self.new_name()
        self.define(name + options, body)
        return name

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def literal(text: str) -> str:
    """A quoted string of the dialect."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


def escape(text: str) -> str:
    """A regular expression that matches `text`."""
    return re.escape(text).replace("\\\n", "\\n")


def regex(pattern: str) -> str:
    """A regular expression of the dialect: slashes escaped, those that are escaped already left."""
    return "/" + re.sub(r"\\.|/", _escape_slash, pattern.replace("\n", "\\n"), flags=re.DOTALL) + "/"


def _escape_slash(found: re.Match[str]) -> str:
    return "\\/" if found.group() == "/" else found.group()


def json_value(schema: Any, style: Mapping[str, Any], *, lenient: bool = False) -> str:
    """JSON text that satisfies `schema`."""
    document = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
    document["x-guidance"] = {**style, "lenient": True} if lenient else style
    return "%json " + json.dumps(document, default=dict)


def content_json(schema: Any) -> str:
    """Structured content: white space where JSON allows it, but never without end."""
    return json_value(schema, _PRETTY)


def thinking(grammar: Grammar, thoughts: Thoughts) -> str:
    """Free text up to and with the closer of the thinking block, and what stands behind it."""
    after = grammar.spell(thoughts.resumes) if thoughts.resumes else regex("\\n{0,2}")
    if grammar.is_native(thoughts.closes):
        return f"{regex('(?s:.*)')} {grammar.spell(thoughts.closes)} {after}"
    free = grammar.add(regex(f"(?s:.*){escape(thoughts.closes)}"), "[lazy]")
    return f"{free} {after}"
