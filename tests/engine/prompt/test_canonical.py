"""Conversations that say the same thing render alike, whatever the client's spelling."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftagent.conversation import (
    Conversation,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from ftagent.engine.prompt.template import ChatTemplate, RenderedPrompt
from tests.engine.prompt import speech, vocabularies
from tests.engine.prompt.speech import assistant, call, result, system, user

TEMPLATES = ("qwen3_like", "qwen3_5_like", "demo")


def render(name: str, *args: Any, **kwargs: Any) -> RenderedPrompt:
    return vocabularies.template(name).render(speech.conversation(*args, **kwargs))


# R20: call ids
def test_repeated_call_id_renders_both_pairs_in_order() -> None:
    for name in TEMPLATES:
        messages = [
            user("go"),
            assistant("", call("find", {"q": "ONE"}, "same")),
            result("result one", "same"),
            assistant("", call("find", {"q": "TWO"}, "same")),
            result("result two", "same"),
        ]
        text = render(name, messages).text
        places = [text.index(word) for word in ("ONE", "result one", "TWO", "result two")]
        assert places == sorted(places)
        fresh = json.loads(json.dumps(messages).replace('"same"', '"other"'))
        assert render(name, fresh).token_ids == render(name, messages).token_ids


def test_fifty_tool_turns_are_all_rendered() -> None:
    messages = [user("go")]
    for number in range(50):
        messages.append(assistant("", call("find", {"q": f"q{number}."}, f"id{number}")))
        messages.append(result(f"r{number}.", f"id{number}"))
    for name in TEMPLATES:
        text = render(name, messages).text
        places = [text.index(f"{letter}{number}.") for number in range(50) for letter in "qr"]
        assert places == sorted(places)


def test_ids_seen_by_the_template_are_unique_and_matched() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}"
        "{{ '(' + m.tool_call_id + ':' + m.name + ':' + m.content + ')' if m.role == 'tool' }}{% endfor %}"
    )
    template = ChatTemplate(source + "{{ messages[0].content }}", vocabularies.small())
    messages = [
        user(""),
        assistant("", call("find", {}, "a"), call("ping", {}, "b")),
        result("rb", "b"),
        result("ra", "a"),
        assistant("", call("ping", {}, "a")),
        result("ra2", "unknown"),
    ]
    conversation = speech.conversation(messages)
    both = Message("tool", (*conversation.messages[2].blocks, *conversation.messages[3].blocks))
    joined = replace(conversation, messages=(*conversation.messages[:2], both, *conversation.messages[4:]))
    expected = "[call_0][call_1](call_0:find:ra)(call_1:ping:rb)[call_2](call_2:ping:ra2)"
    assert template.render(joined).text == expected


# R21: what a client echoes
def test_reordered_and_reparsed_arguments_render_alike() -> None:
    first = assistant("", call("find", {"q": "a b", "limit": 3}))
    second = assistant("", call("find", {"limit": 3, "q": "a b"}))
    for name in TEMPLATES:
        one = render(name, [user("u"), first, result("r")], speech.TOOLS, False)
        two = render(name, [user("u"), second, result("r")], speech.TOOLS, False)
        assert one == two
        raw = ToolCall("x", "find", {}, raw='{"limit":3,"q":"a b"}')
        conversation = speech.conversation([user("u"), first, result("r")], speech.TOOLS, False)
        messages = list(conversation.messages)
        messages[1] = Message("assistant", (raw,))
        echoed = replace(conversation, messages=tuple(messages))
        assert vocabularies.template(name).render(echoed) == one


def test_arguments_that_are_not_an_object_are_shown() -> None:
    conversation = Conversation(
        (
            Message("user", (Text("u"),)),
            Message(
                "assistant", (ToolCall("x", "find", {}, raw="{broken"), ToolCall("y", "find", {}, raw="[1]"))
            ),
            Message("tool", (ToolResult("x", (Text("bad"),)), ToolResult("y", (Text("bad"),)))),
        )
    )
    for name in TEMPLATES:
        text = vocabularies.template(name).render(conversation).text
        assert "{broken" in text
        assert "[1]" in text


# R22: volatile lines
def test_billing_line_is_left_out_of_system_text() -> None:
    def prompt(*texts: str, said: str = "hi") -> RenderedPrompt:
        blocks = tuple(Text(text) for text in texts)
        messages = (Message("system", blocks), Message("user", (Text(said),)))
        return vocabularies.template("qwen3_5_like").render(Conversation(messages))

    line = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli; cch=00000;"
    one, two = line.format("a1b"), line.format("fff")
    expected = prompt("You are a coder.\nBe brief.")
    assert prompt(one, "You are a coder.\nBe brief.") == expected
    assert prompt(two + "\nYou are a coder.\nBe brief.") == expected
    assert prompt(one, "You are a coder.", "Be brief.") == expected
    assert prompt(two, "You are a coder.", "\nBe brief.") == expected
    assert one in prompt("You are a coder.", said=one).text
    assert prompt("You are a coder.", said=one).token_ids != prompt("You are a coder.", said=two).token_ids
    assert f"See {one}" in prompt(f"See {one}").text


# R23: instructions in mid-conversation
LATE = [system("AAA"), user("one"), assistant("two"), system("BBB"), user("three")]


@pytest.mark.parametrize("name", TEMPLATES)
def test_late_system_message_stays_where_it_stands(name: str) -> None:
    rendered = render(name, LATE, thinking=False)
    places = [rendered.text.index(word) for word in ("AAA", "one", "two", "BBB", "three")]
    assert places == sorted(places)
    assert rendered.text.count("BBB") == 1
    assert rendered.text.count("<|im_start|>system") == (1 if name == "qwen3_5_like" else 2)
    later = render(name, [*LATE, assistant("four"), user("five")], thinking=False)
    shared = rendered.text[: rendered.text.rindex("<|im_start|>assistant")]
    assert later.text.startswith(shared)
    shared_ids = vocabularies.small().encode(shared)
    assert later.token_ids[: len(shared_ids)] == rendered.token_ids[: len(shared_ids)] == tuple(shared_ids)


def test_template_that_would_move_a_late_system_message() -> None:
    source = (
        "{% for m in messages if m.role == 'system' %}[{{ m.content }}]{% endfor %}"
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    text = ChatTemplate(source, vocabularies.small()).render(speech.conversation(LATE)).text
    places = [text.index(word) for word in ("AAA", "one", "two", "BBB", "three")]
    assert places == sorted(places)


def test_template_without_system_role_and_with_strict_alternation() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if (m.role == 'user') != (loop.index0 is even) %}{{ raise_exception('alternate') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    text = ChatTemplate(source, vocabularies.small()).render(speech.conversation(LATE)).text
    places = [text.index(word) for word in ("AAA", "one", "two", "BBB", "three")]
    assert places == sorted(places)
    assert text.count("<user>") == 2


# R24: pictures
def test_picture_in_a_tool_result() -> None:
    picture = Image("image/png", "aGVsbG8=")
    conversation = Conversation(
        (
            Message("user", (Text("look"),)),
            Message("assistant", (ToolCall("a", "find", {}),)),
            Message("tool", (ToolResult("a", (Text("the text"), picture)),)),
        )
    )
    for name in TEMPLATES:
        rendered = vocabularies.template(name).render(conversation)
        assert rendered.text.count("[image: this model reads text only]") == 1
        assert "the text" in rendered.text
        assert len(rendered.notes) == 1
        assert "aGVsbG8" not in rendered.text


def test_tool_choice_leaves_the_prompt_alone() -> None:
    conversation = speech.conversation([user("u")], speech.TOOLS)
    template = vocabularies.template("qwen3_5_like")
    quiet = replace(conversation, tool_choice=ToolChoice("none"))
    assert template.render(quiet) == template.render(conversation)


def test_several_thinking_blocks_and_signatures() -> None:
    thoughts = (Thinking("one", "c2ln"), Thinking("two"))
    messages = (Message("user", (Text("u"),)), Message("assistant", (*thoughts, ToolCall("a", "ping", {}))))
    conversation = Conversation((*messages, Message("tool", (ToolResult("a", ()),))))
    text = vocabularies.template("qwen3_5_like").render(conversation).text
    assert "one\n\ntwo" in text
    assert "c2ln" not in text
