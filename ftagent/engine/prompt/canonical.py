"""A conversation in the one form that gets rendered: two ways to say the same thing become the same turns.

What clients may spell differently is settled here: text in one block or several, argument keys in any order,
call ids, results out of order, pictures, volatile header lines, system messages where a template takes none.
What agents are known to change goes behind what they leave (see `context`). Pure data; knows neither token
ids nor Jinja2.

The choices:
- Text blocks of one message are joined by a line break, unless one stands there already; an assistant's are
  joined as they are, since that is how they were generated.
- Arguments that this engine generated are said as they were generated. The keys of others follow the order
  of the tool's own schema, then the client's order.
- Call ids are numbered through the conversation. Clients' ids change from session to session and would
  break the common prefix in templates that render them.
- A system message that the template refuses where it stands stays there, as a user's message that is marked
  as an instruction. It never moves. One message is no instruction but a description of the place (see
  `context.is_place`): it is said where the conversation begins.
- Lone surrogates and the 32 noncharacters U+FDD0..U+FDEF, which Unicode keeps for use inside programs,
  become U+FFFD; `boundaries` uses the latter as marks.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftagent.conversation import (
    Conversation,
    Image,
    Message,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolReference,
    ToolResult,
    ToolSpec,
)
from ftagent.engine.prompt import context
from ftagent.engine.prompt.memory import ReplyMemory

IMAGE_PLACEHOLDER = "[image: this model reads text only]"

_RESERVED = re.compile("[\ud800-\udfff\ufdd0-\ufdef]")
# Claude Code's first system block; its digits change with the session.
_VOLATILE_LINES = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a template accepts. Where it does not, the conversation is said in another way."""

    leading_system: bool = True
    late_system: bool = True
    consecutive_users: bool = True
    argument_mapping: bool = True  # False: arguments are wanted as JSON text
    empty_text: bool = True  # False: where there is no text beside calls, it has to be none
    text_with_calls: bool = True  # False: words before a call stand in a message of their own
    thinking_with_text: bool = True  # False: of a turn with calls, words join the thinking
    parallel_calls: bool = True  # False: each call stands in a message of its own, before its result
    call_id: str = "call_{}"  # how the number of a call becomes its id


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message for the template. `message` is its index in the conversation.

    A tool turn holds one result: `call_id` and `name` are those of its call. `edges`: where further blocks
    begin in the user's `content`. `apart`: it is never put together with another turn of the system.
    """

    role: Role
    message: int
    content: str
    edges: tuple[int, ...] = ()
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The turns to render, the tools to list, and notes for the user about what could not be said."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    notes: tuple[str, ...] = ()


def clean(text: str) -> str:
    """`text` without the characters that are reserved for marks, and without lone surrogates."""
    return text if text.isascii() else _RESERVED.sub("\ufffd", text)


def canonical(conversation: Conversation, dialect: Dialect, memory: ReplyMemory) -> Script:
    """Settle everything that may be spelled in several ways."""
    tools = {tool.name: tool for tool in conversation.tools}

    def arguments(call: ToolCall) -> Mapping[str, Any]:
        tool = tools.get(call.name)
        return _arguments(call, tool.parameters if tool else {}, memory)

    calls = _CallNumbers(dialect.call_id)
    references = _References(conversation)
    turns: list[Turn] = []
    for index in context.order(conversation.messages):
        message = conversation.messages[index]
        if message.role == "tool":
            turns += _tool_turns(message, index, calls, references)
        elif message.role == "assistant":
            turns.append(_assistant_turn(message, index, calls, arguments))
        elif message.role == "system":
            turns += _system_turn(message, index, memory)
        else:
            content = _join(_words(message.blocks, references))
            turns.append(Turn("user", index, *context.steady_first(content)))
    images = sum(map(_count_images, conversation.messages))
    notes = (f"{images} image(s) not shown to the model: it reads text only",) if images else ()
    return Script(tuple(fit(turns, dialect)), references.listed, notes)


class _References:
    """Describes late tools where they are first referred to."""

    def __init__(self, conversation: Conversation) -> None:
        parts = [
            part
            for message in conversation.messages
            for block in message.blocks
            for part in (block.content if isinstance(block, ToolResult) else (block,))
        ]
        named = {part.name for part in parts if isinstance(part, ToolReference)}
        self._late = {tool.name: tool for tool in conversation.tools if tool.late and tool.name in named}
        self.listed = tuple(tool for tool in conversation.tools if tool.name not in self._late)
        if not self.listed:  # templates explain how to call a tool where they list some
            self.listed, self._late = conversation.tools, {}

    def words(self, name: str) -> str:
        tool = self._late.pop(name, None)
        if tool is None:
            return f"The tool {name} is available now."
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        definition = json.dumps({"type": "function", "function": function}, ensure_ascii=False, default=str)
        return f"The tool {name} is available now:\n{definition}"


class _CallNumbers:
    """Numbers calls through the conversation, and finds the call that a result belongs to."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._count = 0
        self._open: list[tuple[str, Call]] = []  # calls of the last assistant turn: client's id, call

    def start_turn(self, named: Iterable[tuple[str, str, Mapping[str, Any]]]) -> tuple[Call, ...]:
        """Open the calls (client's id, name, arguments) of one assistant turn."""
        self._open = []
        for client_id, name, arguments in named:
            self._open.append((client_id, Call(self._pattern.format(self._count), name, arguments)))
            self._count += 1
        return tuple(call for _, call in self._open)

    def close(self, client_id: str) -> Call | None:
        """The open call of that id, or else the first open one; None when no call is open."""
        same = (index for index, (known, _) in enumerate(self._open) if known == client_id)
        index = next(same, 0)
        return self._open.pop(index)[1] if self._open else None

    def order(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """`results` in the order of their calls, if each id is known and none occurs twice."""
        places = {client_id: place for place, (client_id, _) in enumerate(self._open)}
        ids = [result.call_id for result in results]
        if len(set(ids)) == len(ids) and len(places) == len(self._open) and places.keys() >= set(ids):
            return sorted(results, key=lambda result: places[result.call_id])
        return list(results)


def _tool_turns(message: Message, index: int, calls: _CallNumbers, references: _References) -> list[Turn]:
    results = [block for block in message.blocks if isinstance(block, ToolResult)]
    turns = []
    for result in calls.order(results):
        call = calls.close(result.call_id)
        turns.append(
            Turn(
                "tool",
                index,
                _join(_words(result.content, references)),
                call_id=call.id if call else "call_unknown",
                name=call.name if call else "",
            )
        )
    return turns


def _assistant_turn(
    message: Message,
    index: int,
    calls: _CallNumbers,
    arguments: Callable[[ToolCall], Mapping[str, Any]],
) -> Turn:
    thinking = [clean(block.text) for block in message.blocks if isinstance(block, Thinking)]
    made = [block for block in message.blocks if isinstance(block, ToolCall)]
    return Turn(
        "assistant",
        index,
        "".join(_words(message.blocks)),
        thinking="\n\n".join(thinking),
        calls=calls.start_turn((call.id, clean(call.name), arguments(call)) for call in made),
    )


def _system_turn(message: Message, index: int, memory: ReplyMemory) -> list[Turn]:
    words = [_VOLATILE_LINES.sub("", text) for text in _words(message.blocks)]
    content = _join(words)
    if not content:
        return []
    if context.is_place(message):
        return [Turn("system", index, memory.known_order(content), apart=True)]
    return [Turn("system", index, content)]


def _words(blocks: Iterable[object], references: _References | None = None) -> list[str]:
    words = []
    for block in blocks:
        if isinstance(block, Text):
            words.append(clean(block.text))
        elif isinstance(block, Image):
            words.append(IMAGE_PLACEHOLDER)
        elif isinstance(block, ToolReference) and references is not None:
            words.append(clean(references.words(block.name)))
    return words


def _join(texts: Iterable[str]) -> str:
    joined = ""
    for text in texts:
        if joined and text and not (joined.endswith("\n") or text.startswith("\n")):
            joined += "\n"
        joined += text
    return joined


def _count_images(message: Message) -> int:
    inside = [part for block in message.blocks if isinstance(block, ToolResult) for part in block.content]
    return sum(isinstance(block, Image) for block in (*message.blocks, *inside))


def _arguments(call: ToolCall, schema: Mapping[str, Any], memory: ReplyMemory) -> Mapping[str, Any]:
    arguments: Any = call.arguments
    if call.raw is not None and not arguments:
        try:
            arguments = json.loads(call.raw)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"arguments": call.raw} if call.raw.strip() else {}
    generated = memory.recall(call.id, arguments)
    ordered = _in_schema_order(generated, schema if generated is arguments else {})
    return ordered if isinstance(ordered, dict) else {}


def _in_schema_order(value: Any, schema: Any) -> Any:
    """`value` as plain JSON data, with object keys in the order of `schema`, then as they came."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        keys = [key for key in properties if key in value] + [key for key in value if key not in properties]
        return {clean(str(key)): _in_schema_order(value[key], properties.get(key)) for key in keys}
    if isinstance(value, list | tuple):
        return [_in_schema_order(item, schema.get("items")) for item in value]
    if isinstance(value, str):
        return clean(value)
    return value if value is None or isinstance(value, bool | int | float) else clean(str(value))


def fit(turns: Sequence[Turn], dialect: Dialect) -> list[Turn]:
    """Say in another way what the template would refuse or leave out, each turn at its place."""
    fitted: list[Turn] = []
    for turn in _fit_calls(turns, dialect):
        leading = all(before.role == "system" for before in fitted)
        if turn.role == "system" and leading and dialect.leading_system and not turn.apart:
            if fitted and not dialect.late_system:
                fitted[-1] = _behind(fitted[-1], turn)
                continue
        elif turn.role == "system" and not (dialect.late_system and dialect.leading_system):
            turn = replace(turn, role="user", content=as_instruction(turn.content))
        if turn.role == "user" and fitted and fitted[-1].role == "user" and not dialect.consecutive_users:
            fitted[-1] = _behind(fitted[-1], turn)
            continue
        fitted.append(turn)
    return fitted


def _fit_calls(turns: Sequence[Turn], dialect: Dialect) -> Iterator[Turn]:
    position = 0
    while position < len(turns):
        turn = turns[position]
        position += 1
        if turn.role != "assistant" or not turn.calls:
            yield turn
            continue
        if turn.content and turn.thinking and not dialect.thinking_with_text:
            turn = replace(turn, thinking=f"{turn.thinking}\n\n{turn.content}", content="")
        if turn.content and not dialect.text_with_calls:
            yield replace(turn, calls=())
            turn = replace(turn, content="", thinking="")
        if dialect.parallel_calls or len(turn.calls) == 1:
            yield turn
            continue
        results = list(itertools.takewhile(lambda after: after.role == "tool", turns[position:]))
        position += len(results)
        yield from _one_by_one(turn, results)


def _one_by_one(turn: Turn, results: Sequence[Turn]) -> Iterator[Turn]:
    """Each call in a turn of its own, its result behind it; results of no such call at the end."""
    left = list(results)
    for number, call in enumerate(turn.calls):
        one = replace(turn, calls=(call,))
        yield replace(one, content="", thinking="") if number else one
        mine = [result for result in left if result.call_id == call.id]
        left = [result for result in left if result.call_id != call.id]
        yield from mine
    yield from left


def _behind(first: Turn, second: Turn) -> Turn:
    """Two turns of one role in one."""
    start = len(first.content) + 2
    edges = (*first.edges, start, *(start + edge for edge in second.edges))
    return replace(first, content=f"{first.content}\n\n{second.content}", edges=edges)


def as_instruction(text: str) -> str:
    """A system message on the user's side."""
    return f"<system-instruction>\n{text}\n</system-instruction>"
