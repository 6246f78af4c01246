"""Which token of a prompt was the first to differ from the prompt before, and in which block it stood."""

from __future__ import annotations

import pytest

from ftagent.conversation import Boundary
from ftagent.engine.context.divergence import CONVERSATIONS, PromptWatch, block_at, find_divergence
from ftagent.engine.context.tree import token_key
from ftagent.engine.stats import Divergence

EDGES = (
    Boundary("system_end", 50, 0),
    Boundary("tools_end", 90, -1),
    Boundary("user", 100, 1),
    Boundary("thinking_start", 130, 2),
    Boundary("thinking_end", 150, 2),
    Boundary("tool_call", 160, 2),
    Boundary("assistant_end", 180, 2),
    Boundary("tool_result", 185, 3),
)
PROMPT = list(range(200))


def changed(token: int) -> list[int]:
    return [*PROMPT[:token], 999, *PROMPT[token + 1 :]]


@pytest.mark.parametrize(
    ("token", "block"),
    [
        (0, ("system", 0)),
        (49, ("system", 0)),
        (50, ("tools", -1)),
        (95, ("template", -1)),
        (100, ("user", 1)),
        (129, ("user", 1)),
        (130, ("thinking", 2)),
        (155, ("template", -1)),
        (170, ("tool_call", 2)),
        (182, ("template", -1)),
        (199, ("tool_result", 3)),
    ],
)
def test_each_token_has_its_block(token: int, block: tuple[str, int]) -> None:
    assert block_at(EDGES, token) == block


@pytest.mark.parametrize(("token", "block"), [(41, "system[0]"), (60, "tools"), (199, "tool_result[3]")])
def test_the_first_token_that_differs_is_named(token: int, block: str) -> None:
    before, after = (token_key(PROMPT), EDGES), (token_key(changed(token)), EDGES)
    found = find_divergence(before, after, 7)
    assert found == Divergence(7, token, block, 200 - token, volatile=token < 100)


def test_a_prompt_that_goes_on_does_not_diverge() -> None:
    longer = token_key([*PROMPT, 7, 8])
    assert find_divergence((token_key(PROMPT), EDGES), (longer, EDGES), 2) is None
    cut = find_divergence((longer, EDGES), (token_key(PROMPT), EDGES), 2)
    assert cut is not None
    assert cut.token == 200


def test_a_compaction_is_no_volatile_span() -> None:
    summary = [edge for edge in EDGES if edge.kind != "user"]
    found = find_divergence((token_key(PROMPT), EDGES), (token_key(changed(110)), summary), 2)
    assert found is not None
    assert (found.block, found.volatile) == ("user[1]", False)


def test_a_volatile_span_is_found_each_time_and_told_once_for_each_conversation() -> None:
    watch = PromptWatch()
    assert watch.note("one", PROMPT, EDGES) == (None, False)
    assert watch.note("one", [*PROMPT, 1], EDGES) == (None, False)
    assert watch.note("one", changed(140), EDGES) == (None, False)  # thinking is often left out
    assert watch.newest is None
    assert watch.counts() == ()
    first, is_first = watch.note("one", changed(41), EDGES)
    assert first is not None
    assert is_first
    assert (first.turn, first.token, first.block) == (4, 41, "system[0]")
    later = Divergence(5, 30, "system[0]", 170, volatile=True)
    assert watch.note("one", changed(30), EDGES) == (later, False)
    assert watch.newest == later
    assert watch.note("two", changed(70), EDGES) == (None, False)
    assert watch.note("two", changed(71), EDGES)[1]
    assert watch.counts() == (("system", 2), ("tools", 1))


def test_few_conversations_are_watched() -> None:
    watch = PromptWatch()
    for number in range(CONVERSATIONS + 1):
        watch.note(number, PROMPT, EDGES)
    assert watch.note(0, changed(1), EDGES) == (None, False)
    assert watch.note(CONVERSATIONS, changed(1), EDGES)[1]


def test_another_message_in_place_of_a_reply_is_no_volatile_span() -> None:
    """The reply was dropped: what differs is the markup that it would have begun with."""
    edges = (Boundary("user", 100, 1), Boundary("thinking_start", 200, 2))
    for said, found in ((190, False), (None, True)):
        watch = PromptWatch()
        watch.note("one", PROMPT, edges, said)
        noted, _ = watch.note("one", [*PROMPT[:192], 999, *PROMPT], edges, said)
        assert (noted is not None) == found
