"""Trains the embedded model's byte-level BPE and writes tokenizer.json (Hugging Face `tokenizers` format).

    python -m ftagent.demo.training.vocabulary

Seeded; needs the `tokenizers` package (a development dependency).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ftagent import demo
from ftagent.demo.training import corpus, dialogues, samples

VOCABULARY = 4096
ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# Letters with one leading sign, single digits, runs of signs, line breaks: total, so no text is dropped.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _texts(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    yield from corpus.documentation()
    yield from rng.sample(corpus.docstrings(), 2000)
    for text in rng.sample(corpus.source_files(), 60):
        yield text[:20_000]
    for _ in range(700):
        yield samples.rendered(dialogues.agent(rng, rng.choice((2000, 8000)), 2))
        yield samples.rendered(dialogues.chat(rng, 4))


def train(seed: int = 0) -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` entries with the control tokens at its end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(ADDED),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for text in _texts(seed)), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ADDED[:3]])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED[3:]])
    return tokenizer


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json in `directory`."""
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(train(), demo.directory())
