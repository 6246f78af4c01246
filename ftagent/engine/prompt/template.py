"""A conversation to the model's prompt: text, token ids, and the token position of every block edge.

Renders with the model's own chat template. Knows no HTTP and no reply; `parsers` reads what comes back.

Promises:
- The text is what the template writes, byte for byte, except that a reply which comes back unchanged keeps
  the words in which it was generated (see `echo`). Marks serve only to find blocks; where a template changes
  a marked text, that block has no boundary rather than a wrong one.
- What somebody said never becomes a control token, even if it spells one; what the template writes does.
- The same conversation gives the same ids, unless `remember` has noted how a part of it was generated. When
  a prompt's text begins with the text of an earlier one, its ids begin with that one's ids.
- `tool_choice` changes nothing here: tools stay in the prompt under "none" as well, so the cached prefix
  stays valid. Whoever samples enforces it.
- The last message may be the assistant's; the reply is then a further turn of the assistant.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftagent.conversation import Boundary, Conversation, ToolSpec
from ftagent.engine.prompt.boundaries import encode_prompt
from ftagent.engine.prompt.bpe_import import read_json
from ftagent.engine.prompt.canonical import canonical
from ftagent.engine.prompt.echo import Echo, own_words, read_reply, reply_boundaries, says_the_same
from ftagent.engine.prompt.form_registry import ReplyForm, detect_form, form_table
from ftagent.engine.prompt.memory import Asked, KnownPrefix, ReplyMemory
from ftagent.engine.prompt.proof import reads_back
from ftagent.engine.prompt.rendering import Rendering
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.prompt.told_tools import call_example
from ftagent.engine.prompt.writer import Wording, Writer
from ftagent.errors import BadRequest, LoadFailed

log = logging.getLogger(__name__)

_THINK_PAIRS = (
    *(("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]")),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
_MAX_ECHOES = 8  # remembered replies that are tried in their own words
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


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
    asked: Asked | None = field(default=None, repr=False)
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False)


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
        self._table = form_table(detect_form(self.source, warn=False))
        self._example = call_example(self._table)  # of a call, for templates that do not tell tools
        self._writer = Writer(source, tool_source, tokenizer, self._example)
        self._memory = ReplyMemory(tokenizer)
        self._warned = False  # about tools that the template leaves out

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

    def form(self, family: str = "") -> ReplyForm:
        """The form of replies to this template's prompts: what it teaches, or what `family` is known for.

        "plain", with a warning, where none is known or a call as the template writes it is not read.
        """
        form = detect_form(self.source, family)
        if form == "plain" or reads_back(form, self._writer, self._tokenizer):
            return form
        log.warning("calls as this chat template writes them are not read: replies are plain text")
        return "plain"

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt for the next reply. Raises BadRequest when the template refuses the conversation."""
        script = canonical(conversation, self._writer.dialect, self._memory)
        if not script.turns:
            raise BadRequest("the conversation is empty; send at least one message", "messages")
        if script.tools and not (self._writer.tells_tools or self._example or self._warned):
            self._warned = True
            log.warning("this model's chat template has no place for tools: it does not learn of them")
        headers = self._writer.headers
        effort = _effort(conversation, self._table.efforts, switch=headers[True] != headers[False])
        wording = Wording(self._writer.tools(script.tools), conversation.thinking, effort)
        rendering = Rendering(self._writer, script.turns, wording, len(conversation.messages))
        prefix, echo = self._said_before(conversation, rendering)
        text, start, shift = echo or (rendering.found.text, 0, 0)
        words = [(a + shift, b + shift) for a, b in rendering.found.words() if a + shift >= start]
        edges = [edge for edge in sorted(rendering.edges()) if edge.offset + shift >= start]
        header = self._writer.headers[conversation.thinking]
        encoded = encode_prompt(
            self._tokenizer,
            text,
            words,
            [end for end in _header_ends(text, header, words) if end >= start],
            [*(edge.offset + shift for edge in edges), max(_reply_begins(text, header), start)],
            prefix,
            certain=echo is not None,
        )
        *positions, reply_begins = encoded.positions
        boundaries = [*reply_boundaries(prefix, self._tokenizer)] if prefix and echo else []
        boundaries += [
            Boundary(edge.kind, position, edge.message)
            for edge, position in zip(edges, positions, strict=True)
            if position
        ]
        boundaries = list(dict.fromkeys(boundaries))
        tail = text[max(words[-1][1] if words else 0, start) :]
        return RenderedPrompt(
            text,
            tuple(encoded.ids),
            tuple(boundaries),
            _thinking_open(tail),
            script.notes,
            encoded.markup,
            reply_begins,
            Asked(rendering.found.text, len(conversation.messages), tuple(boundaries)),
            conversation.tools,
        )

    def _said_before(
        self, conversation: Conversation, rendering: Rendering
    ) -> tuple[KnownPrefix | None, Echo | None]:
        """The longest remembered prompt and reply that this prompt begins with, or can begin with once the
        reply is said in its own words."""
        text = rendering.found.text
        for known in self._memory.answers(text)[:_MAX_ECHOES]:
            if text.startswith(known.text):
                break
            if says_the_same(conversation, known.message, known.spoken):
                stop = known.token_ids[-1]
                ended = self._tokenizer.decode([stop]) if stop in self._tokenizer.eos_ids else ""
                echo = own_words(rendering, known, ended)
                if echo is not None:
                    return known, echo
        return self._memory.prefix(text), None

    def remember(
        self, prompt: RenderedPrompt, reply_ids: Sequence[int], calls: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Note the reply to `prompt`: its ids (the stop token included) and its calls (id, JSON arguments).

        When a client sends that reply back, it is rendered with these very ids as long as the text is the
        same, and calls are said as they were generated: the next prompt begins with this prompt and reply.
        """
        for call_id, arguments in calls:
            self._memory.remember_call(call_id, arguments)
        spoken = read_reply(self._table, prompt.tools, prompt.thinking_open, self._tokenizer, reply_ids)
        self._memory.remember_reply(
            prompt.text, prompt.token_ids, prompt.markup, reply_ids, prompt.asked, spoken
        )


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
