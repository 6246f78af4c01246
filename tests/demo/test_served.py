"""Training reads what serving reads: the same token ids, and every reply parses back into what was meant.

Oracle of each side is the other: `samples` renders by itself, the engine by its template machinery.
"""

from __future__ import annotations

import json
from dataclasses import replace

from ftagent import demo
from ftagent.conversation import Block, Conversation, Message, Text, Thinking, ToolCall
from ftagent.demo.training import samples
from ftagent.engine.prompt.parsers import ReplyParser, detect_form
from ftagent.engine.prompt.tokenizer import Detokenizer
from ftagent.events import Event, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from tests.demo.conversations import conversation, template, tokenizer

FORM = detect_form((demo.directory() / "chat_template.jinja").read_text(encoding="utf-8"))
MARKERS = frozenset(tokenizer().added_tokens)


def replies(whole: Conversation) -> list[tuple[Conversation, list[int], Message]]:
    """At each turn of the assistant: what was said before, the ids of its turn in training, and the turn.

    The ids include the <|im_end|> that ends the turn.
    """
    found = []
    ids, weights = samples.tokens_of(samples.rendered(whole), 0.0)
    end = tokenizer().added_tokens["<|im_end|>"]
    starts = [i for i, w in enumerate(weights) if w == 1.0 and (i == 0 or weights[i - 1] != 1.0)]
    turns = [i for i, message in enumerate(whole.messages) if message.role == "assistant"]
    assert len(starts) == len(turns)
    for start, turn in zip(starts, turns, strict=True):
        before = Conversation(whole.messages[:turn], whole.tools, whole.tool_choice, whole.thinking)
        reply = ids[start : ids.index(end, start) + 1]
        found.append((before, ids[:start] + reply, whole.messages[turn]))
    return found


def in_schema_order(whole: Conversation) -> Conversation:
    """Calls as the engine retells those it did not make itself: arguments in the order of the schema.

    Training tells them in one order of its own; the two differ where a tool list shuffles its parameters.
    """
    orders = {spec.name: list(spec.parameters["properties"]) for spec in whole.tools}

    def ordered(block: Block) -> Block:
        if not isinstance(block, ToolCall):
            return block
        arguments = sorted(block.arguments.items(), key=lambda item: orders[block.name].index(item[0]))
        return replace(block, arguments=dict(arguments))

    messages = [replace(message, blocks=tuple(map(ordered, message.blocks))) for message in whole.messages]
    return replace(whole, messages=tuple(messages))


def thought(message: Message) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, Thinking))


def test_the_engine_prompts_with_the_ids_of_training() -> None:
    """200 conversations, cut before each reply: the prompt is what training saw up to that place."""
    cuts = 0
    for seed in range(200):
        for before, trained, reply in replies(in_schema_order(conversation(seed))):
            asked = replace(before, thinking=bool(thought(reply)))
            prompt = template().render(asked)
            assert list(prompt.token_ids) == trained[: len(prompt.token_ids)], (seed, prompt.text[-300:])
            assert prompt.thinking_open == bool(thought(reply))
            cuts += 1
    assert cuts > 400


def parse(ids: list[int], whole: Conversation, thinking_open: bool) -> list[Event]:
    """As the engine does it: token by token, added tokens as markers."""
    parser = ReplyParser(FORM, whole.tools, thinking_open, MARKERS)
    detokenizer = Detokenizer(tokenizer())
    events: list[Event] = []
    for token in ids:
        events += parser.push(detokenizer.push(token), tokenizer().is_added(token))
    return events + parser.push(detokenizer.flush()) + parser.finish(cut=False)


def test_every_reply_reads_back_as_it_was_meant() -> None:
    for seed in range(200):
        whole = conversation(seed)
        for before, trained, reply in replies(whole):
            prompt = template().render(replace(before, thinking=bool(thought(reply))))
            events = parse(trained[len(prompt.token_ids) : -1], whole, prompt.thinking_open)
            calls = [block for block in reply.blocks if isinstance(block, ToolCall)]
            names = [event.name for event in events if isinstance(event, ToolCallStart)]
            pieces = "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))
            assert names == [call.name for call in calls]
            assert sum(isinstance(event, ToolCallEnd) for event in events) == len(calls)
            if calls:
                (call,) = calls
                assert json.loads(pieces) == call.arguments, (seed, call)
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            words = "".join(event.text for event in events if isinstance(event, ThinkingDelta))
            assert text == "".join(block.text for block in reply.blocks if isinstance(block, Text)), seed
            assert words == thought(reply), seed
