"""What a turn costs after the edits that agents make: their conversations in small, replayed on an engine.

Each replay is a conversation over a long system text with tools, continued in one of the ways agents
continue: only appended to, with thinking left out, with an old tool result replaced, compacted, forked, and
with titles and other sessions in between. Measures through the engine's face; what is made of it stands in
`anchor_bench`.
"""

from __future__ import annotations

import asyncio
import pydoc_data.topics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ftagent.conversation import Block, Conversation, Message, Text, Thinking, ToolCall, ToolResult, ToolSpec
from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.errors import ConfigError, EngineError
from ftagent.events import Event, Failed, Finished, Progress, TextDelta, ThinkingDelta

REPLY_TOKENS = 16
SESSIONS = 20
ROOM_WORDS = 1600  # what the longest replay adds to its system text

_TOOLS = (
    ToolSpec("read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ToolSpec("run", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),
)


class Replayable(Protocol):
    """What is needed of `engine.LocalEngine`."""

    @property
    def model(self) -> ModelInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    def prompt_ids(self, conversation: Conversation) -> Sequence[int]: ...


class Turn(NamedTuple):
    """One request of a replay. `first` marks those that have nothing to go on from but system and tools."""

    replay: str
    first: bool
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    cached: int
    first_token_s: float
    conversation: Conversation


@dataclass(slots=True)
class _Talk:
    """A conversation while it is replayed."""

    number: int
    words: Callable[[int], str]
    messages: list[Message] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = _TOOLS

    def say(self, words: int) -> None:
        self.messages.append(Message("user", (Text(f"Question {self.number}. {self.words(words)}"),)))

    def use_tool(self, words: int) -> None:
        """A thought, a call and its result, as if the model had made them."""
        call = f"call_{self.number}_{len(self.messages)}"
        thought, made = Thinking(self.words(30)), ToolCall(call, "read_file", {"path": f"{call}.txt"})
        self.messages.append(Message("assistant", (thought, made)))
        self.messages.append(Message("tool", (ToolResult(call, (Text(self.words(words)),)),)))

    def take(self, blocks: tuple[Block, ...]) -> None:
        self.messages.append(Message("assistant", blocks))

    def conversation(self) -> Conversation:
        return Conversation(tuple(self.messages), self.tools)


class _Replayer:
    """Runs replays on one engine, and notes every request."""

    def __init__(self, engine: Replayable, system_words: int, begin: int = 0) -> None:
        self._engine = engine
        self._words = _text()
        self._place = begin
        self._system_words = system_words
        self._numbers = 0
        self.sessions = SESSIONS
        self.turns: list[Turn] = []

    def words(self, count: int) -> str:
        self._place += count
        return " ".join(self._words[(self._place + index) % len(self._words)] for index in range(count))

    def talk(self, name: str, tools: tuple[ToolSpec, ...] = _TOOLS) -> _Talk:
        """A new conversation; those of one replay have their system text in common."""
        self._numbers += 1
        count = len(self._words)
        body = " ".join(self._words[index % count] for index in range(self._system_words))
        text = f"You are agent {name}. {body}"
        return _Talk(self._numbers, self.words, [Message("system", (Text(text),))], tools)

    def check_room(self, words: int) -> None:
        """Raise ConfigError unless the context holds the system text and so many words."""
        longest = self.talk("longest")
        longest.say(words)
        needed, context = len(self._engine.prompt_ids(longest.conversation())), self._engine.model.context
        if needed > context:
            raise ConfigError(
                f"the replays need a context of {needed} tokens and the model has {context}: "
                "use a shorter system text (--system, --tokens) or more --context"
            )

    def ask(self, replay: str, talk: _Talk, *, first: bool = False, answer: bool = True) -> None:
        conversation = talk.conversation()
        prompt = tuple(self._engine.prompt_ids(conversation))
        blocks, turn = asyncio.run(self._run(replay, first, conversation, prompt))
        self.turns.append(turn)
        if answer:
            talk.take(blocks)

    async def _run(
        self, replay: str, first: bool, conversation: Conversation, prompt: tuple[int, ...]
    ) -> tuple[tuple[Block, ...], Turn]:
        sampling = SamplingParams(max_tokens=REPLY_TOKENS, temperature=0.0)
        thinking = text = ""
        start = time.perf_counter()
        first_token: float | None = None
        async for event in self._engine.generate(GenerateRequest(conversation, sampling)):
            if first_token is None and not isinstance(event, Progress):
                first_token = time.perf_counter() - start
            if isinstance(event, ThinkingDelta):
                thinking += event.text
            elif isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Failed):
                raise EngineError(event.message)
            elif isinstance(event, Finished):
                blocks = [Thinking(thinking)] if thinking else []
                seconds, cached = first_token or time.perf_counter() - start, event.usage.cached_tokens
                turn = Turn(replay, first, prompt, event.token_ids, cached, seconds, conversation)
                return (*blocks, Text(text or "Well.")), turn
        raise EngineError("the engine gave no answer")


Replay = Callable[[_Replayer], None]


def run_replays(engine: Replayable, system_words: int, sessions: int = SESSIONS) -> list[Turn]:
    """All replays, one after the other; the last has so many `sessions`.

    Raises ConfigError when they do not fit the model's context, EngineError when the engine fails.
    """
    replayer = _Replayer(engine, system_words)
    replayer.sessions = sessions
    replayer.check_room(ROOM_WORDS)
    for replay in _REPLAYS:
        replay(replayer)
    return replayer.turns


def run_first_turn(engine: Replayable, system_words: int, number: int) -> Turn:
    """The first request of a session, the `number`-th behind this system text and these tools. Raises as
    `run_replays` does.
    """
    replayer = _Replayer(engine, system_words, begin=100 * number)
    replayer.check_room(100)
    talk = replayer.talk("restart")
    talk.say(40)
    replayer.ask("restart", talk, first=True, answer=False)
    return replayer.turns[0]


def words_for(engine: Replayable, tokens: int) -> int:
    """How many words of the system text bring the beginning of a prompt to about so many tokens."""
    words = [max(20, tokens // 2), max(21, tokens)]
    found = [len(engine.prompt_ids(_Replayer(engine, count).talk("long").conversation())) for count in words]
    each = (found[1] - found[0]) / (words[1] - words[0])
    return max(20, words[1] - int((found[1] - tokens) / max(each, 0.01)))


def _append_only(replayer: _Replayer) -> None:
    talk = replayer.talk("append")
    for turn in range(6):
        talk.say(60)
        replayer.ask("append only", talk, first=not turn)


def _thinking_stripped(replayer: _Replayer) -> None:
    """Tool turns with thinking, then a user turn, for which templates leave that thinking out."""
    talk = replayer.talk("thinking")
    talk.say(60)
    replayer.ask("thinking stripped", talk, first=True, answer=False)
    for _ in range(3):
        for _ in range(2):
            talk.use_tool(80)
            replayer.ask("thinking stripped", talk, answer=False)
        talk.take((Text("Done."),))
        talk.say(40)
        replayer.ask("thinking stripped", talk, answer=False)


def _result_replaced(replayer: _Replayer) -> None:
    """Old tool results give way to a word, as agents do to save room."""
    talk = replayer.talk("result")
    talk.say(60)
    replayer.ask("tool result replaced", talk, first=True, answer=False)
    for _ in range(5):
        talk.use_tool(120)
        replayer.ask("tool result replaced", talk, answer=False)
    results = [index for index, message in enumerate(talk.messages) if message.role == "tool"]
    for index in results[1:3]:
        old = talk.messages[index].blocks[0]
        assert isinstance(old, ToolResult), "a tool message holds results"
        talk.messages[index] = Message("tool", (ToolResult(old.call_id, (Text("[removed]"),)),))
        talk.use_tool(40)
        replayer.ask("tool result replaced", talk, answer=False)


def _compaction(replayer: _Replayer) -> None:
    """A summary takes the place of the middle; then the conversation goes on."""
    talk = replayer.talk("compaction")
    for turn in range(5):
        talk.say(80)
        replayer.ask("compaction", talk, first=not turn)
    talk.messages[2:8] = [Message("assistant", (Text(f"In short: {replayer.words(60)}"),))]
    for _ in range(3):
        talk.say(40)
        replayer.ask("compaction", talk)


def _fork(replayer: _Replayer) -> None:
    """Subagents begin as the main conversation does, which then goes on."""
    talk = replayer.talk("fork")
    talk.say(60)
    replayer.ask("subagent fork", talk, first=True)
    for _ in range(3):
        child = replayer.talk("fork")
        child.messages = talk.messages[:3]
        child.say(50)
        replayer.ask("subagent fork", child)
        child.say(20)
        replayer.ask("subagent fork", child)
        talk.say(40)
        replayer.ask("subagent fork", talk)


def _titles(replayer: _Replayer) -> None:
    """Requests for a title between the turns; they count as first ones, and the turns behind them do not."""
    talk = replayer.talk("titles")
    for turn in range(6):
        talk.say(60)
        replayer.ask("title in between", talk, first=not turn)
        title = replayer.talk(f"of title {turn}", ())
        title.messages = [Message("system", (Text(f"Find a title. {replayer.words(60)}"),))]
        title.say(40)
        replayer.ask("title in between", title, first=True)


def _sessions(replayer: _Replayer) -> None:
    """As many conversations as there are sessions take turns."""
    talks = [replayer.talk("sessions") for _ in range(replayer.sessions)]
    for turn in range(3):
        for talk in talks:
            talk.say(30)
            replayer.ask("sessions interleaved", talk, first=not turn)


_REPLAYS: tuple[Replay, ...] = (
    _append_only,
    _thinking_stripped,
    _result_replaced,
    _compaction,
    _fork,
    _titles,
    _sessions,
)


def _text() -> list[str]:
    return "\n".join(body for _, body in sorted(pydoc_data.topics.topics.items())).split()
