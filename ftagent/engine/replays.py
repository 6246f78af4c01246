"""What a turn costs after the edits that agents make: their conversations in small, replayed on an engine.

Each replay is a conversation over a long system text with tools, continued in one of the ways agents
continue: only appended to, with thinking left out, with an old tool result replaced, compacted, forked, and
with titles and other sessions in between. A second engine that keeps nothing replays the same for
comparison. Measures through the engine's face; knows no command line.
"""

from __future__ import annotations

import asyncio
import pydoc_data.topics
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ftagent.conversation import Block, Conversation, Message, Text, Thinking, ToolCall, ToolResult, ToolSpec
from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.errors import ConfigError, EngineError
from ftagent.events import Event, Failed, Finished, Progress, TextDelta, ThinkingDelta

REPLY_TOKENS = 16
SESSIONS = 20

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


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The later turns of one replay together, in tokens. `common` is the longest prefix that a prompt shares
    with an earlier prompt and its reply, `new` what lies behind it; `reused_share` is the smallest over the
    turns of what was reused of `common`. First tokens in seconds, medians; cold ones were measured on an
    engine that keeps nothing.
    """

    replay: str
    turns: int
    prompt: int
    common: int
    new: int
    recomputed: int
    reused_share: float
    first_token_warm_s: float
    first_token_cold_s: float
    warm_equals_cold: bool


@dataclass(frozen=True, slots=True)
class AnchorsResult:
    model: str
    device: str
    context: int
    replays: tuple[ReplayResult, ...]


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

    def __init__(self, engine: Replayable, system_words: int) -> None:
        self._engine = engine
        self._words = _text()
        self._place = 0
        self._system_words = system_words
        self._numbers = 0
        self.turns: list[Turn] = []

    def words(self, count: int) -> str:
        self._place += count
        return " ".join(self._words[(self._place + index) % len(self._words)] for index in range(count))

    def talk(self, name: str, tools: tuple[ToolSpec, ...] = _TOOLS) -> _Talk:
        """A new conversation; those of one replay have their system text in common."""
        self._numbers += 1
        text = f"You are agent {name}. " + " ".join(self._words[: self._system_words])
        return _Talk(self._numbers, self.words, [Message("system", (Text(text),))], tools)

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
                turn = Turn(
                    *(replay, first, prompt, event.token_ids, event.usage.cached_tokens, first_token or 0.0)
                )
                return (*blocks, Text(text or "Well.")), turn
        raise EngineError("the engine gave no answer")


Replay = Callable[[_Replayer], None]


def bench_anchors(model: ModelInfo, warm: Sequence[Turn], cold: Sequence[Turn]) -> AnchorsResult:
    """Figures of what `run_replays` gave on an engine, and on one that keeps nothing."""
    return AnchorsResult(model.id, model.device, model.context, tuple(_results(warm, cold)))


def run_replays(engine: Replayable, system_words: int) -> list[Turn]:
    """All replays, one after the other.

    Raises ConfigError when they do not fit the model's context, EngineError when the engine fails.
    """
    replayer = _Replayer(engine, system_words)
    longest = replayer.talk("longest")
    longest.say(2 * system_words + 900)
    needed = len(engine.prompt_ids(longest.conversation()))
    if needed > engine.model.context:
        raise ConfigError(
            f"the replays need a context of {needed} tokens and the model has {engine.model.context}: "
            "use a shorter system text (--system) or more --context"
        )
    for replay in _REPLAYS:
        replay(replayer)
    return replayer.turns


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
    """SESSIONS conversations take turns."""
    talks = [replayer.talk("sessions") for _ in range(SESSIONS)]
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


def _results(warm: Sequence[Turn], cold: Sequence[Turn]) -> Iterator[ReplayResult]:
    """One result for each replay, in order. What a reply's last token would have cost counts as new: it is
    sampled, but not computed.
    """
    names = list(dict.fromkeys(turn.replay for turn in warm))
    commons = _commons(warm)
    for name in names:
        chosen = [index for index, turn in enumerate(warm) if turn.replay == name and not turn.first]
        prompts = sum(len(warm[index].prompt) for index in chosen)
        common = sum(commons[index] for index in chosen)
        yield ReplayResult(
            replay=name,
            turns=len(chosen),
            prompt=prompts,
            common=common,
            new=prompts - common,
            recomputed=prompts - sum(warm[index].cached for index in chosen),
            reused_share=min(warm[index].cached / max(commons[index], 1) for index in chosen),
            first_token_warm_s=statistics.median(warm[index].first_token_s for index in chosen),
            first_token_cold_s=statistics.median(cold[index].first_token_s for index in chosen),
            warm_equals_cold=all(
                (warm[index].prompt, warm[index].reply) == (cold[index].prompt, cold[index].reply)
                for index, turn in enumerate(warm)
                if turn.replay == name
            ),
        )


def _commons(turns: Sequence[Turn]) -> list[int]:
    """For each request the longest prefix of its prompt that an earlier request has computed."""
    known: list[tuple[int, ...]] = []
    found = []
    for turn in turns:
        found.append(max((_common(turn.prompt, other) for other in known), default=0))
        known.append((*turn.prompt, *turn.reply[:-1]))
    return found


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def _text() -> list[str]:
    return "\n".join(body for _, body in sorted(pydoc_data.topics.topics.items())).split()
