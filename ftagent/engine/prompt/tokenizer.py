"""Text to token ids and back, for one model's vocabulary.

tiktoken does the merging; this adds what surrounds it: added tokens, NFC, ids without text, and decoding
piece by piece. Knows no chat template.

Control tokens in text: `encode(text)` finds added tokens, as a raw prompt wants. `encode_plain(text)` never
does, so words of a message cannot become markup; the chat template uses it for everything that people, tools
and models said.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tiktoken

from ftagent.engine.prompt.bpe_import import (
    BytePairVocabulary,
    read_json,
    read_tiktoken,
    read_tokenizer_json,
)
from ftagent.errors import LoadFailed

# Harmony, the form of gpt-oss, ends a reply either way: with an answer, or with a call to a tool. Only
# generation_config.json names both.
_ALSO_ENDS = {"<|return|>": "<|call|>"}
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A byte-level BPE tokenizer. Immutable after construction, so any thread may use it.

    `added_tokens`: text -> id of every added token, special or not.
    `named_tokens`: "eos_token" and its like -> text, as chat templates read them.
    `eos_ids`: ids that end a reply, ascending; from tokenizer_config.json and generation_config.json.
    `vocab_size`: highest known id + 1. A model may have more logits than that (padding).
    """

    def __init__(
        self,
        vocabulary: BytePairVocabulary,
        named_tokens: Mapping[str, str] | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._nfc = vocabulary.nfc
        self.added_tokens: Mapping[str, int] = MappingProxyType(dict(vocabulary.added))
        self.named_tokens: Mapping[str, str] = MappingProxyType(dict(named_tokens or {}))
        named_eos = self.named_tokens.get("eos_token", "")
        ends = (named_eos, _ALSO_ENDS.get(named_eos, ""))
        found = {self.added_tokens[text] for text in ends if text in self.added_tokens}
        self.eos_ids: tuple[int, ...] = tuple(sorted(found | set(eos_ids)))
        self._added_ids = frozenset(self.added_tokens.values())
        self._added_search = added_token_search(self.added_tokens)
        self._bytes = _byte_table(vocabulary)
        self._lengths = [len(raw) for raw in self._bytes]
        self.vocab_size = len(self._bytes)
        self._encoder = _build(vocabulary, vocabulary.ranks)
        self.encoding = self._encoder
        self._id_of_rank: list[int] | None = None
        if not vocabulary.ranks_are_ids:
            self._id_of_rank = [vocabulary.tokens[raw] for raw in vocabulary.ranks]
            self.encoding = _build(vocabulary, vocabulary.tokens)

    encoding: tiktoken.Encoding
    """The vocabulary under the model's own ids, for libraries that take one. Encode with this class instead:
    when merge priorities are not in id order, only this class merges right."""

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Load `tokenizer.json` and, where present, `tokenizer_config.json` and `generation_config.json`.

        Raises LoadFailed: which file, what is wrong with it, what to do.
        """
        vocabulary = read_tokenizer_json(directory / "tokenizer.json")
        config = _optional_json(directory / "tokenizer_config.json")
        generation = _optional_json(directory / "generation_config.json")
        named = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name)))}
        eos_ids = _ids(generation.get("eos_token_id"), directory)
        with _naming(directory / "tokenizer.json"):
            return cls(vocabulary, named, eos_ids)

    @classmethod
    def from_tiktoken(
        cls,
        path: Path,
        pattern: str,
        added_tokens: Mapping[str, int],
        named_tokens: Mapping[str, str] | None = None,
        *,
        nfc: bool = False,
    ) -> Tokenizer:
        """Load a vocabulary that ships as a `.tiktoken` file. Raises LoadFailed."""
        vocabulary = read_tiktoken(path, pattern, added_tokens, nfc=nfc)
        with _naming(path):
            return cls(vocabulary, named_tokens)

    def ending_at(self, stops: Iterable[str]) -> Tokenizer:
        """The same vocabulary, whose replies end at these added tokens as well, where it has them."""
        more = {self.added_tokens[text] for text in stops if text in self.added_tokens}
        other = copy.copy(self)
        other.eos_ids = tuple(sorted({*self.eos_ids, *more}))
        return other

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, added tokens recognised wherever they are written.

        Lone surrogates count as U+FFFD.
        """
        ids: list[int] = []
        for piece, added in self.split_added(text):
            ids += [self.added_tokens[piece]] if added else self.encode_plain(piece)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` as words only: no added token comes out, whatever the text says."""
        if not text:
            return []
        ids = self._encoder.encode_ordinary(self.normalize(text))
        if self._id_of_rank is not None:
            table = self._id_of_rank
            return [table[rank] for rank in ids]
        return ids

    def split_added(self, text: str) -> list[tuple[str, bool]]:
        """`text` in pieces, in order; True marks a piece that is an added token. Leftmost, then longest."""
        pieces: list[tuple[str, bool]] = []
        start = 0
        for match in self._added_search.finditer(text):
            if match.start() > start:
                pieces.append((text[start : match.start()], False))
            pieces.append((match.group(), True))
            start = match.end()
        if start < len(text):
            pieces.append((text[start:], False))
        return pieces

    def added_spans(self, text: str) -> list[tuple[int, int]]:
        """Where added tokens are written in `text`: (start, end) character offsets, in order."""
        return [match.span() for match in self._added_search.finditer(text)]

    def normalize(self, text: str) -> str:
        """`text` as the vocabulary wants it: NFC where the model asks for it."""
        if self._nfc and not text.isascii():
            return unicodedata.normalize("NFC", text)
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, added tokens as their text. Bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, joined. An id that the vocabulary does not name (padding logits) has none."""
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; b"" for an id that the vocabulary does not name."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_ends(self, ids: Iterable[int]) -> list[int]:
        """For each of `ids`, all known to the vocabulary: how many bytes it and those before it have."""
        return list(itertools.accumulate(map(self._lengths.__getitem__, ids)))

    def is_added(self, token_id: int) -> bool:
        return token_id in self._added_ids


class Detokenizer:
    """Turns ids into text one at a time. The deltas put together equal `Tokenizer.decode` of all ids.

    A character whose bytes are spread over several tokens comes out whole, with the last of them.
    An added token always ends what came before it: call `flush()` first to have its text alone in a delta.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; "" while a character is incomplete."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left: "" or U+FFFD for bytes that no token completed. The detokenizer starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def added_token_search(added: Iterable[str]) -> re.Pattern[str]:
    """An expression that finds the added tokens, the longest one where several begin at the same place."""
    tokens = sorted(added)
    return re.compile(_alternatives(tokens, 0) if tokens else r"(?!)")


def _alternatives(tokens: Sequence[str], depth: int) -> str:
    """Alternatives for sorted distinct `tokens` that agree in their first `depth` characters (a trie).

    Grouping by common beginnings keeps the search fast for the thousand-odd added tokens of some models.
    """
    branches: dict[str, list[str]] = {}
    for token in tokens:
        branches.setdefault(token[depth : depth + 1], []).append(token)
    parts = []
    for first, group in branches.items():
        if not first:
            continue  # a token ends here; tried last, below, since a longer one wins
        shared = _common_length(group[0], group[-1])
        tail = _alternatives(group, shared)
        parts.append(re.escape(group[0][depth:shared]) + tail)
    if "" in branches:
        parts.append("")
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _common_length(first: str, second: str) -> int:
    limit = min(len(first), len(second))
    return next((index for index in range(limit) if first[index] != second[index]), limit)


def _byte_table(vocabulary: BytePairVocabulary) -> list[bytes]:
    highest = max([*vocabulary.tokens.values(), *vocabulary.added.values()])
    table = [b""] * (highest + 1)
    for raw, token_id in vocabulary.tokens.items():
        table[token_id] = raw
    for text, token_id in vocabulary.added.items():
        table[token_id] = text.encode("utf-8", errors="replace")
    return table


def _build(vocabulary: BytePairVocabulary, ranks: Mapping[bytes, int]) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding(
            "ftagent",
            pat_str=vocabulary.pattern,
            mergeable_ranks=dict(ranks),
            special_tokens=dict(vocabulary.added),
        )
    except ValueError as error:
        reason = str(error).splitlines()[0][:200]
        raise LoadFailed(
            f"the pre-tokenizer's expression is not supported ({reason}); use another model"
        ) from None


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of a LoadFailed."""
    try:
        yield
    except LoadFailed as error:
        raise LoadFailed(f"{path}: {error}") from None


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _token_text(value: object) -> str:
    """A named token of tokenizer_config.json: a string, or an object that holds it as `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _ids(value: object, directory: Path) -> list[int]:
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in ids):
        path = directory / "generation_config.json"
        raise LoadFailed(f"{path}: eos_token_id must be an integer or a list of them, not {value!r}; fix it")
    return ids
