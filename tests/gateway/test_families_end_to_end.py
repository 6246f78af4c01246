"""Every family from the model's token ids to each protocol's bytes, streamed and not: one and the same
answer, no markup in it, each call once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.prompt.call_forms import BY_FORM, Speech
from tests.engine.prompt.test_family_templates import FAMILIES
from tests.engine.prompt.vocabularies import family_source
from tests.gateway.clients import QUESTION, Answer, Asker, Protocol, asking

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


# What each degree reads like in the prompts of a family; one that a family does not know is its nearest.
DEGREES = {
    "harmony": {
        **dict.fromkeys(("minimal", "low"), "Reasoning: low\n"),
        "medium": "Reasoning: medium\n",
        **dict.fromkeys(("high", "xhigh", "max"), "Reasoning: high\n"),
    },
    "glm5": {
        **dict.fromkeys(("minimal", "low", "medium"), "Reasoning Effort: Low<"),
        **dict.fromkeys(("high", "xhigh"), "Reasoning Effort: High<"),
        "max": "Reasoning Effort: Max<",
    },
    "deepseek_v41": {
        **dict.fromkeys(("minimal", "low"), "Reasoning Effort: 25 "),
        "max": "Reasoning Effort: 100 ",
    },
}


def with_effort(effort: str) -> tuple[tuple[Protocol, dict[str, Any]], ...]:
    """Thinking to this degree in the words of each protocol."""
    return (
        ("chat", {"reasoning_effort": effort}),
        ("chat", {"reasoning": {"effort": effort}}),
        ("messages", {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}),
        ("responses", {"reasoning": {"effort": effort}}),
    )


@pytest.mark.parametrize("name", DEGREES)
def test_a_degree_of_effort_is_one_prompt_in_every_wording(name: str) -> None:
    with asking(family_source(name)) as asker:
        for effort, written in DEGREES[name].items():
            asker.engine.prompts.clear()
            for protocol, fields in with_effort(effort):
                asker.engine.say("Done.")
                asker.ask(protocol, False, **fields)
            assert all(prompt == asker.engine.prompts[0] for prompt in asker.engine.prompts)
            assert written in asker.engine.prompt_text(), effort


@pytest.mark.parametrize(("name", "effort"), [("glm5", "banana"), ("deepseek_v32", "high"), ("glm4", "low")])
def test_a_degree_that_nobody_knows_is_as_if_unsaid(name: str, effort: str) -> None:
    with asking(family_source(name)) as asker:
        switched_on: tuple[Protocol, dict[str, Any]] = ("chat", {"thinking": {"type": "enabled"}})
        for protocol, fields in (switched_on, *with_effort(effort)):
            asker.engine.say("Done.")
            asker.ask(protocol, False, **fields)
        assert all(prompt == asker.engine.prompts[0] for prompt in asker.engine.prompts)


def test_thinking_that_is_off_has_no_degree() -> None:
    """A prompt of GLM-5 says its degree first: switched off, it must be the same in every wording."""
    with asking(family_source("glm5")) as asker:
        off = {"thinking": {"type": "disabled"}}
        switches: tuple[tuple[Protocol, dict[str, Any]], ...] = (("chat", off), ("messages", off))
        for protocol, fields in (*switches, *with_effort("none")):
            asker.engine.say("Done.")
            asker.ask(protocol, False, **fields)
        assert all(prompt == asker.engine.prompts[0] for prompt in asker.engine.prompts)


def test_the_degree_counts_where_tokens_are_counted() -> None:
    """gpt-oss has the degree in its prompt, and one word for it is longer than the other."""
    with asking(family_source("harmony")) as asker:
        for effort in ("low", "medium"):
            _, _, (_, messages), (_, responses) = with_effort(effort)
            asker.engine.say("Done.")
            asker.ask("messages", False, tools=(), **messages)
            length = len(asker.engine.prompts[-1])
            assert asker.count(QUESTION, **messages) == asker.count_input(QUESTION, **responses) == length
