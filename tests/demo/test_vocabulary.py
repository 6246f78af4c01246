"""tokenizer.json: it drops no text, its control tokens are single ids. Oracle: the `tokenizers` library."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from ftagent import demo
from ftagent.demo.training.vocabulary import ADDED, VOCABULARY
from tests.demo.conversations import tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
LIBRARY = Library.from_file(str(demo.directory() / "tokenizer.json"))


def test_the_vocabulary_has_its_size_and_ends_with_the_control_tokens() -> None:
    assert LIBRARY.get_vocab_size() == VOCABULARY == tokenizer().vocab_size
    assert [LIBRARY.token_to_id(text) for text in ADDED] == list(range(VOCABULARY - len(ADDED), VOCABULARY))


@pytest.mark.parametrize("text", ADDED)
def test_control_tokens_are_single_ids(text: str) -> None:
    assert tokenizer().encode(f"a{text}b")[1:-1] == [LIBRARY.token_to_id(text)]


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_the_pattern_leaves_no_character_out(text: str) -> None:
    """The library's pieces touch each other and reach the end."""
    pieces = LIBRARY.pre_tokenizer.pre_tokenize_str(text)
    spans = [span for _, span in pieces]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    assert not text or spans[-1][1] == len(text)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_random_text_survives_and_gives_the_librarys_ids(text: str) -> None:
    ids = tokenizer().encode(text)
    assert tokenizer().decode(ids) == text
    assert ids == LIBRARY.encode(text).ids


def test_digits_stand_alone() -> None:
    assert len(tokenizer().encode("8812047")) == 7
