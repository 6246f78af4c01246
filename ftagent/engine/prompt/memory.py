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

from ftagent.engine.prompt.tokenizer import Detokenizer, Tokenizer

MAX_CALLS = 20_000
MAX_REPLIES = 64
MAX_CHARACTERS = 8_000_000  # of all remembered texts together
MAX_ORDERS = 64


class KnownPrefix(NamedTuple):
    """Prompt and reply as the model saw them: the text, its ids, and where its control tokens stand in it."""

    text: str
    token_ids: tuple[int, ...]
    markup: tuple[tuple[int, int], ...]


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
    ) -> None:
        """Keep a prompt (its text, ids and control tokens' places) with the ids of the reply to it.

        Nothing is kept of a reply whose ids do not spell text, or of a prompt that was normalised.
        """
        if self._tokenizer.normalize(text) != text or not reply_ids:
            return
        whole, places = self._spell(text, reply_ids)
        if "\ufffd" in whole[len(text) :]:
            return
        known = KnownPrefix(whole, (*token_ids, *reply_ids), (*markup, *places))
        with self._lock:
            self._replies[whole] = known
            self._replies.move_to_end(whole)
            while len(self._replies) > MAX_REPLIES or sum(map(len, self._replies)) > MAX_CHARACTERS:
                self._replies.popitem(last=False)

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
