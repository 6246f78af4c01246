"""Long text that has nothing to do with the task: system prompts, reminders and notices of agents.

Knows no request and no conversation.
"""

from __future__ import annotations

import random

from ftagent.demo.training import corpus, files, tools, values
from ftagent.demo.training.ways import ways


def _heading(rng: random.Random) -> str:
    return (
        rng.choice(("# ", "## ", "", "### "))
        + " ".join(values.word(rng) for _ in range(rng.randint(1, 4))).capitalize()
    )


def _bullets(rng: random.Random) -> str:
    mark = rng.choice((" - ", "- ", "* ", "  - "))
    lines = []
    for _ in range(rng.randint(2, 8)):
        if rng.random() < 0.15:
            lines.append(tools.distraction(rng))
        elif rng.random() < 0.2:
            lines.append(f"{values.word(rng)}: {values.scalar(rng)}")
        else:
            lines.append(rng.choice(corpus.sentences()))
    return "\n".join(mark + line for line in lines)


def _section(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return _bullets(rng)
    if kind < 0.6:
        return " ".join(rng.choice(corpus.sentences()) for _ in range(rng.randint(2, 7)))
    if kind < 0.75:
        return corpus.prose_piece(rng)
    if kind < 0.85:
        return "```\n" + corpus.code_piece(rng, rng.randint(3, 20)) + "\n```"
    if kind < 0.93:
        return (
            "<example>\nuser: " + values.phrase(rng) + "\nassistant: " + values.phrase(rng) + "\n</example>"
        )
    return files.keyed_file(rng).text


def filler(rng: random.Random, chars: int) -> str:
    """About `chars` characters of headed sections."""
    parts: list[str] = []
    size = 0
    while size < chars:
        part = (_heading(rng) + "\n" if rng.random() < 0.6 else "") + _section(rng)
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)[: max(chars, 200)]


def system_prompt(rng: random.Random, chars: int) -> str:
    """An agent's instructions: who it is, then filler."""
    opening = rng.choice(
        ways(
            """
            You are a coding agent working in a terminal. | You are an agent that helps with
            software engineering tasks. | You are a helpful assistant. | You are an
            interactive command line tool. Use the tools to assist the user. | You are an
            agent working with the user toward their goals. | You are ftagent, a small model
            on this machine. | Help the user with the files in the working directory.
            """
        )
    )
    return opening if chars < len(opening) else opening + "\n\n" + filler(rng, chars - len(opening))


def reminder(rng: random.Random, chars: int) -> str:
    """A tagged notice inside a user message."""
    tag = rng.choice(
        ("system-reminder", "system-reminder", "system-reminder", "context", "environment_context", "env")
    )
    return f"<{tag}>\n{filler(rng, chars)}\n</{tag}>"


def environment(rng: random.Random, chars: int) -> str:
    """A late system message about the environment and what else exists."""
    facts = [
        f" - Primary working directory: /{values.word(rng)}/{values.stem(rng)}",
        f" - Is a git repository: {rng.choice(('true', 'false'))}",
        f" - Platform: {rng.choice(('linux', 'darwin', 'win32'))}",
        f" - Shell: {rng.choice(('bash', 'zsh', 'fish'))}",
        f" - OS Version: Linux {rng.randint(4, 7)}.{rng.randint(0, 20)}",
    ]
    head = "# Environment\n" + "\n".join(facts[: rng.randint(1, 5)])
    tail = (
        f"\n\nToday's date is 20{rng.randint(24, 30)}-{rng.randint(10, 12)}-{rng.randint(10, 28)}."
        if rng.random() < 0.5
        else ""
    )
    return head + ("\n" + filler(rng, chars - len(head)) if chars > len(head) else "") + tail
