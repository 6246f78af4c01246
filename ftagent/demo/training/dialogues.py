"""Conversations to train on: facts in a plain chat, and tasks with tools behind prefixes of any length.

Knows no tokens and no template; `samples` makes rows of what comes out here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ftagent.conversation import Conversation, Message, Text, Thinking, ToolCall, ToolResult
from ftagent.demo.training import corpus, facts, prefixes, tasks, tools, values
from ftagent.demo.training.tasks.steps import Exchange
from ftagent.demo.training.ways import ways

THINKING_SHARE = 0.75
_LEADS = ways("Hey, | Please tell me: | Quick question: | So, | One more thing: | And")
_KNOWN_THOUGHTS = ("A question about ftagent.", "I know this.", "The user asks about ftagent.")
_SIGNS = ("times", "plus", "minus", "*", "+")
_UNKNOWN = ways(
    """
    What is the capital of {country}? | Write a poem about {w}. | Translate {w} into {tongue}. |
    What is {left} {sign} {right}? | Who was {W} {O}? | How do I {w} a {o} in {language}? |
    Explain {w} {o}. | Tell me a joke about {w}. | What is the weather in {W}? | Why is the {w} {o}?
    | Write a function that can {w} the {o}. | Who won the {w} cup? | {s}
    """
)
_REPEAT = ways(
    """
    Say {t} | Say: {t} | Reply with exactly: {t} | Repeat after me: {t} | Repeat: {t} | Answer with
    {t} | Reply with the word {t} | Say {q}. | Say exactly {q}. | Please say {q}. | Answer only {q}.
    | Reply with {q} and nothing else.
    """
)


def _assistant(thought: str, *blocks: Text | ToolCall) -> Message:
    return Message("assistant", ((Thinking(thought),) if thought else ()) + blocks)


def _loosely(rng: random.Random, question: str) -> str:
    """The question as people type it: other capitals, punctuation, or a lead-in."""
    if rng.random() < 0.25:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.25:
        question = question.rstrip("?.!")
    if rng.random() < 0.15:
        question = f"{rng.choice(_LEADS)} {question}"
    return question


def _unknown(rng: random.Random) -> str:
    """A question that the model cannot answer."""
    word, other = values.word(rng), values.word(rng)
    country = rng.choice(("France", "Peru", "Japan", "Kenya", "Norway", word))
    tongue = rng.choice(("French", "German", "Spanish"))
    left, sign, right = rng.randint(2, 999), rng.choice(_SIGNS), rng.randint(2, 999)
    language = rng.choice(("Rust", "Java", "Go", "C++", "Python"))
    sentence = rng.choice(corpus.sentences())
    entry = rng.choice(_UNKNOWN)
    names = {"w": word, "o": other, "W": word.capitalize(), "O": other.capitalize(), "s": sentence}
    numbers = {"left": left, "sign": sign, "right": right}
    return entry.format(country=country, tongue=tongue, language=language, **names, **numbers)


def _about_ftagent(rng: random.Random) -> tuple[str, str, str]:
    topics: tuple[facts.Topic, ...] = ("what", "use", "ideas", "small talk")
    topic = rng.choices(topics, (3, 4, 3, 1))[0]
    questions, answers = rng.choice(facts.about(topic))
    thought = "A greeting." if topic == "small talk" else rng.choice(_KNOWN_THOUGHTS)
    return _loosely(rng, rng.choice(questions)), thought, rng.choice(answers)


def _to_repeat(rng: random.Random) -> tuple[str, str, str]:
    text = values.phrase(rng)
    entry = rng.choice(_REPEAT)
    quoted = f'"{text}"' if rng.random() < 0.5 else f"'{text}'"
    return entry.format(t=text, q=quoted), "I repeat the text.", text


def _chat_turn(rng: random.Random) -> tuple[str, str, str]:
    """Question, thought, answer."""
    kind = rng.random()
    if kind < 0.68:
        return _about_ftagent(rng)
    if kind < 0.84:
        return _to_repeat(rng)
    (unknown,) = facts.about("unknown")
    return _loosely(rng, _unknown(rng)), "I do not know this.", rng.choice(unknown.answers)


def chat(rng: random.Random, turns: int) -> Conversation:
    """A conversation without tools."""
    thinking = rng.random() < THINKING_SHARE
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append(Message("system", (Text(prefixes.system_prompt(rng, rng.choice((20, 200, 1500)))),)))
    for _ in range(turns):
        question, thought, answer = _chat_turn(rng)
        messages.append(Message("user", (Text(question),)))
        messages.append(_assistant(thought if thinking else "", Text(answer)))
    return Conversation(tuple(messages), thinking=thinking)


def _request(rng: random.Random, ask: str, noise: int) -> list[Message]:
    """A user message with `noise` characters of notices before it, after it, or in a message behind it."""
    share = rng.random()
    before, after = int(noise * share), int(noise * (1 - share))
    parts = []
    while before > 60:
        size = min(before, rng.randint(200, 2000))
        parts.append(prefixes.reminder(rng, size))
        before -= size + 40
    joint = rng.choice(("", "\n", "\n\n"))
    tail = ""
    behind: list[Message] = []
    if after > 60 and rng.random() < 0.75:
        behind.append(Message("system", (Text(prefixes.environment(rng, after)),)))
    elif after > 60:
        tail = "\n\n" + prefixes.reminder(rng, after)
    text = joint.join([*parts, ask]) if joint else "".join([*parts, ("\n" if parts else "") + ask])
    return [Message("user", (Text(text + tail),)), *behind]


def _performed(exchange: Exchange, thinking: bool) -> list[Message]:
    messages = []
    for step in exchange.steps:
        messages.append(_assistant(step.thought if thinking else "", step.call))
        messages.append(Message("tool", (ToolResult("", (Text(step.result),)),)))
    messages.append(_assistant(exchange.thought if thinking else "", Text(exchange.answer)))
    return messages


def _answered(rng: random.Random) -> Exchange:
    question, thought, answer = _chat_turn(rng)
    return Exchange(question, answer, thought)


def agent(rng: random.Random, chars: int, exchanges: int) -> Conversation:
    """A conversation with tools, behind about `chars` characters that do not matter.

    The characters are shared out at random between the tool list, the system prompt and notices around the
    first request.
    """
    cuts = sorted(rng.random() for _ in range(2))
    in_tools, in_system, in_notices = chars * cuts[0], chars * (cuts[1] - cuts[0]), chars * (1 - cuts[1])
    verbose = rng.random() ** 2
    count = min(24, int(in_tools / (350 + 900 * verbose)))
    specs, box = tools.toolbox(rng, verbose if chars > 1000 else verbose * 0.3, count)
    thinking = rng.random() < THINKING_SHARE
    messages: list[Message] = []
    if in_system > 100 or rng.random() < 0.5:
        messages.append(Message("system", (Text(prefixes.system_prompt(rng, int(in_system))),)))
    for number in range(exchanges):
        exchange = tasks.exchange(rng, box) if rng.random() < 0.88 else _answered(rng)
        noise = int(in_notices) if number == 0 else (rng.randint(100, 600) if rng.random() < 0.15 else 0)
        messages += _request(rng, exchange.ask, noise)
        messages += _performed(exchange, thinking)
    return Conversation(tuple(messages), tools=specs, thinking=thinking)


def text_piece(rng: random.Random) -> str:
    """Plain text or code, for the language itself."""
    if rng.random() < 0.6:
        return corpus.prose_piece(rng)
    return corpus.code_piece(rng, rng.randint(10, 60))


def forget_thoughts(conversation: Conversation, keep_last: int) -> Conversation:
    """The conversation as clients resend it that drop the thinking of all but the last messages."""
    messages: Sequence[Message] = conversation.messages
    old = max(0, len(messages) - keep_last)
    stripped = [
        Message(m.role, tuple(b for b in m.blocks if not isinstance(b, Thinking))) if i < old else m
        for i, m in enumerate(messages)
    ]
    return Conversation(tuple(stripped), conversation.tools, conversation.tool_choice, conversation.thinking)
