"""Boundaries: at the right tokens, for any template, and absent rather than wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import BoundaryKind
from ftagent.engine.prompt.boundaries import Marker, common_prefix, encode_prompt, unmark
from ftagent.engine.prompt.template import ChatTemplate, RenderedPrompt
from tests.engine.prompt import speech, vocabularies
from tests.engine.prompt.speech import assistant, call, result, system, user

TEMPLATES = ("qwen3_like", "qwen3_5_like", "demo")
TALK = [
    system("SYSTEM words"),
    user("FIRST question"),
    assistant("ANSWER one."),
    user("SECOND question"),
    assistant("LOOKING.", call("find", {"q": "NEEDLE", "limit": 2}), thinking="THOUGHT about it"),
    result("RESULT here"),
]


def render(name: str, *args: Any, **kwargs: Any) -> RenderedPrompt:
    return vocabularies.template(name).render(speech.conversation(*args, **kwargs))


def places(prompt: RenderedPrompt, kind: BoundaryKind) -> dict[int, int]:
    """Message -> position of its boundary of that kind."""
    return {edge.message: edge.position for edge in prompt.boundaries if edge.kind == kind}


def text_before(prompt: RenderedPrompt, position: int) -> str:
    return vocabularies.small().decode(prompt.token_ids[:position])


def is_last_token_before(prompt: RenderedPrompt, position: int, offset: int) -> bool:
    """Whether `position` counts exactly the tokens that end at or before character `offset`."""
    whole = len(text_before(prompt, position)) <= offset
    return whole and (position == len(prompt.token_ids) or len(text_before(prompt, position + 1)) > offset)


@pytest.mark.parametrize("name", TEMPLATES)
def test_edges_stand_at_the_words(name: str) -> None:
    prompt = render(name, TALK, speech.TOOLS)
    starts = {
        ("user", 1): "FIRST",
        ("user", 3): "SECOND",
        ("tool_call", 4): 'find", "arguments": {"q": "NEEDLE'
        if name == "qwen3_like"
        else "find>\n<parameter=q",
        ("tool_result", 5): "RESULT",
    }
    ends = {("system_end", 0): "SYSTEM words", ("thinking_end", 4): "THOUGHT about it"}
    found = {(edge.kind, edge.message): edge.position for edge in prompt.boundaries}
    for key, words in starts.items():
        assert is_last_token_before(prompt, found[key], prompt.text.index(words)), key  # type: ignore[index]
    for key, words in ends.items():
        end = prompt.text.index(words) + len(words)
        assert is_last_token_before(prompt, found[key], end), key  # type: ignore[index]
    for message, words in ((2, "ANSWER one.<|im_end|>\n"), (4, "</tool_call><|im_end|>\n")):
        end = prompt.text.index(words, prompt.text.index("FIRST")) + len(words)
        assert is_last_token_before(prompt, found["assistant_end", message], end)
    positions = [edge.position for edge in prompt.boundaries]
    assert positions == sorted(positions)
    assert 0 < positions[0] <= positions[-1] <= len(prompt.token_ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_end_is_where_another_tool_goes(name: str) -> None:
    one = render(name, TALK, speech.TOOLS[:1])
    two = render(name, TALK, speech.TOOLS)
    position = places(one, "tools_end")[-1]
    assert two.token_ids[:position] == one.token_ids[:position]
    assert text_before(one, position).rstrip().endswith("}")
    assert one.text[len(text_before(one, position)) :].lstrip().startswith("</tools>")
    assert places(render(name, TALK), "tools_end") == {}


@pytest.mark.parametrize("thinking", [None, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_thinking_start_survives_the_next_user_turn(name: str, thinking: bool | None) -> None:
    """What stands before the first thinking_start of the last exchange is a prefix of the next prompt too."""
    now = render(name, TALK, thinking=thinking)
    # Some templates leave thinking out by themselves then, in others the client does.
    stripped = [{key: value for key, value in turn.items() if key != "reasoning_content"} for turn in TALK]
    later = render(name, [*stripped, assistant("DONE."), user("THIRD")], thinking=thinking)
    common = len(text_common(now, later))
    starts = places(now, "thinking_start")
    assert is_last_token_before(now, starts[4], common)
    assert max(starts) == len(TALK)
    always_shown = {None: "<think>\n", False: "<think>\n</think>\n\n"}[thinking] if name == "demo" else ""
    assert text_before(now, starts[len(TALK)]).endswith("<|im_start|>assistant\n" + always_shown)


def text_common(first: RenderedPrompt, second: RenderedPrompt) -> str:
    return first.text[: common_prefix(first.text, second.text)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_edit_of_a_message_keeps_everything_before_its_boundary(name: str) -> None:
    prompt = render(name, TALK, speech.TOOLS)
    for kind, message in (("user", 1), ("user", 3), ("tool_result", 5)):
        position = places(prompt, kind)[message]  # type: ignore[arg-type]
        for words in ("other", "Zebra <|im_end|>", "12"):
            changed = list(TALK)
            changed[message] = {**TALK[message], "content": words}
            edited = render(name, changed, speech.TOOLS)
            assert edited.token_ids[:position] == prompt.token_ids[:position]


CUT = "{% for m in messages %}<{{ m.role }}>{{ m.content[:6] }}{% endfor %}"
TWICE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}|{{ m.content }}{% endfor %}"
LENGTH = "{% for m in messages %}<{{ m.role }}{{ m.content | length }}>{{ m.content }}{% endfor %}"
UPPER = "{% for m in messages %}<{{ m.role }}>{{ m.content | upper | replace('A', 'BB') | trim }}{% endfor %}"
ODD = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content | reverse if m.role == 'user' else m.content }}{% endfor %}"
)


@pytest.mark.parametrize("source", [CUT, TWICE, LENGTH, UPPER, ODD])
def test_template_that_changes_words_has_fewer_boundaries(source: str) -> None:
    template = ChatTemplate(source, vocabularies.small())
    plain = [user("abc"), assistant("a much longer text"), user(" x "), assistant("last words")]
    prompt = template.render(speech.conversation(plain))
    assert "\ufdd0" not in prompt.text
    for edge in prompt.boundaries:
        before = text_before(prompt, edge.position)
        assert prompt.text.startswith(before)
        if edge.kind == "user":
            assert before.endswith((">", "> ")) or prompt.text[len(before) :].startswith(">")
    if source in (TWICE, LENGTH):
        assert not any(edge.kind == "user" for edge in prompt.boundaries)
    if source == UPPER:
        assert sorted(places(prompt, "user")) == [0, 2]


def test_one_odd_message_does_not_cost_the_others() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>"
        "{{ 'command' if m.content.startswith('/') else m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, vocabularies.small())
    talk = [user(f"words {number}") if number != 5 else user("/stop now") for number in range(9)]
    prompt = template.render(speech.conversation(talk))
    assert "command" in prompt.text
    assert sorted(places(prompt, "user")) == [0, 1, 2, 3, 4, 6, 7, 8]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30), st.data())
def test_positions_count_whole_tokens_and_change_no_id(text: str, data: st.DataObject) -> None:
    tokenizer = vocabularies.small()
    edges = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    ids, positions, _ = encode_prompt(tokenizer, text, [], [], edges)
    assert ids == tokenizer.encode(text)
    for edge, position in zip(edges, positions, strict=True):
        head = len(tokenizer.normalize(text[:edge]).encode())
        ends = [len(tokenizer.decode_bytes(ids[:count])) for count in range(len(ids) + 1)]
        if tokenizer.normalize(text) == text:
            assert position == max(count for count, end in enumerate(ends) if end <= head)
        else:
            assert ends[position] <= head  # characters that compose across the edge stand after it


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.sampled_from(["", "<|im_end|>", "<think>", " \n"])), max_size=6
    )
)
def test_marks_come_off_without_a_trace(parts: list[tuple[str, str]]) -> None:
    tokenizer = vocabularies.small()
    texts = [first.replace("\ufdd0", "") + second for first, second in parts]
    marker = Marker(tokenizer, frozenset(range(len(texts))))
    found = unmark("".join("[" + marker.leaf("user", 0, text) + "]" for text in texts))
    assert found.text == "".join(f"[{text}]" for text in texts)
    spans = found.once()
    for number, text in enumerate(texts):
        if text.strip():
            assert found.text[spans[number].start : spans[number].end] == text.strip()
    guarded = [found.text[start:end] for start, end in found.guarded]
    assert guarded == [token for text in texts for token, added in tokenizer.split_added(text) if added]
