"""The facts file and the requests made of tables: nothing contradicts itself, nothing has to be guessed."""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args

import pytest

from ftagent.demo.training import facts, tools
from ftagent.demo.training.tasks.create import create, create_two
from ftagent.demo.training.tasks.edit import edit
from ftagent.demo.training.tasks.run import run
from ftagent.demo.training.tools import Toolbox
from ftagent.demo.training.ways import ways

BOX = Toolbox(
    {"write": "Write", "read": "Read", "run": "Bash", "edit": "Edit", "list": "LS"},
    {
        "path": "path",
        "content": "content",
        "command": "command",
        "old": "old",
        "new": "new",
        "folder": "folder",
    },
)


def test_ways_split_at_bars_and_join_lines() -> None:
    assert ways("| a  b\n    c | d |") == ("", "a b c", "d", "")


@pytest.mark.parametrize("topic", get_args(facts.Topic))
def test_every_fact_has_answers_and_ways_to_ask(topic: facts.Topic) -> None:
    found = facts.about(topic)
    assert found
    for fact in found:
        assert all(fact.answers)
        assert fact.answers
        assert "".join(fact.questions) or topic == "unknown"


def test_no_question_has_two_answers() -> None:
    topics: tuple[facts.Topic, ...] = ("what", "use", "ideas", "small talk")
    counts = Counter(
        question for topic in topics for fact in facts.about(topic) for question in fact.questions
    )
    assert [question for question, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("kind", [create, create_two, run])
def test_what_a_call_needs_stands_in_the_request(kind: object) -> None:
    assert callable(kind)
    for seed in range(200):
        exchange = kind(random.Random(seed), BOX)
        for step in exchange.steps:
            for value in step.call.arguments.values():
                assert value in exchange.ask, (seed, value)


def test_an_edit_names_what_it_replaces() -> None:
    edits = 0
    for seed in range(200):
        exchange = edit(random.Random(seed), BOX)
        if exchange.steps[-1].call.name == "Edit":
            arguments = exchange.steps[-1].call.arguments
            assert all(value in exchange.ask for value in arguments.values())
            assert arguments["old"] in exchange.steps[0].result, "the file that was read holds it"
            edits += 1
    assert edits > 100


def test_a_tool_list_spells_what_its_toolbox_says() -> None:
    for seed in range(200):
        specs, box = tools.toolbox(random.Random(seed), 0.5, 2)
        names = {spec.name for spec in specs}
        assert set(box.names.values()) <= names
        assert box.has("write") or box.has("run")
