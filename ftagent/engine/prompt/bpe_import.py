"""Reads a byte-level BPE vocabulary from a Hugging Face `tokenizer.json`, or from a `.tiktoken` file.

Yields plain data that tiktoken can be built from. Knows nothing about chat templates, and refuses what it
cannot reproduce exactly instead of coming close.
Source: the file format of the `tokenizers` library, version "1.0".
"""

from __future__ import annotations

import binascii
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftagent.errors import LoadFailed

GPT2_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # OpenAI's gpt-2 encoder
)

_CJK = "一-龥぀-ゟ゠-ヿ"
_DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    + "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n"
    + r"]*|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+",
)
# The three splits above, one after the other, as one expression: each later split works inside the pieces of
# the earlier ones, so what the earlier ones cut away must be excluded from its classes and look-aheads.
_DEEPSEEK_PATTERN = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+"
    r"""|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?[\p{{L}}\p{{M}}&&[^{_CJK}]]+"
    rf"| ?[\p{{P}}\p{{S}}&&[^{_CJK}]]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{{N}}{_CJK}])|\s+"
    rf"|[^\s\p{{N}}\p{{L}}\p{{M}}\p{{P}}\p{{S}}{_CJK}]+(?![\p{{L}}\p{{M}}&&[^{_CJK}]])"
)


@dataclass(frozen=True, slots=True)
class BytePairVocabulary:
    """A vocabulary as tiktoken wants it.

    `tokens` maps the bytes of each ordinary token to its id. `ranks` maps the bytes of each token that
    merging can reach to its merge priority, lower first; `ranks_are_ids` says that priorities and ids are the
    same numbers. `added` maps the text of each added token to its id; they are found before anything else.
    `pattern` cuts text into the pieces that merging never crosses, and leaves no character out.
    `nfc`: text is normalised to NFC first.
    """

    tokens: Mapping[bytes, int]
    ranks: Mapping[bytes, int]
    ranks_are_ids: bool
    added: Mapping[str, int]
    special: frozenset[str]
    pattern: str
    nfc: bool


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises LoadFailed when it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LoadFailed(f"{path}: file not found; a model directory must hold it") from None
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    except ValueError as error:  # also UnicodeDecodeError
        raise LoadFailed(f"{path}: not valid JSON ({error}); download the file again") from None
    if not isinstance(value, dict):
        raise LoadFailed(f"{path}: holds no JSON object; download the file again")
    return value


def read_tokenizer_json(path: Path) -> BytePairVocabulary:
    """Read `tokenizer.json`. Raises LoadFailed for a damaged file and for kinds other than byte-level BPE."""
    document = read_json(path)
    try:
        return _convert(document)
    except Unsupported as error:
        raise LoadFailed(f"{path}: {error}; use a model with a byte-level BPE tokenizer") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Any of these means that a field is absent or has another type than the format says.
        raise LoadFailed(f"{path}: damaged tokenizer file ({error!r}); download the file again") from None


def read_tiktoken(path: Path, pattern: str, added: Mapping[str, int], *, nfc: bool) -> BytePairVocabulary:
    """Read a `.tiktoken` file: one base64 token and its rank a line. Raises LoadFailed when damaged."""
    try:
        lines = path.read_bytes().splitlines()
        pairs = (line.split() for line in lines if line)
        ranks = {binascii.a2b_base64(token, strict_mode=True): int(rank) for token, rank in pairs}
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (ValueError, binascii.Error) as error:
        raise LoadFailed(f"{path}: not a tiktoken vocabulary ({error}); download the file again") from None
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise LoadFailed(f"{path}: no token for byte {missing[0]}; use a byte-level vocabulary")
    return BytePairVocabulary(
        tokens=ranks,
        ranks=ranks,
        ranks_are_ids=True,
        added=dict(added),
        special=frozenset(added),
        pattern=total_pattern(pattern),
        nfc=nfc,
    )


def total_pattern(pattern: str) -> str:
    """`pattern` with one more alternative that takes each run of characters it would skip.

    `tokenizers` keeps such a run as a piece of its own, tiktoken drops it.
    """
    return rf"{pattern}|(?:(?!{pattern})[\s\S])+"


class Unsupported(Exception):
    """The file is sound, but of a kind that is not reproduced here."""


def _convert(document: Mapping[str, Any]) -> BytePairVocabulary:
    model = document["model"]
    _check_model(model)
    added, special = _added_tokens(document.get("added_tokens") or ())
    merges = [_merge(entry) for entry in model["merges"]]
    tokens = _token_bytes(model["vocab"], added, merged={left + right for left, right in merges})
    ranks, ranks_are_ids = _merge_ranks(tokens, merges, whole_words=bool(model.get("ignore_merges")))
    return BytePairVocabulary(
        tokens=tokens,
        ranks=ranks,
        ranks_are_ids=ranks_are_ids,
        added=added,
        special=special,
        pattern=_pattern(document.get("pre_tokenizer")),
        nfc=_nfc(document.get("normalizer")),
    )


def _check_model(model: Mapping[str, Any]) -> None:
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise Unsupported(f"model type {kind} is not supported")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise Unsupported(f"model option {key} is not supported")


def _added_tokens(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[str, int], frozenset[str]]:
    added: dict[str, int] = {}
    special: set[str] = set()
    for entry in entries:
        content = entry["content"]
        for flag in ("lstrip", "rstrip", "single_word"):
            if entry.get(flag):
                raise Unsupported(f"added token {content!r} with {flag} is not supported")
        if content:
            added[content] = int(entry["id"])
            if entry.get("special"):
                special.add(content)
    return added, frozenset(special)


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable stand-ins: code point -> byte. Printable Latin-1 stands for itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: byte for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    return {**alphabet, **{256 + index: byte for index, byte in enumerate(others)}}


_ALPHABET = _byte_alphabet()
# Latin-1 characters that stand for no byte would pass through `translate` unchanged: send them out of range.
_TRANSLATION = {**dict.fromkeys(range(256), 0x110), **_ALPHABET}


def _to_bytes(token: str) -> bytes | None:
    """The bytes that a vocabulary key stands for; None when it is not written in the byte alphabet."""
    try:
        return token.translate(_TRANSLATION).encode("latin-1")
    except UnicodeEncodeError:
        return None


def _merge(entry: str | Sequence[str]) -> tuple[str, str]:
    left, right = entry.split(" ") if isinstance(entry, str) else entry
    return left, right


def _token_bytes(vocab: Mapping[str, int], added: Mapping[str, int], merged: set[str]) -> dict[bytes, int]:
    tokens: dict[bytes, int] = {}
    for key, token_id in vocab.items():
        raw = _to_bytes(key)
        if key in added and key not in merged and (raw is None or len(raw) > 1):
            continue  # listed twice; only the added-token search can find it
        if raw is None:
            raise Unsupported(f"vocabulary entry {key!r} is not written in the byte-level alphabet")
        tokens[raw] = int(token_id)
    if missing := [byte for byte in range(256) if bytes([byte]) not in tokens]:
        raise Unsupported(f"the vocabulary has no token for byte {missing[0]}")
    return tokens


def _merge_ranks(
    tokens: dict[bytes, int], merges: Sequence[tuple[str, str]], *, whole_words: bool
) -> tuple[dict[bytes, int], bool]:
    """Merge priorities, and whether ids serve as such: when merge results come in the order of their ids.

    A token that no merge produces stays out, unless `whole_words` (the format's `ignore_merges`) lets a whole
    piece become any token of the vocabulary.
    """
    order: dict[bytes, None] = {}
    for left, right in merges:
        merged = _to_bytes(left + right)
        if merged is None or merged not in tokens:
            raise Unsupported(f"merge {left!r} {right!r} produces no token of the vocabulary")
        order.setdefault(merged)
    single = {raw: token_id for raw, token_id in tokens.items() if len(raw) == 1}
    unreached = {raw: token_id for raw, token_id in tokens.items() if len(raw) > 1 and raw not in order}
    ids = [tokens[raw] for raw in order]
    if all(first < second for first, second in itertools.pairwise(ids)):
        reached = {raw: tokens[raw] for raw in order}
        return {**single, **reached, **(unreached if whole_words else {})}, True
    if whole_words and unreached:
        raise Unsupported("ignore_merges with merges out of id order is not supported")
    return {raw: rank for rank, raw in enumerate([*single, *order])}, False


def _nfc(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "NFC":
        return True
    if normalizer["type"] == "Sequence":
        return [_nfc(part) for part in normalizer["normalizers"]].count(True) > 0
    raise Unsupported(f"normalizer {normalizer['type']} is not supported")


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """One expression for the whole pre-tokenizer."""
    if pre_tokenizer is None:
        raise Unsupported("no pre-tokenizer, so not byte-level")
    parts = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    *splits, last = parts
    if last["type"] != "ByteLevel":
        raise Unsupported(f"pre-tokenizer {last['type']} is not byte-level")
    if last.get("add_prefix_space"):
        raise Unsupported("pre-tokenizer option add_prefix_space is not supported")
    patterns = [_split_pattern(split) for split in splits]
    if last.get("use_regex", True):
        patterns.append(GPT2_PATTERN)
    if tuple(patterns) == _DEEPSEEK_SPLITS:
        return total_pattern(_DEEPSEEK_PATTERN)
    if len(patterns) > 1:
        raise Unsupported("this sequence of Split pre-tokenizers is not supported")
    return total_pattern(patterns[0]) if patterns else r"[\s\S]+"


def _split_pattern(split: Mapping[str, Any]) -> str:
    if split["type"] != "Split":
        raise Unsupported(f"pre-tokenizer {split['type']} is not supported")
    kind = (split["behavior"].lower(), bool(split.get("invert")))
    # Both keep each match as a piece. The second also drops the rest, but its users' patterns leave no rest.
    if kind not in (("isolated", False), ("removed", True)):
        raise Unsupported(f"Split behaviour {split['behavior']} is not supported")
    ((form, text),) = split["pattern"].items()
    pattern = text if form == "Regex" else re.escape(text)
    return str(pattern)
