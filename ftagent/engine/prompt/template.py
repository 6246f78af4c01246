"""A conversation to the model's prompt: text, token ids, and the token position of every block edge.

Renders with the model's own chat template. Knows no HTTP and no reply; `parsers` reads what comes back.

Promises:
- The text is what the template writes, byte for byte. Marks serve only to find blocks; where a template
  changes a marked text, that block has no boundary rather than a wrong one.
- What somebody said never becomes a control token, even if it spells one; what the template writes does.
- The same conversation gives the same ids, unless `remember` has noted how a part of it was generated. When
  a prompt's text begins with the text of an earlier one, its ids begin with that one's ids.
- `tool_choice` changes nothing here: tools stay in the prompt under "none" as well, so the cached prefix
  stays valid. Whoever samples enforces it.
- The last message may be the assistant's; the reply is then a further turn of the assistant.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ftagent.conversation import Boundary, BoundaryKind, Conversation, ToolSpec
from ftagent.engine.prompt.boundaries import Leaf, Span, Unmarked, common_prefix, encode_prompt, unmark
from ftagent.engine.prompt.bpe_import import read_json
from ftagent.engine.prompt.canonical import Turn, canonical
from ftagent.engine.prompt.form_registry import detect_form, form_table
from ftagent.engine.prompt.memory import ReplyMemory
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.prompt.writer import Wording, Writer
from ftagent.errors import BadRequest, LoadFailed

_THINK_PAIRS = (
    *(("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]")),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
_MAX_TRIALS = 24  # renderings spent to find which leaves a template changes
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NEXT_TOOL = ToolSpec("zqtool", "zqtool", {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What the model reads. `boundaries` ascend in position; see `conversation.Boundary`.

    Where a boundary stands: `user`, `tool_call` and `tool_result` where that block's own words begin (`user`
    behind each reminder of an agent as well, up to the first that is known to change); `system_end`,
    `thinking_end` and `assistant_end` where they end; `tools_end` where one more tool would be
    written; `thinking_start` where the prompt goes another way once thinking is left out, which templates do
    when a new user turn comes. The last `thinking_start` belongs to the reply: its message is the number of
    messages. A position counts the tokens that lie wholly before the edge.
    `thinking_open`: the prompt ends inside a thinking block. `notes`: one line each, for the user.
    """

    text: str
    token_ids: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    thinking_open: bool
    notes: tuple[str, ...] = ()
    markup: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # control tokens, in characters
    reply_begins: int = 0  # tokens before the markup with which the reply begins


class Edge(NamedTuple):
    """A block edge in characters of the prompt."""

    offset: int
    kind: BoundaryKind
    message: int


class ChatTemplate:
    """One model's chat template, with a memory of the replies to what it rendered. Any thread may use it.

    `source` is the template's text, for `parsers.detect_form`.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, tool_source: str | None = None) -> None:
        """`tool_source` takes the place of `source` when tools are offered, for models that ship two.

        Raises LoadFailed for a template that is damaged or cannot render one user message.
        """
        self.source = tool_source or source
        self._tokenizer = tokenizer
        self._writer = Writer(source, tool_source, tokenizer)
        self._memory = ReplyMemory(tokenizer)
        self._efforts = form_table(detect_form(self.source, warn=False)).efforts

    @classmethod
    def from_directory(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """Read `chat_template.jinja`, or `chat_template` in tokenizer_config.json.

        Families that ship none have one here, chosen by `model_type` in config.json.
        Raises LoadFailed: which file, what is wrong, what to do.
        """
        path, sources = _read_sources(directory)
        default = sources.get("default", next(iter(sources.values())))
        try:
            return cls(default, tokenizer, sources.get("tool_use"))
        except LoadFailed as error:
            raise LoadFailed(f"{path}: {error}") from None

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt for the next reply. Raises BadRequest when the template refuses the conversation."""
        script = canonical(conversation, self._writer.dialect, self._memory)
        if not script.turns:
            raise BadRequest("the conversation is empty; send at least one message", "messages")
        headers = self._writer.headers
        effort = _effort(conversation, self._efforts, switch=headers[True] != headers[False])
        wording = Wording(self._writer.tools(script.tools), conversation.thinking, effort)
        rendering = _Rendering(self._writer, script.turns, wording, len(conversation.messages))
        edges = sorted(rendering.edges())
        text, words = rendering.found.text, rendering.found.words()
        encoded = encode_prompt(
            self._tokenizer,
            text,
            words,
            _header_ends(text, self._writer.headers[conversation.thinking], words),
            [
                *(edge.offset for edge in edges),
                _reply_begins(text, self._writer.headers[conversation.thinking]),
            ],
            self._memory.prefix(text),
        )
        *positions, reply_begins = encoded.positions
        boundaries = [
            Boundary(edge.kind, position, edge.message)
            for edge, position in zip(edges, positions, strict=True)
            if position
        ]
        tail = text[words[-1][1] :] if words else text
        return RenderedPrompt(
            text,
            tuple(encoded.ids),
            tuple(dict.fromkeys(boundaries)),
            _thinking_open(tail),
            script.notes,
            encoded.markup,
            reply_begins,
        )

    def remember(
        self, prompt: RenderedPrompt, reply_ids: Sequence[int], calls: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Note the reply to `prompt`: its ids (the stop token included) and its calls (id, JSON arguments).

        When a client sends that reply back, it is rendered with these very ids as long as the text is the
        same, and calls are said as they were generated: the next prompt begins with this prompt and reply.
        """
        for call_id, arguments in calls:
            self._memory.remember_call(call_id, arguments)
        self._memory.remember_reply(prompt.text, prompt.token_ids, prompt.markup, reply_ids)


class _Rendering:
    """One conversation, rendered with and without marks."""

    def __init__(self, writer: Writer, turns: Sequence[Turn], wording: Wording, messages: int) -> None:
        self._writer = writer
        self._turns = turns
        self._wording = wording
        self._messages = messages  # of the conversation
        plain = writer.marker()
        base = unmark(writer.write(turns, wording, plain))
        self._leaves: list[Leaf] = plain.leaves
        self._inner = plain.inner
        wanted = [number for number, leaf in enumerate(plain.leaves) if leaf.kind in writer.markable]
        self._enclosed = frozenset(wanted)
        self.found = self._marked(base, wanted)
        # Some templates name the called tool before its result as well.
        self._calls = frozenset(number for number in wanted if plain.leaves[number].kind == "call")
        self._spans = self.found.once(self._calls)
        self._ordered = sorted(self._spans.values())

    def edges(self) -> Iterator[Edge]:
        """Every block edge that is known for certain, in no order."""
        yield from self._word_edges()
        yield from self._assistant_ends()
        yield from self._thinking_starts()
        yield from self._tools_end()

    def _marked(self, base: Unmarked, wanted: Sequence[int]) -> Unmarked:
        """The rendering with as many leaves enclosed as leave its text as it was."""
        found = self._enclosing(wanted, base)
        if found is not None:
            return found
        kept: list[int] = []
        open_parts = [list(wanted)]
        for _ in range(_MAX_TRIALS):
            if not open_parts:
                break
            part = open_parts.pop()
            if self._enclosing(part, base) is not None:
                kept += part
            elif len(part) > 1:
                open_parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        found = self._enclosing(kept, base)
        self._enclosed = frozenset(kept if found else ())
        return found or base

    def _enclosing(self, leaves: Sequence[int], base: Unmarked) -> Unmarked | None:
        try:
            written = self._writer.write(self._turns, self._wording, self._writer.marker(frozenset(leaves)))
        except BadRequest:
            return None  # the template took offence at the marks
        found = unmark(written)
        return found if found.text == base.text else None

    def _word_edges(self) -> Iterator[Edge]:
        said = [turn.message for turn in self._turns if turn.role != "system"]
        for number, span in self._spans.items():
            kind, message = self._leaves[number]
            if kind == "system" and message < (said[0] if said else self._messages):
                yield Edge(span.end, "system_end", message)
            elif kind in ("system", "user"):
                yield Edge(span.start, "user", message)
                yield from self._inner_edges(number)
            elif kind == "thinking":
                yield Edge(span.end, "thinking_end", message)
            elif kind == "call":
                yield Edge(span.start, "tool_call", message)
            elif kind == "result":
                yield Edge(span.start, "tool_result", message)

    def _inner_edges(self, number: int) -> Iterator[Edge]:
        """Where further blocks begin in the user's words, if they were written as they were given."""
        inner, span = self._inner.get(number), self._spans[number]
        if inner is not None and span.end - span.start == inner.length:
            message = self._leaves[number].message
            yield from (Edge(span.start + offset, "user", message) for offset in inner.edges)

    def _assistant_ends(self) -> Iterator[Edge]:
        for index, span in enumerate(self._ordered):
            kind, message = self._leaves[span.leaf]
            after = self._ordered[index + 1] if index + 1 < len(self._ordered) else None
            if kind not in ("text", "call", "argument"):
                continue
            if after is not None and self._leaves[after.leaf].message == message:
                continue
            gap = self.found.text[span.end : after.start if after else len(self.found.text)]
            closer = self._writer.closer if kind == "text" else self._writer.call_closer
            place = gap.find(closer) if closer.strip() else -1
            if place >= 0:
                yield Edge(span.end + place + len(closer), "assistant_end", message)
            elif kind == "text":
                yield Edge(span.end, "assistant_end", message)

    def _thinking_starts(self) -> Iterator[Edge]:
        """Compare with the same conversation one exchange later, when thinking is no longer shown."""
        future = self._future()
        if future is None:
            return
        spans = future.once(self._calls)
        ordered = sorted(spans.values())
        following = {span.leaf: after.start for span, after in itertools.pairwise(ordered)}
        for index in range(len(self._ordered) + 1):
            before = self._ordered[index - 1] if index else None
            after = self._ordered[index] if index < len(self._ordered) else None
            message = self._leaves[after.leaf].message if after else self._messages
            if after and not self._begins_assistant(before, after):
                continue
            start = before.end if before else 0
            gap = self.found.text[start : after.start if after else len(self.found.text)]
            if before is None:
                later = future.text[: ordered[0].start if ordered else 0]
            elif before.leaf in following:
                later = future.text[spans[before.leaf].end : following[before.leaf]]
            else:
                continue  # the leaf before is not shown in the future: nothing to compare with
            common = common_prefix(gap, later)
            thinks = after is not None and self._leaves[after.leaf].kind == "thinking"
            if thinks or common < len(gap) or after is None:
                yield Edge(start + common, "thinking_start", message)

    def _begins_assistant(self, before: Span | None, after: Span) -> bool:
        kind, message = self._leaves[after.leaf]
        first = before is None or self._leaves[before.leaf].message != message
        return first and kind in ("thinking", "text", "call")

    def _future(self) -> Unmarked | None:
        reply = Turn("assistant", self._messages, "zqreply")
        turns = [*self._turns, reply, Turn("user", self._messages + 1, "zqnext")]
        enclosed = self._enclosed | set(range(len(self._leaves), len(self._leaves) + 3))
        try:
            marker = self._writer.marker(enclosed)
            return unmark(self._writer.write(turns, self._wording, marker, drop_thinking=True))
        except BadRequest:
            return None  # not a conversation that this template accepts, so nothing is known of it

    def _tools_end(self) -> Iterator[Edge]:
        """Compare with one more tool offered. The beginning of the conversation is enough for that."""
        if not self._wording.tools:
            return
        head = list(itertools.takewhile(lambda turn: turn.role == "system", self._turns))
        head += self._turns[len(head) : len(head) + 1]
        more = replace(self._wording, tools=(*self._wording.tools, *self._writer.tools([_NEXT_TOOL])))
        try:
            now, then = (
                unmark(self._writer.write(head, wording, self._writer.marker())).text
                for wording in (self._wording, more)
            )
        except BadRequest:
            return
        common = common_prefix(now, then)
        if common < len(now) and self.found.text.startswith(now[:common]):
            yield Edge(common, "tools_end", -1)


def _header_ends(text: str, header: str, words: Sequence[tuple[int, int]]) -> list[int]:
    """Where earlier prompts of this conversation ended: after each reply header in the markup."""
    ends: list[int] = []
    if not header.strip():
        return ends
    start = text.find(header)
    while start >= 0:
        end = start + len(header)
        index = bisect_left(words, (start, start))
        touched = (index and words[index - 1][1] > start) or (index < len(words) and words[index][0] < end)
        if not touched:
            ends.append(end)
        start = text.find(header, start + 1)
    return ends


def _effort(conversation: Conversation, known: Sequence[str], switch: bool) -> str:
    """The degree of effort among those that a template knows (ascending) that is nearest to what is wanted.

    Where there is no `switch` for thinking, thinking that is off is the least effort. "" when nothing is
    wanted, or nothing known.
    """
    wanted = "none" if conversation.thinking is False and not switch else conversation.effort
    if not known or wanted not in _EFFORTS:
        return ""
    place = _EFFORTS.index(wanted)
    return min(known, key=lambda word: (abs(_EFFORTS.index(word) - place), _EFFORTS.index(word)))


def _reply_begins(text: str, header: str) -> int:
    """Where the reply's header begins, in characters: what stands before it stays when a reply is dropped."""
    return len(text) - len(header) if header and text.endswith(header) else len(text)


def _thinking_open(tail: str) -> bool:
    """Whether `tail`, the markup after the last words, opens a thinking block and leaves it open."""
    return any(tail.rfind(opener) > tail.rfind(closer) for opener, closer in _THINK_PAIRS)


def _own_source(directory: Path) -> str | None:
    """The template kept here for a family whose checkpoints have none."""
    config = directory / "config.json"
    family = read_json(config).get("model_type") if config.exists() else None
    path = Path(__file__).parent / "templates" / f"{family}.jinja"
    known = isinstance(family, str) and family.isidentifier() and path.exists()
    return path.read_text(encoding="utf-8") if known else None


def _read_sources(directory: Path) -> tuple[Path, dict[str, str]]:
    """The file that holds the templates, and the templates by name."""
    jinja = directory / "chat_template.jinja"
    if jinja.exists():
        try:
            return jinja, {"default": jinja.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise LoadFailed(f"{jinja}: cannot be read ({error}); download the file again") from None
    config = directory / "tokenizer_config.json"
    value: Any = read_json(config).get("chat_template") if config.exists() else None
    if not value and (own := _own_source(directory)) is not None:
        return directory / "config.json", {"default": own}
    if isinstance(value, str):
        return config, {"default": value}
    if isinstance(value, list) and value:
        try:
            return config, {str(entry["name"]): str(entry["template"]) for entry in value}
        except (KeyError, TypeError):
            raise LoadFailed(
                f"{config}: chat_template entries need a name and a template; repair it"
            ) from None
    raise LoadFailed(
        f"{directory}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
        "use a model that was trained for chat"
    )
