"""Finding markers in text that is still growing.

An added token of the vocabulary that is a marker, or part of one ("native"), counts only when it came as
that token. It stands in the buffer as one lone surrogate, which no decoded text contains; so one matcher
serves both kinds. Knows rules, not what they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ftagent.engine.prompt.forms import FormTable, Rule, State

SPACE = " \t\r\n"
_MAX_NAME = 256  # characters between `opens` and `closes`
_MAX_GAP = 64  # white space that may stand before what must follow a marker
_SURROGATE = re.compile("[\ud800-\udfff]")
_GAP = re.compile("[ \t\r\n]*")

Verdict = Literal["no", "maybe", "yes"]


class Match(NamedTuple):
    """`end` is where the text after the marker begins; `name` is what stood between opens and closes."""

    verdict: Verdict
    end: int = 0
    name: str = ""


_NO = Match("no")
_MAYBE = Match("maybe")


class Alphabet:
    """The native markers of one vocabulary, each as one character."""

    def __init__(self, native: Iterable[str]) -> None:
        self._codes = {marker: chr(0xD800 + index) for index, marker in enumerate(sorted(native))}
        self._words = {ord(code): marker for marker, code in self._codes.items()}
        longest_first = sorted(self._codes, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, token: str) -> str:
        """An added token as it stands in the buffer: its character if native, else its text."""
        return self._codes.get(token, token)

    def spell(self, marker: str) -> str:
        """A marker as it stands in the buffer, each native token in it as its character."""
        return self._search.sub(lambda found: self._codes[found.group()], marker)

    def decode(self, text: str) -> str:
        """Buffer text as the model wrote it."""
        return text.translate(self._words) if _SURROGATE.search(text) else text

    def clean(self, text: str) -> str:
        """Text that may enter the buffer: no lone surrogates of its own."""
        return _SURROGATE.sub("\ufffd", text)


class CompiledRule:
    """A rule whose literals are written in the alphabet of the buffer."""

    def __init__(self, rule: Rule, alphabet: Alphabet) -> None:
        self.rule = rule
        self.when = rule.when
        self.opens = alphabet.spell(rule.opens)
        self.native = self.opens != rule.opens
        self._followed = tuple(alphabet.spell(mark) for mark in rule.followed)
        self._closes = tuple(alphabet.spell(part) for part in rule.closes.split("\n"))
        stop = re.escape(rule.closes[:1])
        self._name: re.Pattern[str] | None = None
        if rule.named:
            self._name = re.compile(f"[^\\s<\\[{{(\"'`,\ud800-\udfff]{{1,{_MAX_NAME}}}")
        elif rule.closes:
            self._name = re.compile(f"[^<\n{stop}\ud800-\udfff]{{1,{_MAX_NAME}}}")

    def match(self, text: str, start: int, final: bool) -> Match:
        """Whether the rule's marker stands at `start`. "maybe" asks for more text; never if `final`."""
        found = _literal(self.opens, text, start)
        if found.verdict == "yes" and self._name is not None:
            found = self._match_name(self._name, text, found.end)
        if found.verdict == "yes" and self._followed:
            found = self._match_following(text, found, final)
        return _NO if final and found.verdict == "maybe" else found

    def _match_name(self, pattern: re.Pattern[str], text: str, start: int) -> Match:
        if self.rule.named:
            gap = _GAP.match(text, start)
            start = min(gap.end() if gap else start, start + _MAX_GAP)
        named = pattern.match(text, start)
        end = named.end() if named else start
        if end == len(text):
            return _MAYBE if end - start < _MAX_NAME else _NO
        if named is None:
            return _NO
        if self.rule.named:
            return Match("yes", end, named.group())
        found = self._match_closer(text, end)
        return found._replace(name=named.group().strip(" \t\r\n\"'"))

    def _match_closer(self, text: str, start: int) -> Match:
        """`closes`, with any white space where it has a line break."""
        found = _literal(self._closes[0], text, start)
        for part in self._closes[1:]:
            if found.verdict != "yes":
                break
            gap = _GAP.match(text, found.end)
            after = gap.end() if gap else found.end
            if after - found.end > _MAX_GAP:
                return _NO
            found = _literal(part, text, after)
        return found

    def _match_following(self, text: str, found: Match, final: bool) -> Match:
        gap = _GAP.match(text, found.end)
        after = gap.end() if gap else found.end
        if after - found.end > _MAX_GAP:
            return _NO
        if after == len(text):
            return (found if "" in self._followed else _NO) if final else _MAYBE
        verdicts = {_literal(mark, text, after).verdict for mark in self._followed if mark}
        if "yes" in verdicts:
            return found
        if "maybe" in verdicts:
            return found if final else _MAYBE
        return _NO


def _literal(mark: str, text: str, start: int) -> Match:
    if text.startswith(mark, start):
        return Match("yes", start + len(mark))
    if len(text) - start < len(mark) and mark.startswith(text[start:]):
        return _MAYBE
    return _NO


class CompiledState:
    """A state ready to scan: its rules, and the characters with which any of their markers can begin."""

    def __init__(self, state: State, alphabet: Alphabet) -> None:
        self.sink = state.sink
        self.then = state.then
        self.rules = tuple(CompiledRule(rule, alphabet) for rule in state.rules)
        self.firsts = frozenset(rule.opens[0] for rule in self.rules)
        self._openers = sorted({rule.opens for rule in self.rules}, key=len, reverse=True)
        self._longest = len(self._openers[0]) if self._openers else 0
        self._search = re.compile("|".join(map(re.escape, self._openers)) or "(?!)")

    def next_candidate(self, text: str, start: int) -> int:
        """The first place from `start` on where a marker stands or may stand once more text has come.

        The length of `text` if there is none.
        """
        found = self._search.search(text, start)
        whole = found.start() if found else len(text)
        for place in range(max(start, len(text) - self._longest + 1), whole):
            if text[place] in self.firsts and any(mark.startswith(text[place:]) for mark in self._openers):
                return place
        return whole

    def begins(self, text: str, start: int) -> bool:
        """Whether the text ends inside a marker that starts at `start`."""
        return any(rule.match(text, start, final=False).verdict == "maybe" for rule in self.rules)


def compile_form(
    table: FormTable, native_markers: frozenset[str]
) -> tuple[Alphabet, Mapping[str, CompiledState]]:
    """The table's states over the vocabulary's native markers."""
    alphabet = Alphabet(native_markers & table.words)
    return alphabet, {name: CompiledState(state, alphabet) for name, state in table.states.items()}
