"""Every family's template: all that was said is in the prompt, edges stand at the words, replies read back.

Templates that ship with a checkpoint are stood in for by fixtures of the same shape; `transformers` renders
them as the oracle. The prompts of gpt-oss are held against recordings of openai-harmony.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from ftagent.conversation import BoundaryKind, Conversation, Message, Text
from ftagent.engine.prompt.canonical import Dialect
from ftagent.engine.prompt.form_registry import FORMS, ReplyForm, detect_form
from ftagent.engine.prompt.template import ChatTemplate, RenderedPrompt
from tests.engine.prompt import speech, vocabularies
from tests.engine.prompt.speech import assistant, call, result, system, user

FAMILIES: dict[str, ReplyForm] = {
    "harmony": "harmony",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v41",
    "glm4": "glm4",
    "glm5": "glm5",
    "minimax": "minimax_m2",
    "llama3": "llama3",
    "mistral": "mistral",
}
KEEPS_THINKING = {"deepseek_v4", "deepseek_v41"}  # with tools, from beginning to end
NO_THINKING = {"deepseek_v3", "deepseek_v31", "llama3", "mistral"}  # never shown again
every = pytest.mark.parametrize("name", FAMILIES)
TALK = [
    system("SYSTEM words"),
    user("FIRST question"),
    assistant("ANSWER one."),
    user("SECOND question"),
    assistant(
        "LOOKING.",
        call("find", {"q": "NEEDLE", "limit": 2}, "a"),
        call("ping", {}, "b"),
        call("find", {"q": "HAYSTACK", "limit": 3}, "c"),
        thinking="THOUGHT about it",
    ),
    result("RESULT 1", "a"),
    result("RESULT 2", "b"),
    result("RESULT 3", "c"),
]
oracle: Any = chat_template_utils.render_jinja_template


@functools.cache
def template(name: str) -> ChatTemplate:
    return vocabularies.family_template(name)


def render(name: str, *args: Any, **kwargs: Any) -> RenderedPrompt:
    return template(name).render(speech.conversation(*args, **kwargs))


@every
def test_the_form_is_told_from_the_template(name: str) -> None:
    assert detect_form(vocabularies.family_source(name)) == FAMILIES[name]


def test_every_form_has_a_template_here() -> None:
    assert set(FAMILIES.values()) == set(FORMS) - {"plain", "qwen3", "qwen3_5"}


@every
def test_the_form_is_proved_by_reading_a_call_back(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert template(name).form() == FAMILIES[name]
    assert not caplog.records


def test_a_form_that_does_not_read_the_calls_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    other = vocabularies.family_source("glm4").replace('{{- "\\n<tool_call>" ~', '{{- "\\n<called>" ~')
    assert ChatTemplate(other, vocabularies.family()).form() == "plain"
    assert ["are not read" in record.getMessage() for record in caplog.records] == [True]


def test_a_family_tells_the_form_where_the_template_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert detect_form("{{ messages }}", "gpt_oss") == "harmony"
    assert detect_form("{{ messages }}", "deepseek_v4") == "deepseek_v4"
    assert detect_form("<tool_call> <function=", "gpt_oss") == "qwen3_5"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert detect_form("{{ messages }}", "mixtral") == "plain"
    assert [record.getMessage() for record in caplog.records] == [
        "the chat template of this mixtral model teaches no form of tool calls that is known here: "
        "replies are plain text"
    ]


@every
def test_all_that_was_said_is_in_the_prompt(name: str) -> None:
    text = render(name, TALK, speech.TOOLS).text
    said = ["FIRST question", "ANSWER one.", "LOOKING.", "NEEDLE", "HAYSTACK"]
    said += ["RESULT 1", "RESULT 2", "RESULT 3"]
    if name not in NO_THINKING:
        said.insert(2, "THOUGHT about it")
    for words in [*said, "SYSTEM words"]:
        assert text.count(words) == 1, words
    order = sorted(said, key=text.index)
    assert order.index("LOOKING.") < order.index("NEEDLE") < order.index("RESULT 1")
    assert [
        text.count(f'"{tool["function"]["name"]}"') > 0 or tool["function"]["name"] in text
        for tool in speech.TOOLS
    ]
    assert text.count("find") >= 3  # offered, and called twice


@every
def test_a_late_instruction_stays_where_it_is(name: str) -> None:
    talk = [*TALK[:4], assistant("YES."), system("LATE words"), user("THIRD question")]
    text = render(name, talk).text
    places = [text.index(words) for words in ("SECOND", "YES.", "LATE words", "THIRD")]
    assert places == sorted(places)
    assert text.count("LATE words") == 1
    more = render(name, [*talk, assistant("OK."), user("FOURTH")]).text
    assert more.startswith(text[: text.index("LATE words")])


@every
def test_edges_stand_at_the_words(name: str) -> None:
    prompt = render(name, TALK, speech.TOOLS)
    tokenizer = vocabularies.family()

    def text_at(kind: BoundaryKind, message: int) -> list[tuple[str, str]]:
        found = [edge.position for edge in prompt.boundaries if (edge.kind, edge.message) == (kind, message)]
        return [
            (tokenizer.decode(prompt.token_ids[:place]), tokenizer.decode(prompt.token_ids[place:]))
            for place in found
        ]

    def begins(kind: BoundaryKind, message: int, *words: str) -> None:
        places = text_at(kind, message)
        assert len(places) == len(words), (kind, message)
        for (_, after), expected in zip(places, words, strict=True):
            assert expected in after[: len(expected) + 4], (kind, message, after[:20])

    begins("user", 1, "FIRST")
    begins("user", 3, "SECOND")
    begins("tool_call", 4, "find", "ping", "find")
    for message, words in ((5, "RESULT 1"), (6, "RESULT 2"), (7, "RESULT 3")):
        begins("tool_result", message, words)
    ((before, _),) = text_at("system_end", 0)
    assert before.rstrip().endswith("SYSTEM words") or "SYSTEM words"[:-4] in before
    if name != "mistral":  # its tools stand before the newest question
        assert len(text_at("tools_end", -1)) == 1
    for message in (2, 4):
        for before, after in text_at("assistant_end", message):
            assert "ANSWER one." in before
            assert not after.startswith(("one", ".", "}", '"', "</"))
    assert text_at("assistant_end", 2)
    assert text_at("assistant_end", 4) or name == "mistral"  # whose end token this vocabulary lacks
    if name not in NO_THINKING:
        thought = "THOUGHT about it" if name != "harmony" else "THOUGHT about it\n\nLOOKING."
        assert text_at("thinking_end", 4)[0][0].endswith(thought)
    assert text_at("thinking_start", len(TALK))


@every
def test_words_never_become_markup(name: str) -> None:
    tokenizer = vocabularies.family()
    evil = " ".join(vocabularies.FAMILY_MARKUP)
    talk = [
        system(evil),
        user(evil),
        assistant(evil, call("find", {"q": evil}, "a"), thinking=evil),
        result(evil, "a"),
    ]
    good = [
        system("x"),
        user("x"),
        assistant("x", call("find", {"q": "x"}, "a"), thinking="x"),
        result("x", "a"),
    ]
    bad, plain = render(name, talk, speech.TOOLS), render(name, good, speech.TOOLS)
    controls = [[token for token in prompt.token_ids if tokenizer.is_added(token)] for prompt in (bad, plain)]
    assert controls[0] == controls[1]
    assert tokenizer.decode(bad.token_ids) == bad.text


@every
def test_prompts_of_a_conversation_begin_with_the_same_ids(name: str) -> None:
    talk: list[dict[str, Any]] = [system("S"), user("first?")]
    for turn in range(3):
        one = render(name, talk, speech.TOOLS, False)
        later = [*talk, assistant(f"Answer {turn}."), user(f"more {turn}?")]
        two = render(name, later, speech.TOOLS, False)
        pairs = zip(one.token_ids, two.token_ids, strict=False)
        common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        shared = len(vocabularies.family().decode(one.token_ids[:common]))
        if name != "mistral":  # moves its tools along
            assert shared >= one.text.rindex("?"), turn
        talk = later


@pytest.mark.parametrize("thinking", [None, True, False])
@every
def test_the_thinking_switch(name: str, thinking: bool | None) -> None:
    prompt = render(name, [user("Hi")], thinking=thinking)
    opened = {
        "deepseek_v31": thinking is True,
        "minimax": True,  # knows no switch
        **dict.fromkeys(("deepseek_v32", "deepseek_v4", "deepseek_v41", "glm5"), thinking is not False),
    }
    assert prompt.thinking_open is opened.get(name, False)


@pytest.mark.parametrize(
    ("name", "effort", "thinking", "expected"),
    [
        ("harmony", None, None, "Reasoning: medium"),
        ("harmony", "minimal", None, "Reasoning: low"),
        ("harmony", "high", True, "Reasoning: high"),
        ("harmony", "xhigh", None, "Reasoning: high"),
        ("harmony", "high", False, "Reasoning: low"),
        ("harmony", "banana", None, "Reasoning: medium"),
        ("glm5", None, None, "Reasoning Effort: Max"),
        ("glm5", "minimal", None, "Reasoning Effort: Low"),
        ("glm5", "high", None, "Reasoning Effort: High"),
        ("deepseek_v4", "max", None, "Reasoning Effort: Absolute maximum"),
        ("deepseek_v41", None, None, "Reasoning Effort: 50 "),
        ("deepseek_v41", "low", None, "Reasoning Effort: 25 "),
        ("deepseek_v41", "max", None, "Reasoning Effort: 100 "),
    ],
)
def test_effort_in_the_words_of_each_family(
    name: str, effort: str | None, thinking: bool | None, expected: str
) -> None:
    asked = Conversation((Message("user", (Text("Hi"),)),), thinking=thinking, effort=effort)
    assert expected in template(name).render(asked).text


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v41"])
def test_no_effort_where_nothing_is_thought(name: str) -> None:
    asked = Conversation((Message("user", (Text("Hi"),)),), thinking=False, effort="max")
    assert "Effort" not in template(name).render(asked).text


# ---- what the templates accept, and what has to be said in another way


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("harmony", Dialect(late_system=False, thinking_with_text=False, parallel_calls=False)),
        (
            "deepseek_v3",
            Dialect(late_system=False, argument_mapping=False, empty_text=False, text_with_calls=False),
        ),
        ("deepseek_v31", Dialect(late_system=False, argument_mapping=False)),
        ("deepseek_v32", Dialect(late_system=False, consecutive_users=False)),
        ("deepseek_v4", Dialect(late_system=False)),
        ("deepseek_v41", Dialect()),
        ("glm4", Dialect()),
        ("glm5", Dialect()),
        ("minimax", Dialect(late_system=False)),
        ("llama3", Dialect(text_with_calls=False, parallel_calls=False)),
        (
            "mistral",
            Dialect(late_system=False, consecutive_users=False, text_with_calls=False, call_id="{:09d}"),
        ),
    ],
)
def test_what_a_template_accepts_is_found_by_trying(name: str, expected: Dialect) -> None:
    assert template(name)._writer.dialect == expected


def test_parallel_calls_are_told_one_by_one_where_a_message_holds_one() -> None:
    text = render("llama3", TALK, speech.TOOLS).text
    told = re.findall(r"LOOKING|NEEDLE|ping\", \"parameters|HAYSTACK|RESULT \d", text[text.index("SECOND") :])
    assert told == ["LOOKING", "NEEDLE", "RESULT 1", 'ping", "parameters', "RESULT 2", "HAYSTACK", "RESULT 3"]


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41", "glm4", "glm5", "minimax"])
def test_text_and_ids_equal_transformers(name: str, thinking: bool | None) -> None:
    switch = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
    for end, tools in itertools.product(range(2, len(TALK) + 1), ((), speech.TOOLS)):
        texts, _ = oracle(
            conversations=[TALK[:end]],
            tools=list(tools) or None,
            chat_template=vocabularies.family_source(name),
            add_generation_prompt=True,
            bos_token="<|begin_of_text|>",
            **switch,
        )
        prompt = render(name, TALK[:end], tools, thinking)
        assert prompt.text == texts[0]
        assert vocabularies.family().decode(prompt.token_ids) == texts[0]
