"""Prompts of an exact number of tokens that no server has seen before. Knows no HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.walk.vocabulary import words_of


class Prompts:
    """Texts of the checkpoint's words: drawn at random, or cut from its walk at random places.

    `walk` needs a checkpoint of `walk_checkpoint.py`; its routing then has the published statistics.
    """

    def __init__(self, checkpoint: Path, seed: str, *, walk: bool) -> None:
        config = json.loads((checkpoint / "config.json").read_bytes())
        vocab = config.get("text_config", config)["vocab_size"]
        self._words = words_of(checkpoint, vocab)
        self._ids = list(self._words)
        self._random = random.Random(seed)
        file = checkpoint / "walk.json"
        self._walk: list[int] = json.loads(file.read_bytes())["ids"] if walk else []

    def fresh(self, count: int) -> list[int]:
        """`count` token ids."""
        if not self._walk:
            return [self._random.choice(self._ids) for _ in range(count)]
        start = self._random.randrange(len(self._walk))
        return [self._walk[(start + place) % len(self._walk)] for place in range(count)]

    def text(self, ids: Sequence[int]) -> str:
        """The text that is cut into exactly these ids."""
        return "".join(self._words[number] for number in ids)

    def scripted(self, ids: Sequence[int], count: int) -> str | None:
        """The reply that the checkpoint's script wants; None without a walk."""
        if not self._walk:
            return None
        place = self._walk.index(ids[-1]) + 1
        return self.text([self._walk[(place + at) % len(self._walk)] for at in range(count)])
