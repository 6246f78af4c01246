"""From generated text to events: thinking, content and tool calls, as early as it is safe.

`ReplyParser` runs the tables of `forms`. It keeps back only text that could still become a marker, so the
joined events never depend on how the text was cut into pieces, and it never raises over what a model wrote.

A call that is cut off (the reply ends inside it) keeps its ToolCallStart and the deltas sent so far, but its
JSON stays open and it gets no ToolCallEnd: nobody can take it for a complete call. Cut before its name was
known, it leaves nothing. White space between a marker and its neighbours is layout and is dropped; all other
text comes out. Knows no tokens, no protocol, no template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.channels import Channel
from ftagent.engine.prompt.deltas import join_deltas
from ftagent.engine.prompt.form_registry import ReplyForm, detect_form, form_table
from ftagent.engine.prompt.forms import Condition, FormTable, Rule
from ftagent.engine.prompt.headers import MAX_HEADER, header_prefix, is_words, read_header
from ftagent.engine.prompt.matching import SPACE, CompiledRule, CompiledState, Match, compile_form
from ftagent.engine.prompt.tool_calls import JsonBody, OpenCall, ToolBook
from ftagent.events import Event, TextDelta, ThinkingDelta

__all__ = ["ReplyForm", "ReplyParser", "detect_form"]

_INSIDE = ("blank", "stray", "leave")  # sinks inside a call, where no text is expected
_compile = lru_cache(maxsize=32)(compile_form)


class ReplyParser:
    """The parser of one reply.

    `form` is a name or a table of one's own; `tools` are the offered tools (none: call markers are text).
    `native_markers` are the markers that are single added tokens of the vocabulary: they count only when
    pushed with marker=True. `thinking_open`: the prompt ends inside an open thinking block.
    """

    def __init__(
        self,
        form: ReplyForm | FormTable,
        tools: Sequence[ToolSpec],
        thinking_open: bool,
        native_markers: frozenset[str] = frozenset(),
    ) -> None:
        self._table = form_table(form)
        self._alphabet, self._states = _compile(self._table, native_markers)
        self._book = ToolBook(tools)
        self._name = "thinking" if thinking_open else "content"
        self._buffer = ""  # text not understood yet
        self._events: list[Event] = []
        self._content = Channel()
        self._thinking = Channel(after_marker=True)
        self._literals: Counter[str] = Counter()  # openers that stayed text, by marker
        self._origin = "content"  # the state to go back to when no call began
        self._opener = ""  # what was consumed since that opener, to be given back in that case
        self._opened_by = ""  # the opener itself
        self._call: OpenCall | None = None
        self._json: JsonBody | None = None
        self._stray = ""
        self._cut = True
        self._started = 0
        self._calls = 0

    @property
    def content_open(self) -> bool:
        """Whether text that comes now is content, so that stop strings apply."""
        return self._name == "content"

    @property
    def calls(self) -> int:
        """Complete calls so far."""
        return self._calls

    def push(self, text: str, marker: bool = False) -> list[Event]:
        """The events that `text` makes sure. `marker`: the piece is exactly one added token."""
        clean = self._alphabet.clean(text)
        self._buffer += self._alphabet.encode(clean) if marker else clean
        self._run(final=False)
        return self._take()

    def finish(self, cut: bool = True) -> list[Event]:
        """The rest, at the end of the reply.

        `cut` False says that the model itself ended its turn: then a call that only lacks its closers is
        completed. When that is not known, the call stays incomplete.
        """
        self._cut = cut
        self._run(final=True)
        if self._json is not None:
            self._end_json(complete=not cut or self._json.complete)
        else:
            self._end_call(complete=not cut)
        if self._states[self._name].sink == "header" and not cut and is_words(self._opener):
            self._give_back()
        self._emit_content(self._content.finish())
        self._emit_thinking(self._thinking.finish())
        return self._take()

    # ---- the core: buffer and state

    def _run(self, final: bool) -> None:
        while self._buffer:
            state = self._states[self._name]
            step = self._step if self._json is None else self._step_json
            if not step(state, final):
                return

    def _step(self, state: CompiledState, final: bool) -> bool:
        """Work up to the next change of state. False when all is read or the rest must wait for more."""
        text, start = self._buffer, 0
        while start < len(text):
            at = state.next_candidate(text, start)
            if at > start and (used := self._write(state, text[start:at])) < at - start:
                self._buffer = text[start + used :]
                return True
            if at == len(text):
                break
            found, rule = self._match(state, text, at, final)
            if found.verdict != "no":
                return self._at_marker(found, rule, at)
            if final and self._cut and state.sink in _INSIDE and state.begins(text, at):
                break  # cut inside a marker of a call: nothing to deliver
            if not self._write(state, text[at]):
                self._buffer = text[at:]
                return True
            start = at + 1
        self._buffer = ""
        return False

    def _step_json(self, state: CompiledState, final: bool) -> bool:
        """The same for a JSON object: inside its strings no marker counts."""
        body, text = self._json, self._buffer
        if body is None:
            return False
        for at, char in enumerate(text):
            if char in state.firsts and not body.reader.in_string:
                found, rule = self._match(state, text, at, final)
                if found.verdict != "no":
                    self._drain(body)
                    return self._at_marker(found, rule, at)
            body.feed(self._alphabet.decode(char))
            if body.refused:
                self._buffer = text[at + 1 :]
                self._json = None
                self._give_back(body.read)
                return True
            if body.reader.done:
                self._buffer = text[at + 1 :]
                self._name = state.then
                self._end_json(complete=True)
                return True
        self._buffer = ""
        self._drain(body)
        return False

    def _match(
        self, state: CompiledState, text: str, at: int, final: bool
    ) -> tuple[Match, CompiledRule | None]:
        """The first rule whose marker stands, or may stand, at this place."""
        for rule in state.rules:
            if all(self._holds(condition, rule) for condition in rule.when):
                found = rule.match(text, at, final)
                if found.verdict == "maybe" or (found.verdict == "yes" and self._accepts(rule, found.name)):
                    return found, rule
        return Match("no"), None

    def _at_marker(self, found: Match, rule: CompiledRule | None, at: int) -> bool:
        text = self._buffer
        if found.verdict == "maybe" or rule is None:
            self._buffer = text[at:]
            return False
        self._buffer = text[found.end :]
        self._apply(rule.rule, found.name, text[at : found.end])
        return True

    def _holds(self, condition: Condition, rule: CompiledRule) -> bool:
        """Conditions on what stands before the marker."""
        match condition:
            case "native":
                return rule.native
            case "start":
                return self._channel.fresh
            case "line_start":
                return self._channel.at_line_start
            case "next_parameter":
                return self._call is not None and self._call.at_line_start
            case "tools":
                return len(self._book) > 0
            case "offered":
                return True

    def _accepts(self, rule: CompiledRule, name: str) -> bool:
        """Conditions on the captured name."""
        if "offered" in rule.when and name not in self._book:
            return False
        return "next_parameter" not in rule.when or (self._call is not None and self._call.expects(name))

    # ---- text between markers

    @property
    def _channel(self) -> Channel:
        return self._thinking if self._name == "thinking" else self._content

    def _write(self, state: CompiledState, text: str) -> int:
        """Give text to the state's sink; how many characters of it were taken.

        Fewer than all: the state changed, and the rest is to be read again.
        """
        plain = self._alphabet.decode(text)
        match state.sink:
            case "content":
                self._emit_content(self._content.write(plain))
            case "thinking":
                self._emit_thinking(self._thinking.write(plain))
            case "value" if self._call is not None:
                self._events += self._call.write(plain)
            case "stray":
                self._stray += plain
            case "header":
                used = header_prefix(text, MAX_HEADER - len(self._opener))
                self._opener += text[:used]
                if used < len(text):
                    self._give_back()
                return used
            case "blank" | "leave" | "arguments":
                gap = len(plain) - len(plain.lstrip(SPACE))
                self._opener += plain[:gap]
                if gap < len(text):
                    self._words_instead(state)
                return gap
        return len(text)

    def _words_instead(self, state: CompiledState) -> None:
        """Words come where only white space was expected; that white space belongs to them."""
        if state.sink == "blank":
            self._give_back()
            return
        gap, self._opener = self._opener, ""
        if state.sink == "leave":
            self._name = "content"
            self._emit_content(self._content.write(gap))
        elif self._call is not None:
            self._name = state.then
            self._events += self._call.begin_raw() + self._call.write(gap)

    def _give_back(self, more: str = "") -> None:
        """No call began: what was read since its opener is text of the state it stood in."""
        if self._opened_by:
            self._literals[self._opened_by] += 1
        self._name = self._origin
        text, self._opener, self._opened_by = self._opener + more, "", ""
        self._write(self._states[self._name], text)

    def _emit_content(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))

    def _emit_thinking(self, text: str) -> None:
        if text:
            self._events.append(ThinkingDelta(text))

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return join_deltas(events)

    # ---- markers

    def _apply(self, rule: Rule, name: str, raw: str) -> None:
        marker = self._alphabet.decode(raw)
        if self._states[self._name].sink == "leave":
            self._opener = ""  # white space before a marker is layout
        if rule.action == "literal" or (rule.pairs and self._literals[rule.pairs] > 0):
            self._literals[rule.pairs or rule.opens] += -1 if rule.pairs else 1
            self._write(self._states[self._name], raw)
            return
        match rule.action:
            case "message":
                self._begin_message(rule, marker)
                return
            case "header":
                self._begin_header(rule, marker)
            case "drop" | "switch":
                self._pass_by(rule, marker)
            case "open":
                self._close_call()
                self._origin = self._name if self._name == "thinking" else "content"
                self._opener = self._opened_by = marker
            case "call":
                self._close_call()
                self._begin_call(name)
            case "json_call" | "json_arguments":
                self._begin_json(rule.action == "json_call", marker)
            case "end_call":
                self._close_call()
            case "end_parameter" if self._call is not None:
                self._events += self._call.end_parameter()
            case _ if self._call is not None:
                self._events += self._call.begin_parameter(name, rule.action)
        self._name = rule.to

    def _pass_by(self, rule: Rule, marker: str) -> None:
        sink = self._states[self._name].sink
        if sink == "blank":
            self._opener += marker
        elif sink in ("header", "arguments"):
            if sink == "header" and is_words(self._opener):
                self._give_back()
            self._opener = ""
        elif rule.action == "switch":
            self._thinking.begin()
            self._content.begin()
        elif self._channel.fresh:
            self._channel.begin()

    def _begin_header(self, rule: Rule, marker: str) -> None:
        if self._states[self._name].sink != "header":
            self._close_call()
            self._origin = "thinking" if self._name == "thinking" else "content"
            self._opener, self._opened_by = "", rule.opens
        self._opener += marker

    def _begin_message(self, rule: Rule, marker: str) -> None:
        """A message begins, as its header says; what is no header was text."""
        header = read_header(self._opener)
        if header is None:
            self._give_back(marker)
        elif header.call:
            self._begin_call(header.call)
            self._name = "arguments"
        else:
            self._opener = self._opened_by = ""
            self._name = "thinking" if header.thinking else rule.to
            self._channel.begin(self._table.paragraphs)

    # ---- calls

    def _begin_call(self, name: str) -> None:
        self._thinking.begin()
        self._content.begin()
        self._origin, self._opener, self._opened_by = "content", "", ""
        self._call = OpenCall(self._started, self._book.schema(name), self._table.value_layout)
        self._started += 1
        self._events.append(self._call.start(name))

    def _begin_json(self, whole_call: bool, brace: str) -> None:
        if whole_call:
            self._close_call()
        offered = self._book if self._table.offered_only else None
        self._json = JsonBody(self._table if whole_call else None, offered)
        self._json.feed(brace)

    def _drain(self, body: JsonBody) -> None:
        """Send what the object has given so far."""
        if self._call is None and body.name is not None:
            self._begin_call(body.name)
        if self._call is not None:
            self._events += self._call.raw(body.take_arguments())

    def _close_call(self) -> None:
        if self._json is not None:
            self._end_json(complete=True)
        else:
            self._end_call(complete=True)

    def _end_json(self, complete: bool) -> None:
        body, self._json = self._json, None
        if body is None:
            return
        if complete:
            rest = body.close()
            self._drain(body)
            if self._call is None:
                self._give_back(body.read)
            else:
                self._events += self._call.raw(rest)
                self._stray += body.left_over()
        self._end_call(complete)

    def _end_call(self, complete: bool) -> None:
        call, self._call = self._call, None
        stray, self._stray = self._stray, ""
        if call is None or not complete:
            return
        self._events += call.end()
        self._calls += 1
        if stray.strip(SPACE):
            self._emit_content(self._content.write(stray))
            self._content.begin()
