"""What this engine generated, kept so that it is rendered as it was generated when a client sends it back.

Clients echo calls with keys in another order and numbers spelled anew, and a text has more tokenisations than
the one a model chose. Either would end the common prefix of two turns at the first reply. Safe to use from
several threads. Knows no template.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from ftagent.conversation import Boundary
from ftagent.engine.prompt.tokenizer import Detokenizer, Tokenizer

MAX_CALLS = 20_000
MAX_REPLIES = 64
MAX_CHARACTERS = 8_000_000  # of all remembered texts together
MAX_ORDERS = 64


class Spoken(NamedTuple):
    """What a reply said: thinking, words, and calls (name, arguments)."""

    thinking: str
    content: str
    calls: tuple[tuple[str, Any], ...]


NOTHING_SPOKEN = Spoken("", "", ())


class Asked(NamedTuple):
    """A prompt beside its ids: `template_text` is what the template itself wrote for it, `message` the index
    that the reply has in the conversation."""

    template_text: str
    message: int
    boundaries: tuple[Boundary, ...] = ()


class KnownPrefix(NamedTuple):
    """Prompt and reply as the model saw them: the text, its ids, and where its control tokens stand in it.

    The first `prompt` characters are the prompt.
    """

    text: str
    token_ids: tuple[int, ...]
    markup: tuple[tuple[int, int], ...]
    prompt: int
    asked: Asked
    spoken: Spoken

    @property
    def message(self) -> int:
        return self.asked.message

    @property
    def template_text(self) -> str:
        return self.asked.template_text

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        return self.asked.boundaries


class ReplyMemory:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, str] = OrderedDict()  # call id -> arguments, JSON text
        self._replies: OrderedDict[str, KnownPrefix] = OrderedDict()
        self._orders: OrderedDict[bytes, str] = OrderedDict()  # digest of sorted paragraphs -> text

    def remember_call(self, call_id: str, arguments: str) -> None:
        """Keep the JSON text of a call's arguments under the id that the client was given."""
        with self._lock:
            self._calls[call_id] = arguments
            self._calls.move_to_end(call_id)
            while len(self._calls) > MAX_CALLS:
                self._calls.popitem(last=False)

    def recall(self, call_id: str, arguments: Any) -> Any:
        """The arguments as they were generated, if those say the same; otherwise `arguments` itself."""
        with self._lock:
            generated = self._calls.get(call_id)
        if generated is None:
            return arguments
        try:
            parsed = json.loads(generated)
        except ValueError:
            return arguments
        return parsed if parsed == arguments else arguments

    def known_order(self, text: str) -> str:
        """The text that was first given with the same paragraphs, in whatever order they come now."""
        digest = hashlib.blake2b("\0".join(sorted(text.split("\n\n"))).encode("utf-8", "replace")).digest()
        with self._lock:
            known = self._orders.setdefault(digest, text)
            self._orders.move_to_end(digest)
            if len(self._orders) > MAX_ORDERS:
                self._orders.popitem(last=False)
        return known

    def remember_reply(
        self,
        text: str,
        token_ids: Sequence[int],
        markup: Sequence[tuple[int, int]],
        reply_ids: Sequence[int],
        asked: Asked | None = None,
        spoken: Spoken = NOTHING_SPOKEN,
    ) -> None:
        """Keep a prompt (its text, ids and control tokens' places) with the ids of the reply to it.

        Nothing is kept of a reply whose ids do not spell text, or of a prompt that was normalised.
        """
        if self._tokenizer.normalize(text) != text or not reply_ids:
            return
        whole, places = self._spell(text, reply_ids)
        if "\ufffd" in whole[len(text) :]:
            return
        ids, marks = (*token_ids, *reply_ids), (*markup, *places)
        known = KnownPrefix(whole, ids, marks, len(text), asked or Asked(text, -1), spoken)
        with self._lock:
            self._replies[whole] = known
            self._replies.move_to_end(whole)
            while len(self._replies) > MAX_REPLIES or self._characters() > MAX_CHARACTERS:
                self._replies.popitem(last=False)

    def _characters(self) -> int:
        return sum(
            len(known.text) + (0 if known.text.startswith(known.template_text) else len(known.template_text))
            for known in self._replies.values()
        )

    def answers(self, text: str) -> list[KnownPrefix]:
        """The remembered replies to prompts that `text`, as a template wrote it, begins with.

        Longest first.
        """
        with self._lock:
            found = [known for known in self._replies.values() if text.startswith(known.template_text)]
        return sorted(found, key=lambda known: len(known.template_text), reverse=True)

    def prefix(self, text: str) -> KnownPrefix | None:
        """The longest remembered prompt and reply that `text` begins with."""
        with self._lock:
            found = max(filter(text.startswith, self._replies), key=len, default=None)
            if found is None:
                return None
            self._replies.move_to_end(found)
            return self._replies[found]

    def _spell(self, text: str, reply_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """`text` and the reply's text, and where the reply's control tokens stand in it."""
        detokenizer = Detokenizer(self._tokenizer)
        pieces, length = [text], len(text)
        places: list[tuple[int, int]] = []
        for token_id in reply_ids:
            pieces.append(detokenizer.push(token_id))
            length += len(pieces[-1])
            if self._tokenizer.is_added(token_id):
                places.append((length - len(pieces[-1]), length))
        pieces.append(detokenizer.flush())
        return "".join(pieces), places
