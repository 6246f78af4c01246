"""The tokenizer of a checkpoint: which ids are plain words, and a small tokenizer made here for tests.

A word is one token of a space and at least three letters. A text of words is cut into exactly these tokens,
and each of them is streamed as one piece of text.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "tokenizer_config.json")
END = "<|endoftext|>"
_WORD = re.compile("Ġ[A-Za-z]{3,}")  # Ġ stands for a space in byte-level vocabularies
_PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"


def words_of(directory: Path, vocab: int) -> dict[int, str]:
    """Id to text (with its space) of every word with an id under `vocab`, by id."""
    stored = json.loads((directory / "tokenizer.json").read_bytes())["model"]["vocab"]
    found = {number: " " + text[1:] for text, number in stored.items() if _WORD.fullmatch(text)}
    return {number: found[number] for number in sorted(found) if number < vocab}


def end_id(directory: Path) -> int:
    """The id of the token that ends a text. Raises ValueError when the tokenizer has none of the known."""
    added = json.loads((directory / "tokenizer.json").read_bytes()).get("added_tokens", [])
    by_text = {token["content"]: int(token["id"]) for token in added}
    for text in ("<|im_end|>", END):
        if text in by_text:
            return by_text[text]
    raise ValueError(f"{directory}: the tokenizer has neither <|im_end|> nor {END}")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files into a checkpoint."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_tiny_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer of all bytes and some 700 words of three letters.

    Every merge extends a word from its left, so a word is always merged into its own token.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocab: dict[str, int] = {character: number for number, character in enumerate(_byte_characters())}
    merges: list[str] = []
    for left in "bdfgklmnprst":
        for middle in "aeiou":
            for right in "bdfgklmnprst":
                for place in range(1, 4):
                    whole = "Ġ" + (left + middle + right)[:place]
                    if whole not in vocab:
                        merges.append(f"{whole[:-1]} {whole[-1]}")
                        vocab[whole] = len(vocab)
    end = {"id": len(vocab), "content": END, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    document = {
        "version": "1.0",
        "added_tokens": [{**end, **flags}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {**level, "use_regex": False}]},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes, in the order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]
