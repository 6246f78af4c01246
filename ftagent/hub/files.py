"""Names of repositories and of their files, and which files the engine reads. Pure: no network, no disk."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from ftagent.errors import ConfigError, PullFailed

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
INDEX = "model.safetensors.index.json"
BESIDE = (CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "chat_template.jinja")
WEIGHTS = (".ftw", ".safetensors")  # in the order in which the loader looks for them
_ANOTHER = "give a repository or --revision that has the model as transformers reads it"
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `digest` is the SHA-256 of what is stored by LFS, else git's SHA-1 of the blob,
    both in hexadecimal; empty where the hub gives none.
    """

    name: str
    size: int  # bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    def find(self, name: str) -> RemoteFile | None:
        return next((file for file in self.files if file.name == name), None)


class Digest:
    """Takes the bytes of a file in order, and says whether they are those of the hub."""

    def __init__(self, file: RemoteFile) -> None:
        self._expected = file.digest
        self._hash = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(usedforsecurity=False)
        if len(file.digest) == 40:  # what git hashes begins with kind and size
            self._hash.update(b"blob %d\0" % file.size)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def agrees(self) -> bool:
        return not self._expected or self._hash.hexdigest() == self._expected.lower()


def is_repo(text: str) -> bool:
    """Whether `text` has the form of a repository's name on the hub: OWNER/NAME."""
    return bool(_REPO.fullmatch(text)) and not re.search(r"\.\.|--|[.-](/|$)|\.git$", text)


def must_be_repo(text: str) -> None:
    """Raise ConfigError unless `text` names a repository."""
    if not is_repo(text):
        raise ConfigError(
            f"{text!r} is no repository of the hub; write OWNER/NAME, letters, digits, '.', '_' and '-', "
            "like Qwen/Qwen3-30B-A3B"
        )


def has_index(listing: Listing) -> bool:
    """Whether the index says which files are the weights."""
    return _of_kind(listing, WEIGHTS[0]) == () and listing.find(INDEX) is not None


def needed(listing: Listing, index: bytes | None) -> tuple[RemoteFile, ...]:
    """What the loader reads of a repository: weights, and what stands beside them. `index` is the content of
    the safetensors' index, if `has_index`.

    Raises PullFailed for a repository without config, tokenizer or weights, or whose index names what is not
    there.
    """
    beside = [file for name in BESIDE if (file := listing.find(name))]
    for name in (CONFIG, TOKENIZER):
        if listing.find(name) is None:
            raise PullFailed(f"{_at(listing)} has no {name}, which the engine needs; {_ANOTHER}")
    if index is not None:
        found = listing.find(INDEX)
        assert found is not None
        return (*beside, found, *_shards(listing, index))
    weights = _of_kind(listing, WEIGHTS[0]) or _of_kind(listing, WEIGHTS[1])
    if not weights:
        large = (file.name.rpartition(".")[2] for file in listing.files if file.size > 2**20)
        kinds = sorted({kind for kind in large if kind.isalnum()})
        there = f" (large files there are {', '.join(kinds)})" if kinds else ""
        raise PullFailed(f"{_at(listing)} has no *.safetensors{there}; {_ANOTHER}")
    return (*beside, *weights)


def _shards(listing: Listing, index: bytes) -> list[RemoteFile]:
    try:
        names = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        names = set()
    if not names or not all(isinstance(name, str) for name in names):
        raise PullFailed(f"{_at(listing)}: {INDEX} has no usable weight_map; {_ANOTHER}")
    shards = []
    for name in sorted(names):
        found = listing.find(name)
        if found is None or not _is_plain(name):
            raise PullFailed(f"{_at(listing)} lacks {name!r}, which {INDEX} names; {_ANOTHER}")
        shards.append(found)
    return shards


def _of_kind(listing: Listing, suffix: str) -> tuple[RemoteFile, ...]:
    return tuple(file for file in listing.files if file.name.endswith(suffix) and _is_plain(file.name))


def _is_plain(name: str) -> bool:
    """Whether a name is one of a file in the directory itself, as the loader wants it."""
    return "/" not in name and name.isprintable()


def _at(listing: Listing) -> str:
    return f"{listing.repo} at {listing.commit[:12]}"
