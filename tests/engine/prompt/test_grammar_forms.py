"""Constrained calls in every form: what each family writes is allowed, and nothing that is no valid call."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ftagent.conversation import Conversation
from ftagent.engine.prompt.forms import FormTable
from ftagent.engine.prompt.grammar import Constraint
from tests.engine.prompt.call_forms import SPEECHES, Speech
from tests.engine.prompt.tiny import ENDS, allowed, asking, constrained, follow, of_form

each = pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.form)
both = pytest.mark.parametrize("native", [True, False], ids=["tokens", "text"])


def starting(
    speech: Speech,
    conversation: Conversation,
    native: bool = True,
    thinking_open: bool = False,
    **options: object,
) -> Constraint:
    vocabulary = of_form(speech.form, native)
    return constrained(
        conversation,
        speech.form,
        thinking_open=thinking_open,
        vocabulary=vocabulary,
        **options,  # type: ignore[arg-type]
    )


def rest(constraint: Constraint, speech: Speech, text: str, native: bool = True) -> str:
    return follow(constraint, text, vocabulary=of_form(speech.form, native))


def written(speech: Speech, text: str) -> str:
    """Without what ends the turn, which is one of the end tokens here, and what only one model adds."""
    return text.removesuffix("<|call|>").replace(', "id": "Ab3dE6gH9"', "")


@both
@each
def test_required_allows_what_the_family_writes_and_then_only_the_end(speech: Speech, native: bool) -> None:
    constraint = starting(speech, asking(parallel=False), native)
    text = written(speech, speech.call("find", q="a b", limit=3))
    assert rest(constraint, speech, text, native) == ""
    assert allowed(constraint, vocabulary=of_form(speech.form, native)) == ENDS


@both
@each
def test_every_type_of_value(speech: Speech, native: bool) -> None:
    values = {"seconds": 90, "loop": True, "label": "a\n  <b> 1"}
    text = written(speech, speech.call("set_timer", **values))
    assert rest(starting(speech, asking(), native), speech, text, native) == ""
    ping = written(speech, speech.call("ping")).replace("\n\n", "\n")
    assert rest(starting(speech, asking(), native), speech, ping, native) == ""


@both
@each
def test_parallel_calls(speech: Speech, native: bool) -> None:
    made = [("find", {"q": "a", "limit": 1}), ("ping", {}), ("find", {"q": "b", "limit": 2})][::2]
    constraint = starting(speech, asking(), native)
    if not speech.parallel or speech.form == "llama3":
        assert rest(constraint, speech, written(speech, speech.calls(made[:1])), native) == ""
        assert allowed(constraint, vocabulary=of_form(speech.form, native)) == ENDS
        return
    assert rest(constraint, speech, written(speech, speech.calls(made)), native) == ""
    single = starting(speech, asking(parallel=False), native)
    assert rest(single, speech, written(speech, speech.calls(made)), native) != ""


@each
def test_no_other_tool_no_missing_parameter_no_wrong_type(speech: Speech) -> None:
    named = asking("named", name="find")
    assert rest(starting(speech, named), speech, written(speech, speech.call("find", q="a", limit=1))) == ""
    for call in (
        speech.call("write_file", path="a", content="b"),
        speech.call("find", q="a"),
        speech.call("find", q="a", limit="three"),
        speech.call("find", q="a", limit=1, more="x"),
    ):
        assert rest(starting(speech, named), speech, written(speech, call)) != ""
    assert rest(starting(speech, asking()), speech, "Hello") == "Hello"


@each
def test_thinking_comes_first_and_is_free(speech: Speech) -> None:
    thought = speech.thinks("hmm, <function=x> is\n\nfine.")
    call = written(speech, speech.call("find", q="a", limit=1))
    may_think = replace(asking(), thinking=None)
    if speech.form != "llama3":
        assert rest(starting(speech, may_think), speech, thought + call) == ""
    opened = thought[thought.index("hmm") :]
    if speech.form != "llama3":
        assert rest(starting(speech, asking(), thinking_open=True), speech, opened + call) == ""


SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@each
def test_structured_content(speech: Speech) -> None:
    begins = "<|channel|>final<|message|>" if speech.form == "harmony" else ""
    constraint = starting(speech, Conversation(()), json_schema=SCHEMA)
    assert rest(constraint, speech, begins + '{"n": 5}') == ""
    assert rest(starting(speech, Conversation(()), json_schema=SCHEMA), speech, begins + '{"n": "5"') == '"5"'


@each
def test_none_bars_calls(speech: Speech) -> None:
    if speech.form == "llama3":
        pytest.skip("a call without a marker cannot be told from an answer")
    constraint = starting(speech, asking("none"))
    if speech.form == "harmony":
        assert rest(constraint, speech, written(speech, speech.call("find", q="a", limit=1))) != ""
    else:
        first = min(speech.markers, key=f"{speech.call('ping')}{speech.markers}".index)
        assert first not in (allowed(constraint, vocabulary=of_form(speech.form)) or {first})
    words = "<|channel|>final<|message|>Fine {} <b>." if speech.form == "harmony" else "Fine {} <b>."
    assert rest(starting(speech, asking("none")), speech, words) == ""


@both
@each
def test_auto_is_free_until_a_call(speech: Speech, native: bool) -> None:
    if speech.form == "llama3":
        pytest.skip("a call without a marker cannot be told from an answer")
    words = speech.words("Let me look.")
    call = written(speech, speech.call("find", q="a b", limit=3))
    constraint = starting(speech, asking("auto"), native, auto=True)
    assert rest(constraint, speech, words + call, native) == ""
    constraint = starting(speech, asking("auto"), native, auto=True)
    assert rest(constraint, speech, words + call.replace("find", "fond"), native).startswith("ond")


def test_a_form_without_calls_enforces_none() -> None:
    assert FormTable({}).spelling is None
