"""Runs one chat template on canonical turns, and finds out by trying what the template accepts.

Knows the dict form that templates read and how templates differ. Knows no token ids.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import jinja2

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.boundaries import LeafKind, Marker, unmark
from ftagent.engine.prompt.canonical import Call, Dialect, Turn, clean, fit
from ftagent.engine.prompt.sandbox import compile_template
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.prompt.told_tools import tell_tools
from ftagent.errors import BadRequest, LoadFailed

# Words of the trial conversations, unlikely in a template's own text.
_A, _B, _C, _D, _E, _F = "zqalpha", "zqbravo", "zqcharlie", "zqdelta", "zqecho", "zqfoxtrot"
TRIAL_TOOL = ToolSpec("zqtool", "zq\u00e9", {"type": "object", "properties": {"zqkey": {"type": "string"}}})
_CALL_IDS = ("call_{}", "{:09d}")  # Mistral's templates want nine letters or digits
_TRIAL_CALLS = (
    Call("call_0", "zqtool", {"zqkey": "zq\u00e9"}),
    Call("call_1", "zqtool", {"zqother": "zq\u00e9"}),
)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a prompt is written: tools as `Writer.tools` gives them, the client's thinking switch, the degree
    of effort in the template's own words ("": not said), and `reply_begins`: end with the reply's header."""

    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool | None = None
    effort: str = ""
    reply_begins: bool = True


class Writer:
    """One template, and what is known of it.

    `dialect`: what it accepts. `markable`: kinds of leaf that it copies unchanged. `headers`: per thinking
    switch, the text that begins a reply. `closer` and `call_closer`: the text that ends an assistant turn of
    words, and one of calls. All "" if unknown. `tells_tools`: it says which tools are offered.
    """

    def __init__(self, source: str, tool_source: str | None, tokenizer: Tokenizer, example: str = "") -> None:
        """`example` is a call as the model spells it, for a template that does not say which tools there are.

        Raises LoadFailed for a template that is damaged or cannot render one user message.
        """
        self._example = ""
        self._tokenizer = tokenizer
        self._render = _compile(source)
        self._render_tools = _compile(tool_source) if tool_source else self._render
        self._invisible_guards = True
        self.dialect = Dialect()
        try:
            self.write([Turn("user", 0, _A)], Wording(), self.marker())
        except BadRequest as error:
            raise LoadFailed(f"one user message cannot be rendered ({error}); use another template") from None
        self._try_roles()
        self._try_calls()
        offered = Wording(tools=self.tools([TRIAL_TOOL]))
        self.tells_tools = TRIAL_TOOL.name in self._attempt([Turn("user", 0, _A)], offered)
        if not self.tells_tools:
            self._example = example
        self.markable = self._try_marks()
        self.headers: Mapping[bool | None, str] = {way: self._header(way) for way in (None, True, False)}
        self.closer = self._find_closer()
        self.call_closer = self._find_call_closer()

    def tools(self, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
        """`tools` in the form that templates read, added tokens in them guarded."""
        return tuple(_tool(tool, self.marker()) for tool in tools)

    def marker(self, enclosed: frozenset[int] = frozenset()) -> Marker:
        return Marker(self._tokenizer, enclosed, self._invisible_guards)

    def write(
        self, turns: Sequence[Turn], wording: Wording, marker: Marker, *, drop_thinking: bool = False
    ) -> str:
        """The template's text, with the marks that `marker` sets. Raises BadRequest when it fails."""
        messages = [self._message(turn, marker, drop_thinking) for turn in turns]
        if self._example and wording.tools:
            tell_tools(messages, wording.tools, self._example, self.dialect.leading_system)
        variables: dict[str, Any] = {
            **self._tokenizer.named_tokens,
            "messages": messages,
            "tools": list(wording.tools) or None,
            "documents": None,
            "add_generation_prompt": wording.reply_begins,
        }
        if wording.thinking is not None:
            # Two names are in use for this switch: Qwen's and GLM's, and DeepSeek's.
            variables |= {"enable_thinking": wording.thinking, "thinking": wording.thinking}
        if wording.effort:
            variables["reasoning_effort"] = wording.effort
        render = self._render_tools if wording.tools else self._render
        try:
            return render(**variables)
        except jinja2.TemplateError as error:
            reason = error.message or type(error).__name__
            raise BadRequest(f"the chat template refuses this conversation: {reason}", "messages") from None
        except Exception as error:  # noqa: BLE001 (a template is a stranger's program; any error is its own)
            reason = f"{type(error).__name__}: {error}"
            raise BadRequest(f"the chat template fails on this conversation: {reason}", "messages") from None

    def _message(self, turn: Turn, marker: Marker, drop_thinking: bool) -> dict[str, Any]:
        if turn.role == "assistant":
            # Leaves are numbered in this order; one that is left out still takes its number.
            thinking = marker.leaf("thinking", turn.message, turn.thinking)
            message: dict[str, Any] = {"role": turn.role}
            text = marker.leaf("text", turn.message, turn.content)
            message["content"] = text if text or not turn.calls or self.dialect.empty_text else None
            if turn.thinking and not drop_thinking:
                # Two names are in use for this text: most templates', and gpt-oss's.
                message |= {"reasoning_content": thinking, "thinking": thinking}
            if turn.calls:
                message["tool_calls"] = [self._call(call, turn.message, marker) for call in turn.calls]
            return message
        if turn.role == "tool":
            content = marker.leaf("result", turn.message, turn.content)
            return {"role": "tool", "content": content, "tool_call_id": turn.call_id, "name": turn.name}
        kind: LeafKind = "system" if turn.role == "system" else "user"
        return {"role": turn.role, "content": marker.leaf(kind, turn.message, turn.content, turn.edges)}

    def _call(self, call: Call, message: int, marker: Marker) -> dict[str, Any]:
        name = marker.leaf("call", message, call.name)
        arguments = _marked_json(call.arguments, message, marker)
        if not self.dialect.argument_mapping:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {"type": "function", "id": call.id, "function": {"name": name, "arguments": arguments}}

    def _attempt(self, turns: Sequence[Turn], wording: Wording | None = None) -> str:
        """The unmarked text of a trial; "" when the template fails on it."""
        try:
            return unmark(self.write(turns, wording or Wording(), self.marker())).text
        except BadRequest:
            return ""

    def _try_roles(self) -> None:
        first, user, reply = Turn("system", 0, _A), Turn("user", 1, _B), Turn("assistant", 2, _C)
        late, more = Turn("system", 3, _D), Turn("user", 4, _E)
        self.dialect = replace(
            self.dialect,
            leading_system=_in_order(self._attempt([first, user]), _A, _B),
            late_system=_in_order(self._attempt([first, user, reply, late, more]), _A, _B, _C, _D, _E),
            consecutive_users=_in_order(self._attempt([user, reply, user, more]), _B, _C, _B, _E),
        )

    def _try_calls(self) -> None:
        """How an assistant's turn with calls has to be given so that the template writes all of it."""
        plain = self.dialect
        for call_id, empty, mapping in itertools.product(_CALL_IDS, (True, False), (True, False)):
            self.dialect = replace(plain, argument_mapping=mapping, empty_text=empty, call_id=call_id)
            text = self._attempt_calls(Turn("assistant", 2, "", calls=_TRIAL_CALLS[:1]))
            # The latter is how Python writes a mapping, not JSON.
            if _in_order(text, "zqkey", _E) and "{'zqkey'" not in text:
                break
        else:
            self.dialect = plain
            return
        self._invisible_guards = r"zq\u00e9" not in text
        if self.dialect.leading_system and _A not in self.trial_call(Turn("system", 0, _A))[1]:
            self.dialect = replace(self.dialect, leading_system=False)  # lost behind a tool's result
        words = self._attempt_calls(Turn("assistant", 2, _C, calls=_TRIAL_CALLS[:1]))
        self.dialect = replace(self.dialect, text_with_calls=_in_order(words, _C, "zqkey"))
        both = self._attempt_calls(Turn("assistant", 2, _C, thinking=_D, calls=_TRIAL_CALLS[:1]))
        shown = _C in both or not self.dialect.text_with_calls
        pair = self._attempt_calls(Turn("assistant", 2, "", calls=_TRIAL_CALLS))
        self.dialect = replace(
            self.dialect,
            thinking_with_text=bool(both) and shown,
            parallel_calls=_in_order(pair, "zqkey", "zqother", _E, _F),
        )

    def _attempt_calls(self, turn: Turn) -> str:
        """The text of a trial: one user's message, `turn`, the results of its calls. "" if it fails."""
        wording = Wording(tools=self.tools([TRIAL_TOOL]))
        named = [self.dialect.call_id.format(number) for number in range(len(turn.calls))]
        calls = tuple(replace(call, id=name) for call, name in zip(turn.calls, named, strict=True))
        turn = replace(turn, calls=calls)
        results = [
            Turn("tool", 3, words, call_id=call.id, name=call.name)
            for call, words in zip(calls, (_E, _F), strict=False)
        ]
        text = self._attempt([Turn("user", 1, _B), turn, *results], wording)
        return text[text.rfind(_B) :] if text else ""  # without what is said of the tools

    def _try_marks(self) -> frozenset[LeafKind]:
        turns, wording = fit(self._call_turns(), self.dialect), Wording(tools=self.tools([TRIAL_TOOL]))
        if self.dialect.leading_system:
            turns = [Turn("system", 0, _A), *turns]
        plain = self.marker()
        try:
            base = unmark(self.write(turns, wording, plain)).text
        except BadRequest:
            turns, wording, plain = [Turn("user", 0, _A)], Wording(), self.marker()
            base = unmark(self.write(turns, wording, plain)).text

        def survives(kind: LeafKind) -> bool:
            marked = frozenset(number for number, leaf in enumerate(plain.leaves) if leaf.kind == kind)
            try:
                return unmark(self.write(turns, wording, self.marker(marked))).text == base
            except BadRequest:
                return False

        return frozenset(kind for kind in get_args(LeafKind) if survives(kind))

    def _call_turns(self) -> list[Turn]:
        """A question, a reply with thinking, words and a call, and the call's result."""
        call = replace(_TRIAL_CALLS[0], id=self.dialect.call_id.format(0))
        return [
            Turn("user", 1, _B),
            Turn("assistant", 2, _C, thinking=_D, calls=(call,)),
            Turn("tool", 3, _E, call_id=call.id, name="zqtool"),
        ]

    def trial_call(self, *before: Turn) -> tuple[str, str]:
        """Behind `before`: a question that waits for a reply, and the same with a call and its result.

        As the template writes them; "" where it fails.
        """
        user, reply, result = self._call_turns()
        turns = [*before, user, replace(reply, content="", thinking=""), result]
        wording = Wording(tools=self.tools([TRIAL_TOOL]))
        return self._attempt(turns[:-2], wording), self._attempt(turns, wording)

    def _header(self, thinking: bool | None) -> str:
        turns = [Turn("user", 0, _A)]
        whole = self._attempt(turns, Wording(thinking=thinking))
        start = self._attempt(turns, Wording(thinking=thinking, reply_begins=False))
        return whole.removeprefix(start) if start and whole.startswith(start) else ""

    def _find_closer(self) -> str:
        user, reply = Turn("user", 0, _A), Turn("assistant", 1, _B)
        last = self._attempt([user, reply], Wording(reply_begins=False)).partition(_B)[2]
        gap = self._attempt([user, reply, Turn("user", 2, _C)]).partition(_B)[2].partition(_C)[0]
        if not gap or gap.startswith(last):
            return last
        # The newest turn ends in another way than earlier ones.
        spans = self._tokenizer.added_spans(gap)
        return gap[: spans[0][1]] if spans and spans[0][0] == 0 else ""

    def _find_call_closer(self) -> str:
        wording = Wording(tools=self.tools([TRIAL_TOOL]), reply_begins=False)
        user, reply, result = self._call_turns()
        turns = [user, replace(reply, content="", thinking="")]
        last = self._attempt(turns, wording).rpartition("zq\u00e9")[2]
        turns.append(result)
        gap = self._attempt(turns, wording).rpartition("zq\u00e9")[2].partition(_E)[0]
        spans = self._tokenizer.added_spans(last)
        return last[spans[-1][0] :] if spans and gap.startswith(last) else ""


def _compile(source: str) -> Callable[..., str]:
    try:
        return compile_template(source)
    except jinja2.TemplateSyntaxError as error:
        raise LoadFailed(
            f"chat template, line {error.lineno}: {error.message}; repair or replace the template"
        ) from None


def _in_order(text: str, *words: str) -> bool:
    """Whether `words`, and no others of the trial's words more often, stand in `text` in this order."""
    position = 0
    for word in words:
        position = text.find(word, position)
        if position < 0 or text.count(word) != words.count(word):
            return False
    return True


def _tool(tool: ToolSpec, marker: Marker) -> dict[str, Any]:
    function: dict[str, Any] = {"name": marker.guard(clean(tool.name))}
    if tool.description:
        function["description"] = marker.guard(clean(tool.description))
    function["parameters"] = _guarded_json(tool.parameters, marker)
    return {"type": "function", "function": function}


def _guarded_json(value: Any, marker: Marker) -> Any:
    """`value` as plain JSON data, guarded in keys and strings. No enclosing: templates read schema words."""
    if isinstance(value, Mapping):
        return {marker.guard(clean(str(key))): _guarded_json(item, marker) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_guarded_json(item, marker) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return marker.guard(clean(str(value)))


def _marked_json(value: Any, message: int, marker: Marker) -> Any:
    """Arguments, each string a leaf."""
    if isinstance(value, Mapping):
        return {marker.guard(key): _marked_json(item, message, marker) for key, item in value.items()}
    if isinstance(value, list):
        return [_marked_json(item, message, marker) for item in value]
    return marker.leaf("argument", message, value) if isinstance(value, str) else value
