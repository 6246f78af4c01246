"""The tokenizer's own promises: loading, refusals, added tokens, decoding piece by piece."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from ftagent.engine.prompt.tokenizer import Detokenizer, Tokenizer
from ftagent.errors import LoadFailed
from tests.engine.prompt import vocabularies


def saved(tmp_path: Path, document: Any, **files: Any) -> Path:
    """A model directory with `document` as tokenizer.json and the other files given by name."""
    for name, value in {"tokenizer": document, **files}.items():
        content = value if isinstance(value, str) else json.dumps(value)
        (tmp_path / f"{name}.json").write_text(content, encoding="utf-8")
    return tmp_path


def document() -> Any:
    return json.loads(vocabularies.oracle().to_str())


def test_ids_equal_the_oracles_with_added_tokens() -> None:
    text = "<|im_start|>user\nnaïve café, 3.14<|im_end|>\n<think>\n\n</think><|im_end|><|im_end|>"
    assert vocabularies.small().encode(text) == vocabularies.oracle().encode(text).ids


def test_words_never_become_added_tokens() -> None:
    tokenizer = vocabularies.small()
    ids = tokenizer.encode_plain("a <|im_end|> b</think>")
    assert not set(ids) & set(tokenizer.added_tokens.values())
    assert tokenizer.decode(ids) == "a <|im_end|> b</think>"


def test_end_of_reply_comes_from_both_config_files() -> None:
    added = vocabularies.small().added_tokens
    assert set(vocabularies.small().eos_ids) == {added["<|im_end|>"], added["<|endoftext|>"]}


def test_longest_added_token_wins(tmp_path: Path) -> None:
    oracle = tokenizers.Tokenizer.from_str(vocabularies.oracle().to_str())
    names = ["<a>", "<a>b", "<a>bc", "<", "x<a>"]
    oracle.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
    tokenizer = Tokenizer.from_directory(saved(tmp_path, json.loads(oracle.to_str())))
    for text in ("<a>bcd", "<a>bd", "<a>", "<b", "xx<a>bc", "<a><a>b<"):
        assert tokenizer.encode(text) == oracle.encode(text).ids, text


def test_normalisation_stops_at_added_tokens() -> None:
    text = "</think>\u0338e\u0301 </think>\u0301"  # '>' and U+0338 would compose to one character
    assert vocabularies.small().encode(text) == vocabularies.oracle().encode(text).ids


def test_merges_out_of_id_order(tmp_path: Path) -> None:
    shuffled = document()
    vocab = shuffled["model"]["vocab"]
    highest = max(vocab.values())
    shuffled["model"]["vocab"] = {token: highest - number for token, number in vocab.items()}
    path = saved(tmp_path, shuffled)
    oracle = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(path)
    for text in vocabularies.standard_library(60_000):
        ids = tokenizer.encode_plain(text)
        assert ids == oracle.encode(text).ids
        assert tokenizer.encoding.decode(ids) == text


def test_plain_byte_level_is_gpt2s_pattern(tmp_path: Path) -> None:
    oracle = tokenizers.Tokenizer.from_str(vocabularies.oracle().to_str())
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer.from_directory(saved(tmp_path, json.loads(oracle.to_str())))
    for text in ["It's  we'll   \n\n 12345 x_y!?", *vocabularies.standard_library(30_000)]:
        assert tokenizer.encode(text) == oracle.encode(text).ids


def test_text_that_the_pattern_skips_is_kept(tmp_path: Path) -> None:
    oracle = tokenizers.Tokenizer.from_str(vocabularies.oracle().to_str())
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex("[a-z]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = Tokenizer.from_directory(saved(tmp_path, json.loads(oracle.to_str())))
    text = "abc  DEF 12 ghi é"
    assert tokenizer.encode(text) == oracle.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tiktoken_file(tmp_path: Path) -> None:
    ranks = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell"]
    lines = (base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(ranks))
    path = tmp_path / "small.tiktoken"
    path.write_bytes(b"\n".join(lines))
    tokenizer = Tokenizer.from_tiktoken(path, r"\w+|\W+", {"<end>": 300}, {"eos_token": "<end>"})
    assert tokenizer.encode("hello<end>") == [258, ord("o"), 300]
    assert tokenizer.eos_ids == (300,)
    assert tokenizer.vocab_size == 301
    assert tokenizer.decode([258, 299, 300, 5000]) == "hell<end>"


@pytest.mark.parametrize("lines", [b"AAAA x", b"!!!! 1", b"aGU= 0", b"one"])
def test_damaged_tiktoken_file(tmp_path: Path, lines: bytes) -> None:
    path = tmp_path / "bad.tiktoken"
    path.write_bytes(lines)
    with pytest.raises(LoadFailed, match=r"bad\.tiktoken"):
        Tokenizer.from_tiktoken(path, r"\w+|\W+", {})


REFUSED = {
    "model type Unigram": lambda d: d["model"].update(type="Unigram"),
    "byte_fallback": lambda d: d["model"].update(byte_fallback=True),
    "normalizer Lowercase": lambda d: d.update(normalizer={"type": "Lowercase"}),
    "not byte-level": lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
    "no pre-tokenizer": lambda d: d.update(pre_tokenizer=None),
    "add_prefix_space": lambda d: d["pre_tokenizer"]["pretokenizers"][-1].update(add_prefix_space=True),
    "behaviour MergedWithNext": lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(
        behavior="MergedWithNext"
    ),
    "sequence of Split": lambda d: d["pre_tokenizer"]["pretokenizers"].insert(
        0, d["pre_tokenizer"]["pretokenizers"][0]
    ),
    "with lstrip": lambda d: d["added_tokens"][0].update(lstrip=True),
    "no token for byte 65": lambda d: d["model"]["vocab"].pop("A"),
    "produces no token": lambda d: d["model"]["merges"].append(["Z", "Q"]),
    "damaged tokenizer file": lambda d: d.pop("model"),
    "expression is not supported": lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(
        pattern={"Regex": "(unclosed"}
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_unsupported_kinds_are_refused(tmp_path: Path, reason: str) -> None:
    changed = copy.deepcopy(document())
    REFUSED[reason](changed)
    with pytest.raises(LoadFailed, match=reason) as caught:
        Tokenizer.from_directory(saved(tmp_path, changed))
    message = str(caught.value)
    assert "tokenizer.json" in message
    assert "\n" not in message
    assert "; use a" in message or "; download" in message


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"tokenizer\.json: file not found"):
        Tokenizer.from_directory(tmp_path)
    with pytest.raises(LoadFailed, match=r"tokenizer\.json: not valid JSON"):
        Tokenizer.from_directory(saved(tmp_path, '{"model": '))
    with pytest.raises(LoadFailed, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.from_directory(saved(tmp_path, document(), tokenizer_config="{"))
    with pytest.raises(LoadFailed, match=r"generation_config\.json: eos_token_id"):
        Tokenizer.from_directory(
            saved(tmp_path, document(), tokenizer_config={}, generation_config={"eos_token_id": "x"})
        )


def test_whole_words_beyond_merges(tmp_path: Path) -> None:
    """With `ignore_merges` a piece that is a token becomes it, though no merge leads there."""
    changed = document()
    changed["model"]["vocab"]["zzqzz"] = 1_990_000
    changed["model"]["ignore_merges"] = True
    path = saved(tmp_path, changed)
    oracle = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert Tokenizer.from_directory(path).encode("zzqzz") == oracle.encode("zzqzz").ids == [1_990_000]
    changed["model"]["ignore_merges"] = False
    path = saved(tmp_path, changed)
    oracle = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert Tokenizer.from_directory(path).encode("zzqzz") == oracle.encode("zzqzz").ids


def test_word_level_model_is_refused(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(LoadFailed, match="model type WordLevel"):
        Tokenizer.from_directory(saved(tmp_path, json.loads(other.to_str())))


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_encode_and_decode_are_inverse(text: str) -> None:
    tokenizer = vocabularies.small()
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)


def test_lone_surrogates_become_replacement_characters() -> None:
    tokenizer = vocabularies.small()
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 2009), max_size=40))
def test_deltas_put_together_are_the_whole(ids: list[int]) -> None:
    tokenizer = vocabularies.small()
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]
    expected = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode(errors="replace")
    assert "".join(deltas) == expected == vocabularies.oracle().decode(ids, skip_special_tokens=False)


SPLIT = ["🤖 👩‍👩‍👧", "한국어 핥"]
SPLIT += ["e\u0301 n\u0303", "🏳\ufe0f🏳️‍🌈", "中文，日本語", "𝒳𐍈"]


@pytest.mark.parametrize("text", SPLIT)
def test_split_characters_come_out_whole(text: str) -> None:
    tokenizer = vocabularies.small()
    ids = [vocabularies.oracle().token_to_id(token) for token in byte_tokens(text)]
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)
    assert detokenizer.flush() == ""


def byte_tokens(text: str) -> list[str]:
    """`text` as single-byte tokens, in the byte alphabet of `tokenizers`."""
    ((word, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return list(word)


def test_added_token_ends_an_unfinished_character() -> None:
    tokenizer = vocabularies.small()
    end = tokenizer.added_tokens["<|im_end|>"]
    first, second = (tokenizer.encoding.encode_single_token(bytes([byte])) for byte in "é".encode())
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(first) == ""
    assert detokenizer.push(end) == "\ufffd<|im_end|>"
    assert detokenizer.push(first) + detokenizer.flush() == "\ufffd"
    assert detokenizer.push(first) + detokenizer.push(second) == "é"
