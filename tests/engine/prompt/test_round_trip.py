"""What a chat template writes for a reply, the parser reads as that reply. Oracle: the templates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftagent.conversation import Block, Conversation, Message, Text, Thinking, ToolCall, ToolResult, ToolSpec
from ftagent.engine.prompt.parsers import detect_form
from ftagent.engine.prompt.tokenizer import Detokenizer
from tests.engine.prompt import vocabularies
from tests.engine.prompt.replies import MARKERS, Piece, Setup, join

TYPES: dict[str, Any] = {
    "words": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "more": {"type": "object"},
}
TOOLS = (
    ToolSpec("use", "", {"type": "object", "properties": TYPES}),
    ToolSpec("rest", "", {"type": "object"}),
)
WORDS = st.text(st.sampled_from(list("ab \n\t<>/'\"\\{}[],:é世🏳")), max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e6, 1e6) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "words": WORDS
        | st.sampled_from(["</parameter>", "<think>", "007", "null", '["a"]', "<function=use>"]),
        "count": st.integers(),
        "share": st.floats(-1e6, 1e6),
        "flag": st.booleans(),
        "items": st.lists(JSON_VALUES, max_size=3),
        "more": st.dictionaries(WORDS, JSON_VALUES, max_size=3),
    },
)
PROSE = st.sampled_from(["", "Let me look.", "a < b\n\n    code()", "Two.\n\nParagraphs."])


def reply_pieces(name: str, turn: Message) -> list[Piece]:
    """The reply as the template writes it into the prompt, token by token."""
    results = tuple(ToolResult(b.id, (Text("ok"),)) for b in turn.blocks if isinstance(b, ToolCall))
    asked = Message("user", (Text("go"),))
    messages = (asked, turn, Message("tool", results) if results else Message("user", (Text("more"),)))
    rendered = vocabularies.template(name).render(Conversation(messages, TOOLS))
    tokenizer = vocabularies.small()
    start, end = tokenizer.added_tokens["<|im_start|>"], tokenizer.added_tokens["<|im_end|>"]
    ids = list(rendered.token_ids)
    head = tokenizer.encode("<|im_start|>assistant\n")
    assert head[0] == start
    begin = next(at for at in range(len(ids)) if ids[at : at + len(head)] == head) + len(head)
    detokenizer = Detokenizer(tokenizer)
    return [
        (detokenizer.push(token), tokenizer.is_added(token)) for token in ids[begin : ids.index(end, begin)]
    ]


@pytest.mark.parametrize("name", ["qwen3_like", "qwen3_5_like", "demo"])
@given(st.sampled_from(["", "plan\n\nmore"]), PROSE, st.lists(ARGUMENTS, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_templates_and_parser_agree(name: str, plan: str, prose: str, calls: list[dict[str, Any]]) -> None:
    blocks: tuple[Block, ...] = (
        *([Thinking(plan)] if plan else []),
        *([Text(prose)] if prose else []),
        *(ToolCall(f"call_{index}", "use", arguments) for index, arguments in enumerate(calls)),
        ToolCall("call_last", "rest", {}),
    )
    pieces = reply_pieces(name, Message("assistant", blocks))
    form = detect_form(vocabularies.template(name).source)
    for markers in (MARKERS, frozenset[str]()):
        if not markers and any(marker in str(calls) for marker in MARKERS):
            continue
        reply = join(Setup(form, TOOLS).events(pieces, markers))
        assert (reply.thinking, reply.content) == (plan, prose)
        assert [call.arguments for call in reply.calls] == [*calls, {}]
        assert all(call.complete for call in reply.calls)
