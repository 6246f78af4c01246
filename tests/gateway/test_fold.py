"""The fold of events into blocks, by hand-written cases."""

from __future__ import annotations

import pytest

from ftagent.errors import EngineError
from ftagent.events import (
    Event,
    Logprobs,
    Progress,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ftagent.gateway.fold import ReplyFold
from tests.gateway.stage import done


def folded(*events: Event) -> ReplyFold:
    fold = ReplyFold()
    for event in events:
        fold.push(event)
    return fold


def shape(fold: ReplyFold) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in fold.blocks]


def test_neighbouring_deltas_of_one_kind_are_one_block() -> None:
    fold = folded(
        ThinkingDelta("a"), ThinkingDelta("b"), Progress("prefill", 1, 1), ThinkingDelta("c"), TextDelta("d")
    )
    assert shape(fold) == [("thinking", "abc"), ("text", "d")]


def test_empty_deltas_open_nothing() -> None:
    assert shape(folded(TextDelta(""), ThinkingDelta(""), done())) == []


def test_text_after_a_call_is_a_new_block() -> None:
    fold = folded(TextDelta("a"), ToolCallStart(0, "x", "f"), ToolCallEnd(0), TextDelta("b"))
    assert shape(fold) == [("text", "a"), ("tool", "{}"), ("text", "b")]


def test_parts_open_and_close_one_block_at_a_time() -> None:
    fold = ReplyFold()
    names: list[str] = []
    for event in (TextDelta("a"), ToolCallStart(0, "x", "f"), ToolCallDelta(0, "{}"), ToolCallEnd(0), done()):
        names += [f"{type(part).__name__} {part.block.index}" for part in fold.push(event)]
    assert names == ["Opened 0", "Grew 0", "Closed 0", "Opened 1", "Grew 1", "Closed 1"]


def nested(depth: int) -> list[object]:
    return [nested(depth - 1)] if depth > 1 else []


def test_a_call_that_was_cut_is_not_completed() -> None:
    fold = folded(ToolCallStart(0, "x", "f"), done("length"))
    assert shape(fold) == [("tool", "")]
    assert fold.blocks[0].arguments() == {}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1, "b": "two"}', {"a": 1, "b": "two"}),
        ('{"a": [1, 2], "b": "tw', {"a": [1, 2]}),
        ('{"a": {"c": null}', {"a": {"c": None}}),
        ('{"a": ' + "[" * 300 + "]" * 300 + ', "b": 1}', {"a": nested(300), "b": 1}),
        ("[1]", {}),
        ("no json", {}),
        ("", {}),
    ],
)
def test_arguments(text: str, arguments: dict[str, object]) -> None:
    fold = folded(ToolCallStart(0, "x", "f"), ToolCallDelta(0, text))
    assert fold.blocks[0].arguments() == arguments


def test_a_delta_for_a_call_that_is_not_open_is_the_engines_fault() -> None:
    fold = folded(ToolCallStart(0, "x", "f"), ToolCallEnd(0))
    for event in (ToolCallDelta(0, "{}"), ToolCallEnd(0), ToolCallDelta(1, "{}")):
        with pytest.raises(EngineError, match="is not open"):
            fold.push(event)


def test_logprobs_go_to_the_delta_that_follows() -> None:
    first, second, last = (TokenLogprob(n, str(n), -1.0) for n in range(3))
    fold = folded(
        Logprobs((first,)), ThinkingDelta("a"), Logprobs((second,)), TextDelta("b"), Logprobs((last,)), done()
    )
    assert [block.logprobs for block in fold.blocks] == [[first], [second]]
    assert fold.unplaced == [last]
