"""How people put a request: starts, endings, quotation marks. Knows no tools and no results."""

from __future__ import annotations

import random

from ftagent.demo.training.ways import ways

_STARTS = ways(
    """
    | | | | Please | please | Can you | Could you | I want you to | I need you to | Now | Next, |
    Your task: | Task: | First, | Hi! Please | Would you
    """
)
_ENDINGS = ways(
    """
    | | | | | Do nothing else. | Then stop. | Nothing more. | Thanks! | Then say done. | Do not do
    anything else. | That is all. | Be brief. | Keep it short. | Answer in one sentence.
    """
)
_QUESTIONS = ("Can you", "Could you", "Would you")


def spaced(text: str) -> str:
    """A space before `text`, unless it is empty or begins with a comma."""
    return f" {text}" if text and text[0] != "," else text


def ask(rng: random.Random, body: str, ending: bool = True) -> str:
    """Put a polite start, an ending and the right capital letter around a verb phrase."""
    start = rng.choice(_STARTS)
    if start.endswith(":") or not start:
        body = body[:1].upper() + body[1:] if rng.random() < 0.85 else body
    text = f"{start} {body}" if start else body
    if not ending:
        return text
    if start in _QUESTIONS and rng.random() < 0.7:
        stop = "?"
    else:
        stop = rng.choice((".", ".", ".", ""))
    closing = rng.choice(_ENDINGS)
    return text + (stop or ("." if closing else "")) + spaced(closing)


def asked(rng: random.Random, table: tuple[str, ...], **values: str) -> str:
    """One entry of `table` with `values` filled in.

    Entries that begin with a small letter are verb phrases for `ask`; the others stand as they are.
    """
    entries = []
    for entry in table:
        text = entry.format(**values)
        entries.append(ask(rng, text, ending=not entry.endswith("?")) if entry[0].islower() else text)
    return rng.choice(entries)


def named(rng: random.Random, name: str) -> str:
    """How a file is called in a request."""
    return rng.choice(("{n}", "{n}", "`{n}`", "`{n}`", '"{n}"', "'{n}'")).format(n=name)


def quoted(rng: random.Random, text: str) -> str:
    """The text in some quotation marks that it does not hold itself."""
    pairs = ("''", '""', "``", "“”", "«»")
    marks = [pair for pair in pairs if pair[0] not in text and pair[1] not in text] or ["“”"]
    weights = [6 if pair in ("''", '""') else 3 if pair == "``" else 1 for pair in marks]
    pair = rng.choices(marks, weights)[0]
    return f"{pair[0]}{text}{pair[1]}"


def tool_hint(rng: random.Random, tool: str) -> str:
    """Now and then the request names the tool."""
    return f" Use the {tool} tool." if rng.random() < 0.08 else ""
