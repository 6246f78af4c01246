"""Openly licensed text on the machine: the running Python's documentation topics and library sources.

Pieces are cut at paragraph or definition edges. Knows no tokens and no conversations. Another Python version
has other text: the shipped weights come from 3.12.3's.
"""

from __future__ import annotations

import ast
import functools
import json
import random
import re
import sysconfig
from pathlib import Path
from pydoc_data import topics

from ftagent import demo

_PIECE_CHARS = 1200
_SKIPPED = ("test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "encodings")


@functools.cache
def source_files() -> tuple[str, ...]:
    """Texts of the standard library's modules, sorted by path, generated tables left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(root.rglob("*.py")):
        if any(part in _SKIPPED for part in path.relative_to(root).parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 500 < len(text) < 200_000 and path.name != "topics.py":
            texts.append(text)
    return tuple(texts)


@functools.cache
def docstrings() -> tuple[str, ...]:
    """Docstrings of the standard library, dedented, between 60 and 2,000 characters."""
    found = []
    for text in source_files():
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node)
                if doc and 60 < len(doc) < 2000:
                    found.append(doc)
    return tuple(dict.fromkeys(found))


@functools.cache
def documentation() -> tuple[str, ...]:
    """Paragraph groups of Python's reference topics, about 1,200 characters each."""
    pieces: list[str] = []
    for name in sorted(topics.topics):
        piece = ""
        for paragraph in topics.topics[name].split("\n\n"):
            piece += paragraph.rstrip() + "\n\n"
            if len(piece) > _PIECE_CHARS:
                pieces.append(piece.strip())
                piece = ""
        if len(piece) > 80:
            pieces.append(piece.strip())
    return tuple(pieces)


def _is_plain(sentence: str) -> bool:
    return 30 < len(sentence) < 160 and bool(re.fullmatch(r"[A-Z][\w ,;:'()\"\-/.`*]+[.!?]", sentence))


@functools.cache
def sentences() -> tuple[str, ...]:
    """Plain English sentences out of the documentation, 30 to 160 characters, one line each."""
    found: list[str] = []
    for text in documentation() + docstrings():
        flat = re.sub(r"\s+", " ", text)
        found += [piece for piece in re.split(r"(?<=[.!?]) ", flat) if _is_plain(piece)]
    return tuple(dict.fromkeys(found))


@functools.cache
def words() -> tuple[str, ...]:
    """Lower-case English words of the documentation, by falling frequency, three to eleven letters."""
    counts: dict[str, int] = {}
    for piece in documentation() + docstrings():
        for word in re.findall(r"\b[a-z]{3,11}\b", piece):
            counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ranked[:4000])


@functools.cache
def rare_words() -> tuple[str, ...]:
    """Every lower-case run of three to eleven letters in the library's sources, sorted."""
    found: set[str] = set()
    for text in source_files():
        found.update(re.findall(r"[a-z]{3,11}", text))
    return tuple(sorted(found))


@functools.cache
def fragments() -> tuple[str, ...]:
    """The letter entries of the model's own vocabulary: joined at random they make words nobody has seen."""
    document = json.loads((demo.directory() / "tokenizer.json").read_text(encoding="utf-8"))
    entries = document["model"]["vocab"]
    return tuple(sorted({key.lstrip("Ġ") for key in entries if re.fullmatch("Ġ?[A-Za-z]+", key)}))


def code_piece(rng: random.Random, lines: int) -> str:
    """`lines` consecutive lines of a library source, dedented to their first line's margin."""
    text = rng.choice(source_files()).splitlines()
    start = rng.randrange(max(1, len(text) - lines))
    piece = text[start : start + lines]
    margin = len(piece[0]) - len(piece[0].lstrip()) if piece else 0
    cut = [line[margin:] if not line[:margin].strip() else line.lstrip() for line in piece]
    return "\n".join(cut).strip("\n")


def prose_piece(rng: random.Random) -> str:
    """One documentation piece or docstring."""
    return rng.choice(documentation() if rng.random() < 0.5 else docstrings())
