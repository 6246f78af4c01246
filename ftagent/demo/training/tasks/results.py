"""What tools answer: confirmations, files with or without line numbers, a shell's output.

Knows no request.
"""

from __future__ import annotations

import random

from ftagent.demo.training import corpus, values
from ftagent.demo.training.commands import Command
from ftagent.demo.training.ways import ways

_WROTE = ways(
    """
    File created successfully at: {name} | File created successfully at: {name} (file state is
    current in your context — no need to Read it back) | Wrote {size} bytes to {name} |
    Successfully wrote to {name}. | Wrote file successfully. | The file {name} has been written. |
    ok | Done | | Created {name} | Successfully created and wrote to new file: {name}.
    """
)
_EDITED = ways(
    """
    The file {name} has been updated. | The file {name} has been updated successfully. | ok |
    Edited {name} | Edit applied successfully. | Successfully replaced 1 block(s) in {name}.
    """
)
_MISSING = ways(
    """
    File does not exist. | File does not exist. Note: your current working directory is /{folder}. |
    Error: ENOENT: no such file or directory, open '{name}' |
    <tool_use_error>File does not exist.</tool_use_error> | Error: file not found: {name} |
    cat: {name}: No such file or directory
    """
)
_SILENT = ways(
    """
    | (Bash completed with no output) | Tool ran without output or errors | (no output) |
    Exit code: 0
    """
)
_FAILED = ("Exit code {code}\n{text}", "Error: {text}", "{text}\n\nCommand exited with code {code}")
_LINE_STYLES = (
    *("     {i}→{line}", "{i}\t{line}", "{i}\t{line}", "     {i}\t{line}", "{i}: {line}", "{i}|{line}"),
    *("{line}", "{line}", "{line}"),
)


def wrote(rng: random.Random, name: str, text: str) -> str:
    """The answer of a write tool."""
    return rng.choice(_WROTE).format(name=name, size=len(text))


def edited(rng: random.Random, name: str) -> str:
    """The answer of an edit tool."""
    return rng.choice(_EDITED).format(name=name)


def missing(rng: random.Random, name: str) -> str:
    """The answer of a read tool for a file that is not there."""
    folder = values.word(rng)
    return rng.choice(_MISSING).format(name=name, folder=folder)


def _reminder(rng: random.Random, chance: float) -> str:
    if rng.random() >= chance:
        return ""
    words = " ".join(rng.choice(corpus.sentences()) for _ in range(rng.randint(1, 3)))
    return f"\n\n<system-reminder>\n{words}\n</system-reminder>"


def shown(rng: random.Random, text: str) -> str:
    """A file's text as some read tool shows it."""
    style = rng.choice(_LINE_STYLES)
    lines = text.rstrip("\n").split("\n")
    whole = "\n".join(style.format(i=i, line=line) for i, line in enumerate(lines, 1))
    if rng.random() < 0.1:
        whole = f"<file>\n{whole}\n</file>"
    return whole + _reminder(rng, 0.1)


def printed(rng: random.Random, command: Command) -> str:
    """A command's output as some shell tool shows it."""
    text = command.output
    if not text:
        return rng.choice(_SILENT)
    if command.exit_code:
        return rng.choice(_FAILED).format(code=command.exit_code, text=text)
    style = rng.random()
    if style < 0.06:
        chunk, tenths = values.token(rng), rng.randint(1, 9)
        head = f"Chunk ID: {chunk}\nWall time: 0.{tenths} seconds\nProcess exited with code 0"
        return f"{head}\nOutput:\n{text}"
    if style < 0.1:
        return f"<stdout>{text}</stdout>"
    if style < 0.14:
        return f"Output: {text}\nExit Code: 0"
    return text + rng.choice(("", "", "\n"))
