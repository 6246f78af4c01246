"""llguidance for one vocabulary: compiled grammars and the masks of a running match.

Knows token ids and grammar text; knows no tools, forms or requests.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import tiktoken
from llguidance import LLMatcher
from llguidance.tiktoken import lltokenizer_from_encoding
from numpy.typing import NDArray

log = logging.getLogger(__name__)

_CACHED_GRAMMARS = 64  # per vocabulary

Mask = NDArray[np.bool_]


class Vocabulary(Protocol):
    """What is needed of `tokenizer.Tokenizer`."""

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    @property
    def encoding(self) -> tiktoken.Encoding: ...

    @property
    def eos_ids(self) -> Sequence[int]: ...

    def decode_bytes(self, ids: Sequence[int]) -> bytes: ...


class GrammarError(Exception):
    """A grammar that llguidance cannot compile; the message is its first line."""


class Running:
    """One reply inside one grammar."""

    def __init__(self, matcher: LLMatcher, compiler: Compiler) -> None:
        self._matcher = matcher
        self._compiler = compiler
        self._ended = False  # an end-of-turn token came

    @property
    def complete(self) -> bool:
        """Whether nothing but an end-of-turn token may follow."""
        return self._ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    @property
    def failed(self) -> bool:
        return not self._ended and self._matcher.is_error()

    def mask(self) -> Mask | None:
        """Allowed tokens; end-of-turn tokens exactly where the grammar may end. None once it has failed."""
        if self.failed:
            return None
        if self.complete:
            return self._compiler.only_eos()
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(packed, count=self._compiler.size, bitorder="little").view(np.bool_)
        allowed[self._compiler.eos] = self._matcher.is_accepting()
        if self.failed:
            reason = self._matcher.get_error().strip().splitlines()[0][:200]
            log.warning("the grammar failed (%s); the rest of the reply is not constrained", reason)
            return None
        return allowed

    def advance(self, token_id: int) -> None:
        """Follow a token. One that the grammar forbids makes it fail; it then allows everything."""
        if self._ended or self.failed:
            return
        if token_id in self._compiler.eos_set:
            self._ended = True
        elif not self._matcher.consume_token(token_id):
            log.warning("token %d breaks the grammar; the rest of the reply is not constrained", token_id)

    def advance_bytes(self, text: bytes) -> bool:
        """Follow text that is part of a token. False when the grammar forbids it."""
        ids = self._compiler.tokenizer.tokenize_bytes(text)
        return self._matcher.validate_tokens(ids) == len(ids) and self._matcher.consume_tokens(ids)


class Compiler:
    """Compiles grammars over one vocabulary and keeps the latest."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.added = dict(vocabulary.added_tokens)
        encoding = vocabulary.encoding
        self.eos = np.array(sorted(vocabulary.eos_ids), dtype=np.intp)
        self.eos_set = frozenset(vocabulary.eos_ids)
        # llguidance wants an end token; without one of its own the vocabulary lends its last id.
        eos = list(vocabulary.eos_ids) or [encoding.n_vocab - 1]
        self.tokenizer = lltokenizer_from_encoding(encoding, eos_token=eos)
        self.size = self.tokenizer.vocab_size
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def only_eos(self) -> Mask:
        allowed = np.zeros(self.size, dtype=np.bool_)
        allowed[self.eos] = True
        return allowed

    def start(self, key: str, build: Callable[[], LLMatcher]) -> Running:
        """Begin a match of the grammar called `key`; `build` compiles it if it is not kept yet."""
        with self._lock:
            matcher = self._kept.get(key)
            if matcher is None:
                matcher = build()
                self._kept[key] = matcher
                if len(self._kept) > _CACHED_GRAMMARS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return Running(matcher.deep_copy(), self)

    def compile(self, grammar: str) -> LLMatcher:
        """A fresh matcher of a grammar. Raises GrammarError."""
        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().strip().splitlines()[0][:200])
        return matcher


_compilers: WeakKeyDictionary[tiktoken.Encoding, Compiler] = WeakKeyDictionary()
_compilers_lock = threading.Lock()


def compiler_for(vocabulary: Vocabulary) -> Compiler:
    """The compiler of a vocabulary. The first call takes about a second for 250k tokens."""
    with _compilers_lock:
        found = _compilers.get(vocabulary.encoding)
        if found is None:
            found = _compilers[vocabulary.encoding] = Compiler(vocabulary)
        return found
