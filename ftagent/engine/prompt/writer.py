"""Runs one chat template on canonical turns, and finds out by trying what the template accepts.

Knows the dict form that templates read and how templates differ. Knows no token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import jinja2

from ftagent.conversation import ToolSpec
from ftagent.engine.prompt.boundaries import LeafKind, Marker, unmark
from ftagent.engine.prompt.canonical import Call, Dialect, Turn, clean
from ftagent.engine.prompt.sandbox import compile_template
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.errors import BadRequest, LoadFailed

# Words of the trial conversations, unlikely in a template's own text.
_A, _B, _C, _D, _E = "zqalpha", "zqbravo", "zqcharlie", "zqdelta", "zqecho"
_TRIAL_TOOL = ToolSpec("zqtool", "zq\u00e9", {"type": "object", "properties": {"zqkey": {"type": "string"}}})


@dataclass(frozen=True, slots=True)
class Wording:
    """How a prompt is written: tools as `Writer.tools` gives them, the client's thinking switch, and
    `reply_begins`: end with the reply's header."""

    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool | None = None
    reply_begins: bool = True


class Writer:
    """One template, and what is known of it.

    `dialect`: what it accepts. `markable`: kinds of leaf that it copies unchanged. `headers`: per thinking
    switch, the text that begins a reply. `closer`: the text that ends an assistant turn. Both "" if unknown.
    """

    def __init__(self, source: str, tool_source: str | None, tokenizer: Tokenizer) -> None:
        """Raises LoadFailed for a template that is damaged or cannot render one user message."""
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
        self.markable = self._try_marks()
        self.headers: Mapping[bool | None, str] = {way: self._header(way) for way in (None, True, False)}
        self.closer = self._find_closer()

    def tools(self, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
        """`tools` in the form that templates read, added tokens in them guarded."""
        return tuple(_tool(tool, self.marker()) for tool in tools)

    def marker(self, enclosed: frozenset[int] = frozenset()) -> Marker:
        return Marker(self._tokenizer, enclosed, self._invisible_guards)

    def write(
        self, turns: Sequence[Turn], wording: Wording, marker: Marker, *, drop_thinking: bool = False
    ) -> str:
        """The template's text, with the marks that `marker` sets. Raises BadRequest when it fails."""
        variables: dict[str, Any] = {
            **self._tokenizer.named_tokens,
            "messages": [self._message(turn, marker, drop_thinking) for turn in turns],
            "tools": list(wording.tools) or None,
            "documents": None,
            "add_generation_prompt": wording.reply_begins,
        }
        if wording.thinking is not None:
            # Two names are in use for this switch: Qwen's and GLM's, and DeepSeek's.
            variables |= {"enable_thinking": wording.thinking, "thinking": wording.thinking}
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
            message["content"] = marker.leaf("text", turn.message, turn.content)
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
        return {"role": turn.role, "content": marker.leaf(kind, turn.message, turn.content)}

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
        """Whether arguments are read as a mapping, and whether JSON comes out in plain characters."""
        wording = Wording(tools=self.tools([_TRIAL_TOOL]))
        turns = _call_turns()
        text = self._attempt(turns, wording)
        if not text or "{'zqkey'" in text:  # the latter is how Python writes a mapping, not JSON
            self.dialect = replace(self.dialect, argument_mapping=False)
            text = self._attempt(turns, wording)
        self._invisible_guards = r"zq\u00e9" not in text

    def _try_marks(self) -> frozenset[LeafKind]:
        turns, wording = _call_turns(), Wording(tools=self.tools([_TRIAL_TOOL]))
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

    def _header(self, thinking: bool | None) -> str:
        turns = [Turn("user", 0, _A)]
        whole = self._attempt(turns, Wording(thinking=thinking))
        start = self._attempt(turns, Wording(thinking=thinking, reply_begins=False))
        return whole.removeprefix(start) if start and whole.startswith(start) else ""

    def _find_closer(self) -> str:
        text = self._attempt([Turn("user", 0, _A), Turn("assistant", 1, _B)], Wording(reply_begins=False))
        return text.partition(_B)[2]


def _compile(source: str) -> Callable[..., str]:
    try:
        return compile_template(source)
    except jinja2.TemplateSyntaxError as error:
        raise LoadFailed(
            f"chat template, line {error.lineno}: {error.message}; repair or replace the template"
        ) from None


def _call_turns() -> list[Turn]:
    call = Call("call_0", "zqtool", {"zqkey": "zq\u00e9"})
    return [
        Turn("user", 1, _B),
        Turn("assistant", 2, _C, thinking=_D, calls=(call,)),
        Turn("tool", 3, _E, call_id="call_0", name="zqtool"),
    ]


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
