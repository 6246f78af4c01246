"""Conversations of toy tokens that are edited as agents edit them, and what may be reused of earlier ones.

`Book` is the brute-force twin: it remembers the ids of every request and where it must have left an anchor,
and finds by comparing all of them what the next one may resume.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from ftagent.conversation import Boundary, BoundaryKind
from ftagent.engine.context.marks import choose_marks, stable_head
from ftagent.engine.job import Job
from tests.support.toy import VOCAB

Kind = Literal["system", "tools", "user", "thinking", "call", "result"]

EDGES: dict[Kind, BoundaryKind] = {
    "user": "user",
    "thinking": "thinking_start",
    "call": "tool_call",
    "result": "tool_result",
}
ENDS: dict[Kind, BoundaryKind] = {
    "system": "system_end",
    "tools": "tools_end",
    "thinking": "thinking_end",
    "call": "assistant_end",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A block of a conversation as its template writes it."""

    kind: Kind
    tokens: tuple[int, ...]


def new_part(kind: Kind, dice: random.Random, low: int = 4, high: int = 40) -> Part:
    return Part(kind, tuple(dice.choices(range(VOCAB), k=dice.randrange(low, high))))


def render(parts: list[Part]) -> tuple[list[int], list[Boundary]]:
    tokens: list[int] = []
    edges: list[Boundary] = []
    for number, part in enumerate(parts):
        if part.kind in EDGES and tokens:
            edges.append(Boundary(EDGES[part.kind], len(tokens), number))
        tokens += part.tokens
        if part.kind in ENDS:
            edges.append(Boundary(ENDS[part.kind], len(tokens), number))
    edges.append(Boundary("thinking_start", len(tokens), len(parts)))
    return tokens, edges


def new_job(parts: list[Part], reply: int) -> Job:
    tokens, edges = render(parts)
    marks = choose_marks(edges, len(tokens))
    return Job("toy", tokens, len(tokens) + reply, marks, stable_head(edges, len(tokens)))


def common(first: list[int], second: list[int]) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


@dataclass
class Book:
    """What has been computed so far: ids, and the positions at which a state must have been kept."""

    stateful: bool
    entries: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def note(self, job: Job, computed: int) -> None:
        """A request has ended, or been cancelled, with so many tokens computed."""
        kept = [mark for mark in job.marks if job.cached < mark <= computed]
        if computed:
            self.entries.append((job.tokens[:computed], [*kept, computed]))

    def reusable(self, prompt: list[int]) -> tuple[int, int]:
        """Tokens that a new request must resume at least, and those it has in common with an earlier one."""
        best = most = 0
        for tokens, kept in self.entries:
            shared = min(common(tokens, prompt), len(prompt) - 1)
            most = max(most, shared)
            places = [shared] if not self.stateful else [place for place in kept if place <= shared]
            best = max([best, *places])
        return best, most


@dataclass(slots=True)
class Talk:
    """One agent's conversation, edited as agents do."""

    parts: list[Part]

    @classmethod
    def start(cls, dice: random.Random, system: Part, tools: Part) -> Talk:
        return cls([system, tools, new_part("user", dice)])

    def hear(self, reply: list[int], dice: random.Random) -> None:
        """Take a reply over: some thinking, then a call or an answer."""
        cut = dice.randrange(len(reply)) if reply else 0
        if cut:
            self.parts.append(Part("thinking", tuple(reply[:cut])))
        if reply[cut:]:
            self.parts.append(Part("call", tuple(reply[cut:])))

    def edit(self, dice: random.Random) -> str:
        """Make the next prompt out of the last one; says how."""
        way = dice.choice(("say", "say", "tool", "tool", "result", "compact", "strip"))
        results = [index for index, part in enumerate(self.parts) if part.kind == "result"]
        if way == "result" and results:
            self.parts[dice.choice(results)] = new_part("result", dice, 2, 6)
        elif way == "compact" and len(self.parts) > 8:
            begin = dice.randrange(2, 5)
            end = dice.randrange(begin + 1, len(self.parts) - 1)
            self.parts[begin:end] = [new_part("user", dice)]
        elif way == "strip":
            self.parts = [part for part in self.parts if part.kind != "thinking"]
        if way == "tool":
            self.parts.append(new_part("result", dice))
        else:  # a new user turn, with which templates leave earlier thinking out
            self.parts = [part for part in self.parts if part.kind != "thinking"]
            self.parts.append(new_part("user", dice))
        return way

    def fork(self, dice: random.Random) -> Talk:
        """A subagent that begins as this conversation does."""
        kept = dice.randrange(2, len(self.parts) + 1)
        return Talk([*self.parts[:kept], new_part("user", dice)])
