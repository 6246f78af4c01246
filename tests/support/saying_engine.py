"""A LocalEngine whose model says prescribed tokens, so that replies run through the real path from token
ids to each protocol's bytes. One request at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ftagent.engine.api import GenerateRequest
from ftagent.engine.chunk import Chunk
from ftagent.engine.engine import LocalEngine
from ftagent.engine.options import EngineOptions
from ftagent.engine.prepare import Preparer
from ftagent.engine.prompt.bpe_import import BytePairVocabulary
from ftagent.engine.prompt.form_registry import detect_form
from ftagent.engine.prompt.template import ChatTemplate
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.sampling import SamplingDefaults
from ftagent.engine.task import Outbox, Task
from tests.engine.prompt.vocabularies import FAMILY_MARKUP
from tests.support.toy import ToyRunner

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ADDED = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", *MARKERS, *FAMILY_MARKUP)
TEMPLATES = Path(__file__).parents[1] / "engine" / "prompt" / "fixtures"


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes, then come the markers."""
    tokens = {bytes([byte]): byte for byte in range(256)}
    vocabulary = BytePairVocabulary(
        tokens=tokens,
        ranks=tokens,
        ranks_are_ids=True,
        added={text: 256 + index for index, text in enumerate(ADDED)},
        special=frozenset(ADDED),
        pattern=r"[\s\S]",
        nfc=False,
    )
    return Tokenizer(vocabulary, eos_ids=[256 + ADDED.index("<|im_end|>")])


def reply_ids(text: str, end: bool = True) -> list[int]:
    """Markers as their tokens, all else as bytes. `end`: the model ends its turn."""
    ids: list[int] = []
    for piece in re.split(f"({'|'.join(map(re.escape, ADDED))})", text):
        ids += [256 + ADDED.index(piece)] if piece in ADDED else piece.encode()
    return [*ids, 256 + ADDED.index("<|im_end|>")] if end else ids


class SayingRunner(ToyRunner):
    """Its likeliest token is always the next one of `script`."""

    def __init__(self, context: int) -> None:
        super().__init__(pages=1024, page_size=64, context=context)
        self.info = replace(self.info, vocab=256 + len(ADDED))
        self.script: list[int] = []

    def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        super().step(chunks)
        logits = torch.zeros(sum(chunk.want_logits for chunk in chunks), self.info.vocab)
        for row in logits:
            row[self.script.pop(0)] = 1
        return logits


class RecordingPreparer(Preparer):
    """Keeps the prompt of every accepted request, as token ids,."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prompts: list[list[int]] = []

    def task(self, request: GenerateRequest, outbox: Outbox) -> Task:
        task = super().task(request, outbox)
        self.prompts.append(list(task.job.tokens))
        return task


class SayingEngine(LocalEngine):
    """`say` sets the next reply; `prompts` are those that the model was given, as token ids."""

    def __init__(self, source: str, context: int = 16384) -> None:
        self.runner = SayingRunner(context)
        self.tokenizer = byte_tokenizer()
        preparer = RecordingPreparer(
            self.runner.info,
            self.tokenizer,
            ChatTemplate(source, self.tokenizer),
            SamplingDefaults(temperature=0),
            form=detect_form(source),
            constrain="required",
            seed=0,
        )
        self.prompts = preparer.prompts
        self.template_source = source
        super().__init__(self.runner, preparer, EngineOptions())

    def prompt_text(self) -> str:
        """The newest prompt."""
        return self.tokenizer.decode(self.prompts[-1])

    def say(self, reply: str | Sequence[int]) -> None:
        """The next reply: text whose markers are tokens and that ends by itself, or exact ids."""
        self.runner.script[:] = reply_ids(reply) if isinstance(reply, str) else reply


@contextmanager
def saying_engine(template: str, context: int = 16384) -> Iterator[SayingEngine]:
    """`template` is the name of a fixture, or the source itself. Closed and checked at the end."""
    path = TEMPLATES / f"{template}.jinja"
    engine = SayingEngine(template if "{" in template else path.read_text(encoding="utf-8"), context)
    try:
        yield engine
    finally:
        engine.close()
        engine.scheduler.check_integrity()
