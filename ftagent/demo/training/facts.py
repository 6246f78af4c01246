"""What the embedded model should know by heart: questions about ftagent with their answers.

The text is `facts.txt`, written for this model; nothing else in training tells these facts.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, NamedTuple

from ftagent.demo.training.ways import ways

Topic = Literal["what", "use", "ideas", "small talk", "unknown"]


class Fact(NamedTuple):
    """Ways to ask and ways to answer. Under "unknown" there is one fact, the answer to any other question."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]


@functools.cache
def _read() -> dict[str, list[Fact]]:
    """The facts of each topic, in the file's order; paragraphs are headings, facts or comments."""
    text = Path(__file__).with_name("facts.txt").read_text(encoding="utf-8").replace("\n    ", " ")
    topics: dict[str, list[Fact]] = {}
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip().splitlines()
        if lines[0].startswith("["):
            topics[lines[0].strip("[]")] = []
        elif not lines[0].startswith("#"):
            questions = "|".join(line[2:] for line in lines if line.startswith("? "))
            answers = tuple(line[2:] for line in lines if line.startswith("! "))
            topics[list(topics)[-1]].append(Fact(ways(questions), answers))
    return topics


def about(topic: Topic) -> list[Fact]:
    """All facts on a topic."""
    return _read()[topic]
