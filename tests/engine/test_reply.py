"""Stop strings, markers, logprobs and thinking, wherever the tokens cut the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.reply import RawText, ReplyStream, StopSearch
from ftagent.engine.sampling import Choice
from ftagent.events import (
    Event,
    Logprobs,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallEnd,
    ToolCallStart,
)

TEXTS = st.text("ab<", max_size=30)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=5), max_size=4).map(tuple)


def by_character(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Oracle: read one character at a time until the text ends with a stop string; the longest counts."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            found = max(ended, key=len)
            return text[: end - len(found)], found
    return text, None


@settings(deadline=None, max_examples=300)
@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=6))
def test_stop_search_does_not_depend_on_the_pieces(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    search = StopSearch(stops)
    shown = ""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        if search.found is None:
            shown += search.push(text[start:end])
            assert not any(stop in shown for stop in stops)
    if search.found is None:
        shown += search.release()
    assert (shown, search.found) == by_character(text, stops)


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    search = StopSearch(("END", "---\n"))
    assert search.push("one E") == "one "
    assert search.push("N") == ""
    assert search.push("T --") == "ENT "
    assert search.push("-x") == "---x"
    assert search.push("-END more") == "-"
    assert search.found == "END"


class Letters:
    """A detokenizer: token n is the n-th letter; 26 is an added token."""

    def push(self, token_id: int, /) -> str:
        return "<end>" if token_id == 26 else chr(97 + token_id)

    def flush(self) -> str:
        return ""


class Script:
    """A parser that answers each piece as the script says, and keeps what it was given."""

    def __init__(self, answer: Callable[[str, bool], list[Event]], thinking: bool = False) -> None:
        self.answer = answer
        self.content_open = not thinking
        self.calls = 0
        self.pushed: list[tuple[str, bool]] = []
        self.cut: bool | None = None

    def push(self, text: str, marker: bool = False) -> list[Event]:
        self.pushed.append((text, marker))
        return self.answer(text, marker)

    def finish(self, cut: bool = True) -> list[Event]:
        self.cut = cut
        return []


def spell(word: str) -> list[Choice]:
    return [Choice(ord(letter) - 97) for letter in word]


def test_added_tokens_reach_the_parser_as_markers() -> None:
    parser = Script(lambda text, marker: [])
    stream = ReplyStream(Letters(), parser, added={26})
    for choice in (*spell("a"), Choice(26), *spell("b")):
        stream.push(choice)
    assert parser.pushed == [("a", False), ("<end>", True), ("b", False)]


@pytest.mark.parametrize("cut", [True, False])
def test_finish_tells_the_parser_whether_the_reply_was_cut(cut: bool) -> None:
    parser = Script(lambda text, marker: [])
    ReplyStream(Letters(), parser).finish(cut)
    assert parser.cut is cut


def test_stop_strings_count_in_content_only() -> None:
    parser = Script(lambda text, marker: [ThinkingDelta(text)], thinking=True)
    stream = ReplyStream(Letters(), parser, stops=("bc",), thinking_open=True)
    events = [event for choice in spell("abcd") for event in stream.push(choice)]
    assert [event.text for event in events if isinstance(event, ThinkingDelta)] == list("abcd")
    assert stream.stopped is None
    assert stream.reasoning_tokens == 4
    parser.answer = lambda text, marker: [TextDelta(text)]
    parser.content_open = True
    events = [event for choice in spell("abc") for event in stream.push(choice)]
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("a")]
    assert stream.stopped == "bc"
    assert stream.reason("stop") == "stop_sequence"
    assert stream.finish(cut=False) == []
    assert stream.reasoning_tokens == 5  # the token that closed the thinking is part of it


def test_a_stop_string_does_not_reach_across_a_call() -> None:
    call: list[Event] = [ToolCallStart(0, "call_1", "find"), ToolCallEnd(0)]
    parser = Script(lambda text, marker: call if marker else [TextDelta(text)])
    stream = ReplyStream(Letters(), parser, added={26}, stops=("ab",))
    events = [event for choice in (*spell("a"), Choice(26), *spell("b")) for event in stream.push(choice)]
    assert events == [TextDelta("a"), *call, TextDelta("b")]
    assert stream.stopped is None
    parser.calls = 1
    assert stream.reason("stop") == "tool_calls"
    assert stream.reason("length") == "length"


def test_logprobs_wait_for_the_delta_that_holds_their_tokens() -> None:
    stream = ReplyStream(Letters(), RawText(), stops=("abz",), text_of=lambda token: chr(97 + token))
    assert stream.push(Choice(0, -0.1, ((0, -0.1), (3, -2.5)))) == []
    assert stream.push(Choice(1, -0.2)) == []
    logprobs, delta = stream.push(Choice(2, -0.3))
    assert delta == TextDelta("abc")
    assert logprobs == Logprobs(
        (
            TokenLogprob(0, "a", -0.1, ((0, "a", -0.1), (3, "d", -2.5))),
            TokenLogprob(1, "b", -0.2),
            TokenLogprob(2, "c", -0.3),
        )
    )
