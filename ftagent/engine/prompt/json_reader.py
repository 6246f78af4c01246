"""One JSON object read as it comes, passed on as valid JSON whatever the model wrote.

Small models write raw line breaks in strings, Python's True and None, single quotes, half a surrogate pair,
or forget a comma or a brace. `ObjectReader` mends these on the way, so that the pieces it gives always join
to valid JSON. Knows no markers, no tools and no events.
"""

from __future__ import annotations

from typing import NamedTuple

from ftagent.engine.prompt.arguments import parse_json, quote

_CLOSER = {"{": "}", "[": "]"}
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_SPACE = " \t\r\n"
_HIGH = frozenset("\\ud" + digit for digit in "89ab")  # how the escaped halves of a surrogate pair begin
_LOW = frozenset("\\ud" + digit for digit in "cdef")
_REPLACEMENT = "\\ufffd"


class Piece(NamedTuple):
    """Text of the value of the outermost member `key`; `key` None is structure between members."""

    key: str | None
    text: str


class ObjectReader:
    """Feed characters, the opening brace first. `done` after its closing brace."""

    def __init__(self) -> None:
        self.done = False
        self._stack: list[str] = []
        self._expect = "value"  # value, key, colon, comma
        self._key: str | None = None
        self._quote = ""  # the delimiter of the open string
        self._escape = ""  # an escape sequence that is not complete yet
        self._high = ""  # the escaped first half of a surrogate pair, until its second half comes
        self._word = ""  # an unquoted word
        self._token = ""  # the open string or word when it is a key of the outermost object
        self._pieces: list[Piece] = []

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    @property
    def depth(self) -> int:
        return len(self._stack)

    def take(self) -> list[Piece]:
        """The pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def feed(self, char: str) -> None:
        if self.done:
            return
        if self._quote:
            self._in_string(char)
        elif char in _SPACE:
            self._end_word()
        elif char in "\"'" and not self._word:
            self._begin_token()
            self._quote = char
            self._put('"')
        elif char in "{[" and not self._word:
            self._begin_container(char)
        elif char in "}],:":
            self._end_word()
            self._punctuation(char)
        else:
            if not self._word:
                self._begin_token()
            self._word += char

    def close(self) -> None:
        """Close what is open, as if the missing closers had come."""
        if self._quote:
            self._escape = ""
            self._in_string(self._quote)
        self._end_word()
        while self._stack:
            self._end_container()

    def _punctuation(self, char: str) -> None:
        if char == ":":
            if self._expect == "colon":
                self._put(":")
                self._expect = "value"
        elif char == ",":  # put only when another element comes, so a trailing one vanishes
            if self._expect in ("colon", "value") and self._stack[-1] == "{":
                self._finish_member()
        elif any(_CLOSER[opener] == char for opener in self._stack):
            # A closer of an outer level closes the forgotten inner levels as well.
            while _CLOSER[self._stack[-1]] != char:
                self._end_container()
            self._end_container()

    def _finish_member(self) -> None:
        """Give a key that has no value the value null."""
        self._put(":null" if self._expect == "colon" else "null")
        self._after_value()

    def _begin_token(self) -> None:
        """Before any string, word or container: put what must stand before it."""
        if self._expect == "comma":
            self._key = self._key if self.depth > 1 else None
            self._put(",")
            self._expect = "key" if self._stack[-1] == "{" else "value"
        elif self._expect == "colon":
            self._put(":")
            self._expect = "value"
        if self._expect == "key":
            self._key = self._key if self.depth > 1 else None
            self._token = ""

    def _begin_container(self, char: str) -> None:
        self._begin_token()
        if self._expect == "key":  # a container where a key must stand: give it an empty key
            self._put('""')
            self._end_token("")
            self._begin_token()
        self._put(char)
        self._stack.append(char)
        self._expect = "key" if char == "{" else "value"

    def _end_container(self) -> None:
        opener = self._stack[-1]
        if opener == "{" and self._expect in ("colon", "value"):
            self._finish_member()
        if self.depth == 1:
            self._key = None
        self._put(_CLOSER[opener])
        self._stack.pop()
        self.done = not self._stack
        self._after_value()

    def _after_value(self) -> None:
        self._expect = "comma"
        if self.depth == 1:
            self._pieces.append(Piece(None, ""))  # says at once that the member is complete

    def _end_token(self, text: str) -> None:
        """A string or word is complete: it was a key or a value."""
        if self._expect == "key":
            if self.depth == 1:
                self._key = text
            self._expect = "colon"
        else:
            self._after_value()

    def _end_word(self) -> None:
        if not self._word:
            return
        word, self._word = self._word, ""
        word = _WORDS.get(word, word)
        plain = self._expect != "key" and parse_json(word) is not ...
        self._put(word if plain else quote(word))
        self._end_token(word)

    def _in_string(self, char: str) -> None:
        if self._escape:
            self._in_escape(char)
        elif char == "\\":
            self._escape = "\\"
        elif char == self._quote:
            self._quote = ""
            self._in_text("")
            self._put('"')
            key = parse_json(f'"{self._token}"')
            self._end_token(key if isinstance(key, str) else self._token)
        else:
            self._in_text(quote(char)[1:-1])

    def _in_escape(self, char: str) -> None:
        sequence = self._escape + char
        self._escape = ""
        if sequence == "\\u" or (sequence.startswith("\\u") and len(sequence) < 6 and char in _HEX):
            self._escape = sequence
        elif sequence.startswith("\\u"):
            if char in _HEX:
                self._in_text(sequence)
            else:  # not a code point after all: the backslash was meant as itself
                self._in_text("\\" + sequence[:-1])
                self._in_string(char)
        elif char in _ESCAPED:
            self._in_text(sequence)
        elif char == "'":
            self._in_text("'")
        else:
            self._in_text("\\\\" + quote(char)[1:-1])

    def _in_text(self, text: str) -> None:
        """Put what one character or escape gives, U+FFFD for half a pair; "" is the end of the string."""
        kind = text[:4].lower()
        high, self._high = self._high, ""
        if kind in _LOW:
            text = high + text if high else _REPLACEMENT
        elif high:
            text = _REPLACEMENT + text
        if kind in _HIGH:
            self._high = text[-6:]
            text = text[:-6]
        if not text:
            return
        self._put(text)
        if self._expect == "key" and self.depth == 1:
            self._token += text

    def _put(self, text: str) -> None:
        in_member = self.depth > 1 or (self.depth == 1 and self._expect == "value")
        self._pieces.append(Piece(self._key if in_member else None, text))
