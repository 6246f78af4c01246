"""What a constraint allows and what it forbids."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ftagent.conversation import Conversation, ToolSpec
from ftagent.engine.prompt import matchers
from ftagent.engine.prompt.grammar import constraint_for
from ftagent.engine.prompt.parsers import ReplyForm
from ftagent.errors import BadRequest
from tests.engine.prompt.replies import TOOLS
from tests.engine.prompt.tiny import ENDS, FIND, FIND_JSON, PING, allowed, asking, constrained, follow, tiny


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("form", "text"), [("qwen3_5", FIND), ("qwen3", FIND_JSON)])
def test_required_allows_a_call_and_then_only_the_end(form: ReplyForm, text: str, native: bool) -> None:
    constraint = constrained(asking(parallel=False), form, native=native)
    assert follow(constraint, text, native) == ""
    assert constraint.finished
    assert allowed(constraint, native) == ENDS
    constraint.advance(tiny(native).eos_ids[0])
    assert constraint.finished


def test_parallel_calls_may_follow() -> None:
    constraint = constrained(asking())
    assert follow(constraint, FIND) == ""
    assert not constraint.finished
    assert allowed(constraint) == ENDS | {"\n"}
    assert follow(constraint, f"\n{PING}\n{PING}") == ""


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Hello", "Hello"),
        ("<|im_end|>", "<|im_end|>"),
        ("<tool_call>\n<function=fond>", "ond>"),
        ("<tool_call>\n<function=find>\n</function>", "/function>"),
        ("<tool_call>\n<function=find>\n<parameter=x>", "x>"),
        ("<tool_call>\n<function=find>\n<parameter=limit>\nthree", "three"),
        ("<tool_call>\n<function=find>\n<parameter=limit>\n3.5", ".5"),
        ("<tool_call>\n<function=set_timer>\n<parameter=loop>\nmaybe", "maybe"),
        ("<tool_call>\n<function=ping>\n<parameter=x>", "<parameter=x>"),
        (FIND + "\n\n", "\n"),
        (FIND.replace("limit>\n3", "q>\n3"), "q>\n3\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_required_forbids(text: str, refused: str) -> None:
    assert follow(constrained(asking()), text) == refused


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('<tool_call>\n{"name": "fond"', 'ond"'),
        ('<tool_call>\n{"name": "find", "arguments": {}', "}"),
        ('<tool_call>\n{"name": "find", "arguments": {"limit"', 'limit"'),
        ('<tool_call>\n{"name": "find", "arguments": {"q": 3', "3"),
        ('<tool_call>\n{"name": "ping", "arguments": {"q"', '"q"'),
    ],
)
def test_required_forbids_in_json(text: str, refused: str) -> None:
    assert follow(constrained(asking(), "qwen3"), text) == refused


def test_named_allows_one_tool() -> None:
    conversation = asking("named", name="ping")
    assert follow(constrained(conversation), FIND) == FIND[len("<tool_call>\n<function=") :]
    assert follow(constrained(conversation), PING) == ""


def test_parameters_come_in_any_order_and_optional_ones_once() -> None:
    schema = {"properties": {"a": {}, "b": {"type": "boolean"}, "c": {"enum": ["x", 1]}}, "required": ["b"]}
    conversation = asking(tools=[ToolSpec("t", "", schema)])
    values = {"a": "free", "b": "true", "c": "1"}

    def call(names: str) -> str:
        body = "".join(f"<parameter={name}>\n{values[name]}\n</parameter>\n" for name in names)
        return f"<tool_call>\n<function=t>\n{body}</function>\n</tool_call>"

    for good in ("b", "ab", "ba", "cb", "bac", "acb", "cba"):
        assert follow(constrained(conversation), call(good)) == "", good
    for bad in ("", "a", "bb", "aba", "acac"):
        assert follow(constrained(conversation), call(bad)) != "", bad


@pytest.mark.parametrize(
    "value",
    ["", "\n", "two\nlines\n", "a </parameter> b", "</function>", "<parameter=x>", "\n<parameter=x>\n", "</"],
)
def test_string_values_are_free(value: str) -> None:
    text = f"<tool_call>\n<function=write_file>\n<parameter=content>\n{value}\n</parameter>\n"
    assert follow(constrained(asking()), text) == ""


def test_an_empty_string_with_or_without_its_own_line() -> None:
    head, tail = "<tool_call>\n<function=write_file>\n<parameter=path>\n", "</parameter>\n<parameter=content>"
    assert follow(constrained(asking()), f"{head}\n{tail}") == ""
    assert follow(constrained(asking()), f"{head}{tail}") == ""


def test_undeclared_names_only_where_the_schema_says_so() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}
    conversation = asking(tools=[ToolSpec("t", "", schema)])
    head = "<tool_call>\n<function=t>\n"
    assert follow(constrained(conversation), f"{head}<parameter=zeta>\ntrue\n</parameter>\n</function>") == ""
    assert follow(constrained(conversation), f"{head}<parameter=zeta>\n5") == "5"
    assert follow(constrained(conversation), f"{head}<parameter=a>\ntrue") == "true"


def test_thinking_comes_first_and_is_free() -> None:
    for native in (True, False):
        constraint = constrained(asking(), thinking_open=True, native=native)
        assert follow(constraint, "hmm, <function=x> is\n\nfine.\n</think>\n\n" + PING, native) == ""
    constraint = constrained(asking(), thinking_open=True)
    assert follow(constraint, "hmm</think>Hello") == "Hello"
    assert not ENDS & (allowed(constrained(asking(), thinking_open=True)) or ENDS)


def test_the_model_may_open_thinking_unless_it_is_off() -> None:
    text = f"<think>\nhmm\n</think>\n\n{PING}"
    conversation = asking()
    assert follow(constrained(conversation), text) == text
    assert follow(constrained(replace(conversation, thinking=None)), text) == ""


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}},
        "required": ["n", "s"],
        "additionalProperties": False,
    }
)


def test_structured_content() -> None:
    free = Conversation(())
    for form in ("plain", "qwen3_5"):
        constraint = constrained(free, form, json_schema=SCHEMA)
        assert follow(constraint, '{\n  "n": 5,\n  "s": "a"\n}') == ""
        assert constraint.finished
        assert allowed(constraint) == ENDS
    assert follow(constrained(free, json_schema=SCHEMA), '{"n": "5"') == '"5"'
    assert (
        follow(constrained(free, json_schema=SCHEMA, thinking_open=True), 'so\n</think>\n\n{"n":5,"s":"b"}')
        == ""
    )
    spaces = follow(constrained(free, json_schema=SCHEMA), "{" + " " * 100)
    assert len(spaces) > 50  # white space without end is not JSON that anybody waits for


def test_structured_content_or_a_call() -> None:
    conversation = asking("auto")
    assert follow(constrained(conversation, json_schema=SCHEMA), '{"n": 5, "s": "a"}') == ""
    assert follow(constrained(conversation, json_schema=SCHEMA), FIND) == ""
    assert follow(constrained(asking("none"), json_schema=SCHEMA), FIND) == FIND
    assert follow(constrained(conversation, json_schema=SCHEMA), "Hello") == "Hello"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be"),
        ('{"type": "banana"}', "cannot be enforced"),
        ('{"not": {}}', "not"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        constrained(Conversation(()), json_schema=schema)
    assert caught.value.field == "json_schema"


@pytest.mark.parametrize(
    ("form", "conversation", "words"),
    [
        ("qwen3_5", asking(tools=()), "none are offered"),
        ("qwen3_5", asking("named", name="nobody"), "nobody"),
        ("plain", asking(), "knows no tool calls"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(
    form: ReplyForm, conversation: Conversation, words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        constrained(conversation, form)
    assert caught.value.field == "tool_choice"


def test_nothing_to_enforce() -> None:
    assert constraint_for("qwen3_5", asking("auto"), tiny(), False, None, False) is None
    assert constraint_for("qwen3_5", asking("auto", ()), tiny(), False, None, True) is None
    assert constraint_for("plain", asking("auto"), tiny(), False, None, True) is None
    assert constraint_for("qwen3_5", asking("none"), tiny(native=False), False, None, False) is None


def test_none_bars_the_opening_marker() -> None:
    constraint = constrained(asking("none"))
    assert set(tiny().added_tokens) - (allowed(constraint) or set()) == {"<tool_call>"}
    assert follow(constraint, "Fine.<|im_end|>") == ""


# ---- auto


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_free_until_a_call(native: bool) -> None:
    constraint = constrained(asking("auto"), auto=True, native=native)
    for token in tiny(native).tokens("Let me look.\n\n"):
        assert constraint.mask() is None
        constraint.advance(token)
    assert follow(constraint, "<tool_call>\n<function=nobody>", native) == "nobody>"
    constraint = constrained(asking("auto"), auto=True, native=native)
    assert follow(constraint, f"Look: {FIND} and\n{PING}", native) == ""
    assert constraint.mask() is None


def test_auto_with_single_calls_ends_after_one() -> None:
    constraint = constrained(asking("auto", parallel=False), auto=True)
    assert follow(constraint, FIND) == ""
    assert constraint.finished
    assert allowed(constraint) == ENDS


def test_auto_leaves_markers_alone_that_are_only_mentioned() -> None:
    for text in ("The `<tool_call> tag", 'a "<tool_call>"'):
        assert follow(constrained(asking("auto"), auto=True), text) == ""
    thinking = constrained(asking("auto"), auto=True, thinking_open=True)
    assert follow(thinking, "I write <tool_call> then") == ""
    assert follow(thinking, "</think>\n\n<tool_call> no") == " no"


def test_auto_with_a_token_that_reaches_beyond_the_marker() -> None:
    constraint = constrained(asking("auto"), auto=True, native=False)
    ids = [*tiny(False).tokens("<tool_call"), tiny(False).encoding.encode_single_token(">\n")]
    for token in ids:
        constraint.advance(token)
    assert follow(constraint, "<function=p", native=False) == ""
    assert allowed(constraint, native=False) == {"i"}


def test_patterns_and_lengths_of_strings() -> None:
    properties = {
        "date": {"type": "string", "pattern": "^\\d{4}-\\d\\d$"},
        "path": {"type": "string", "pattern": "a\\/b/c"},
        "id": {"type": "string", "minLength": 2, "maxLength": 3},
    }
    conversation = asking(tools=[ToolSpec("t", "", {"properties": properties})])
    closed = "\n</parameter>\n"
    for name, value, refused in [
        ("date", "2026-01", ""),
        ("date", "2026-1", closed),
        ("path", "xx a/b/c yy", ""),
        ("path", "a/b", ">\n"),
        ("id", "abc", ""),
        ("id", "a", "/parameter>\n"),  # a newline and "<" are characters like others
        ("id", "abcd", "d" + closed),
    ]:
        head = f"<tool_call>\n<function=t>\n<parameter={name}>\n"
        assert follow(constrained(conversation), head + value + closed) == refused, (name, value)


AGENT_TOOLS = (
    ToolSpec(
        "Report",
        "Report findings. " * 50,
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "level": {"type": "string", "enum": ["low", "high"], "description": "How sure. " * 30},
                "findings": {
                    "type": "array",
                    "maxItems": 32,
                    "items": {
                        "type": "object",
                        "properties": {
                            "file": {"type": "string", "maxLength": 60},
                            "line": {"type": "integer", "minimum": -9007199254740991},
                            "severity": {"enum": ["important", "nit"]},
                        },
                        "required": ["file"],
                        "additionalProperties": False,
                    },
                },
                "script": {"type": "string", "maxLength": 524288},
                "args": {"description": "Anything."},
                "offset": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
                "limit": {"type": "number", "default": 5},
            },
            "required": ["level", "findings"],
            "additionalProperties": False,
        },
    ),
    *TOOLS,
)


@pytest.mark.parametrize("form", ["qwen3", "qwen3_5"])
def test_schemas_as_agents_send_them_are_enforced_exactly(
    form: ReplyForm, caplog: pytest.LogCaptureFixture
) -> None:
    constraint = constrained(asking(tools=AGENT_TOOLS), form)
    assert caplog.records == []
    finding = '[{"file": "a.py", "line": 3, "severity": "nit"}]'
    if form == "qwen3_5":
        text = (
            "<tool_call>\n<function=Report>\n<parameter=findings>\n"
            f"{finding}\n</parameter>\n<parameter=level>\nhigh\n</parameter>\n</function>\n</tool_call>"
        )
    else:
        text = (
            '<tool_call>\n{"name": "Report", "arguments": {"level": "high", "findings": '
            f"{finding}}}}}\n</tool_call>"
        )
    assert follow(constraint, text) == ""


# ---- loose schemas, cache, masks


def test_a_schema_that_cannot_be_compiled_is_enforced_loosely(caplog: pytest.LogCaptureFixture) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    worse = {"type": "object", "properties": {"b": {"type": "object", "allOf": "?"}}, "required": ["b"]}
    for form, head in (("qwen3_5", "<tool_call>\n<function="), ("qwen3", '<tool_call>\n{"name": "')):
        caplog.clear()
        conversation = asking(tools=[ToolSpec(f"odd_{form}", "", odd), ToolSpec("worse", "", worse), *TOOLS])
        with caplog.at_level(logging.WARNING):
            constraint = constrained(conversation, form)  # type: ignore[arg-type]
        warnings = [record.getMessage() for record in caplog.records]
        assert any(f"odd_{form}" in warning for warning in warnings)
        assert not any("find" in warning for warning in warnings)
        assert follow(constraint, head) == ""
        assert allowed(constraint) == {"o", "w", "f", "p", "s"}


def test_rules_about_all_parameters_together_are_named(caplog: pytest.LogCaptureFixture) -> None:
    constrained(asking(tools=[ToolSpec("few", "", {"properties": {"a": {}}, "minProperties": 1})]))
    assert [record.getMessage() for record in caplog.records] == [
        "schema of tool few: not enforced at its top level: minProperties"
    ]


def test_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_once = matchers.Compiler.compile

    def counting(self: matchers.Compiler, grammar: str) -> Any:
        compiled.append(grammar)
        return compile_once(self, grammar)

    monkeypatch.setattr(matchers.Compiler, "compile", counting)
    conversation = asking(tools=[ToolSpec("only_here")])
    first, second = constrained(conversation), constrained(conversation)
    assert len(compiled) == 1
    assert follow(first, "<tool_call>\n<function=only_here>\n</function>\n</tool_call>") == ""
    assert allowed(second) == {"<tool_call>"}


def test_a_token_that_is_not_allowed_frees_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    constraint = constrained(asking())
    constraint.advance(0)
    assert constraint.mask() is None
    assert not constraint.finished
    assert len(caplog.records) == 1


@pytest.mark.parametrize("padding", [0, 7])
def test_apply_masks_in_place(padding: int) -> None:
    size = tiny().encoding.n_vocab
    mask = constrained(asking()).mask()
    assert mask is not None
    row = np.zeros(size + padding, dtype=np.float32)
    constrained(asking()).apply(row)
    assert np.array_equal(np.isfinite(row[:size]), mask)
    assert not np.isfinite(row[size:]).any()
    tensor = torch.zeros(size + padding)
    constrained(asking()).apply(tensor)
    assert np.array_equal(tensor.numpy(), row)
    free = constrained(asking("auto"), auto=True)
    free.apply(row)
    assert np.array_equal(np.isfinite(row[:size]), mask)
