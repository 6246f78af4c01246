"""Every family from the model's token ids to each protocol's bytes, streamed and not: one and the same
answer, no markup in it, each call once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.prompt.call_forms import BY_FORM, Speech
from tests.engine.prompt.test_family_templates import FAMILIES
from tests.engine.prompt.vocabularies import family_source
from tests.gateway.clients import Answer, Asker, asking

OPENED = ("deepseek_v32", "deepseek_v4", "deepseek_v41", "glm5", "minimax")


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Iterator[tuple[Asker, Speech, bool]]:
    """Who answers, how its family speaks, and whether a prompt begins the reply inside thinking."""
    name = request.param
    with asking(family_source(name)) as asker:
        yield (
            asker,
            BY_FORM[FAMILIES[name]],
            name in ("deepseek_v32", "deepseek_v4", "deepseek_v41", "glm5", "minimax"),
        )


def reply(speech: Speech, thinking_open: bool, rest: str) -> str:
    thought = speech.thinks("plan")
    return (thought[thought.index("plan") :] if thinking_open else thought) + rest


def test_thinking_words_and_a_call(family: tuple[Asker, Speech, bool]) -> None:
    asker, speech, opened = family
    words = "" if speech.form == "llama3" else "First I look."
    call = speech.call("set_timer", seconds=5, loop=True, label="ls 2>&1 </")
    answer = asker.everywhere(reply(speech, opened, speech.words(words) + call))
    arguments = {"seconds": 5, "loop": True, "label": "ls 2>&1 </"}
    assert answer == Answer("plan", words, (("set_timer", arguments),), "tool_calls")


def test_calls_in_a_row(family: tuple[Asker, Speech, bool]) -> None:
    asker, speech, opened = family
    made = [("find", {"q": "a", "limit": 1}), ("ping", {}), ("find", {"q": "b", "limit": 2})]
    made = made if speech.parallel else made[:1]
    answer = asker.everywhere(reply(speech, opened, speech.calls(made)))
    assert answer == Answer("plan", "", tuple((name, arguments) for name, arguments in made), "tool_calls")


def test_a_plain_answer(family: tuple[Asker, Speech, bool]) -> None:
    asker, speech, opened = family
    final = "<|channel|>final<|message|>" if speech.form == "harmony" else ""
    answer = asker.everywhere(reply(speech, opened, f"{final}Fine: a < b & {{}} [1]."))
    assert answer == Answer("plan", "Fine: a < b & {} [1].", (), "stop")


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.find<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find <|constrain|>json",
    ],
)
def test_one_call_of_gpt_oss_wherever_its_recipient_stands(header: str) -> None:
    with asking(family_source("harmony")) as asker:
        answer = asker.everywhere(
            BY_FORM["harmony"].thinks("plan") + header + '<|message|>{"q":"a","limit":3}<|call|>'
        )
    assert answer == Answer("plan", "", (("find", {"q": "a", "limit": 3}),), "tool_calls")
