"""A reply that comes back from a client, said once more in the model's own words.

A template may spell a call in another way than the model did: a header's parts in another order, JSON with
other spaces. Then the next prompt would part from what is computed already, at the first such reply. Where a
client sends back exactly what a reply said, and the template shows all of it, the reply's own text takes the
place of the template's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ftagent.conversation import Boundary, Conversation, Thinking, ToolCall, ToolSpec
from ftagent.engine.prompt.arguments import parse_json
from ftagent.engine.prompt.forms import FormTable
from ftagent.engine.prompt.memory import KnownPrefix, Spoken
from ftagent.engine.prompt.parsers import ReplyParser
from ftagent.engine.prompt.rendering import Rendering
from ftagent.engine.prompt.tokenizer import Detokenizer, Tokenizer
from ftagent.events import Event, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnd, ToolCallStart


class Echo(NamedTuple):
    """The prompt's text with the reply in its own words.

    From character `start` on it is the template's again, `shift` characters further than the template has it.
    """

    text: str
    start: int
    shift: int


def read_reply(
    table: FormTable,
    tools: Sequence[ToolSpec],
    thinking_open: bool,
    tokenizer: Tokenizer,
    ids: Sequence[int],
) -> Spoken:
    """What a reply says: `ids` with or without the token that ended it."""
    parser = ReplyParser(table, tools, thinking_open, frozenset(tokenizer.added_tokens))
    detokenizer = Detokenizer(tokenizer)
    ended = bool(ids) and ids[-1] in tokenizer.eos_ids
    events: list[Event] = []
    for token in ids[:-1] if ended else ids:
        if text := detokenizer.push(token):
            events += parser.push(text, tokenizer.is_added(token))
    events += parser.finish(cut=not ended)
    return _joined(events)


def _joined(events: Sequence[Event]) -> Spoken:
    thinking = content = ""
    calls: list[list[str]] = []
    complete = 0
    for event in events:
        match event:
            case ThinkingDelta(text):
                thinking += text
            case TextDelta(text):
                content += text
            case ToolCallStart(_, _, name):
                calls.append([name, ""])
            case ToolCallDelta(_, text):
                calls[-1][1] += text
            case ToolCallEnd():
                complete += 1
    if complete < len(calls):
        return Spoken("", "", ())  # cut inside a call: nobody can send that back
    return Spoken(thinking, content, tuple((name, parse_json(text)) for name, text in calls))


def says_the_same(conversation: Conversation, message: int, spoken: Spoken) -> bool:
    """Whether the client's message is this very reply."""
    if message >= len(conversation.messages):
        return False
    echoed = conversation.messages[message]
    thinking = "\n\n".join(block.text for block in echoed.blocks if isinstance(block, Thinking))
    calls = [(call.name, _arguments(call)) for call in echoed.blocks if isinstance(call, ToolCall)]
    return (
        echoed.role == "assistant"
        and bool(spoken.content.strip() or spoken.calls)
        and echoed.text.strip() == spoken.content.strip()
        and thinking.strip() == spoken.thinking.strip()
        and calls == list(spoken.calls)
    )


def _arguments(call: ToolCall) -> Any:
    return parse_json(call.raw) if call.raw is not None and not call.arguments else dict(call.arguments)


def own_words(rendering: Rendering, known: KnownPrefix, stop: str) -> Echo | None:
    """Put the reply's own text in place of the template's. `stop`: the text of the token that ended it.

    None where the template does not show all that the reply said, goes on in another way behind it, or writes
    the calls' ids, which results refer to.
    """
    text = rendering.found.text
    end = rendering.reply_end(known.message, len(known.template_text))
    if end is None or (known.spoken.thinking and not rendering.shows_thinking(known.message)):
        return None
    written = text[len(known.template_text) : end.end]
    if any(call_id in written for call_id in rendering.call_ids(known.message)):
        return None
    said = known.text.removesuffix(stop)
    closer = text[end.start : end.end]
    closed = not (stop and closer.startswith(stop)) and said.rstrip().endswith(closer.rstrip())
    start = end.end if closed else end.start
    echoed = said + text[start:]
    if not echoed.startswith(known.text):
        return None
    return Echo(echoed, len(said), len(said) - start)


def reply_boundaries(known: KnownPrefix, tokenizer: Tokenizer) -> Iterator[Boundary]:
    """The edges of the known prompt, and those inside the reply to it."""
    yield from known.boundaries
    ends = tokenizer.token_ends(known.token_ids)
    place = known.prompt

    def position(offset: int) -> int:
        return bisect_right(ends, len(known.text[:offset].encode("utf-8")))

    thinking = known.spoken.thinking
    if thinking and (found := known.text.find(thinking, place)) >= 0:
        place = found + len(thinking)
        yield Boundary("thinking_end", position(place), known.message)
    for name, _ in known.spoken.calls:
        if (found := known.text.find(name, place)) >= 0:
            yield Boundary("tool_call", position(found), known.message)
            place = found + len(name)
