"""How each family writes thinking, words and calls, put down by hand from the families' own descriptions.

Independent of the tables under test: this is what the parsers are held against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ftagent.engine.prompt.form_registry import ReplyForm
from tests.engine.prompt.replies import MARKERS, TOOLS, Setup

Made = tuple[str, Mapping[str, Any]]  # name, arguments


class Speech(NamedTuple):
    """One form. `calls` writes one or more calls; `words` a sentence before calls; `thinks` a thought."""

    form: ReplyForm
    markers: frozenset[str]
    calls: Callable[[Sequence[Made]], str]
    thinks: Callable[[str], str]
    words: Callable[[str], str]
    parallel: bool = True
    typed: bool = False  # values are bare text, so that only the schema tells their types

    @property
    def name(self) -> str:
        return self.form

    def setup(self, thinking_open: bool = False, cut: bool = True) -> Setup:
        return Setup(self.form, TOOLS, thinking_open, cut, self.markers)

    def call(self, name: str, **arguments: Any) -> str:
        return self.calls([(name, arguments)])


def bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def between_tags(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def qwen3(made: Sequence[Made]) -> str:
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in made]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def qwen3_5(made: Sequence[Made]) -> str:
    def one(name: str, arguments: Mapping[str, Any]) -> str:
        body = "".join(
            f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items()
        )
        return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in made)


def deepseek_v3(made: Sequence[Made]) -> str:
    calls = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in made
    ]
    return f"<｜tool▁calls▁begin｜>{chr(10).join(calls)}<｜tool▁calls▁end｜>"


def deepseek_v31(made: Sequence[Made]) -> str:
    calls = [
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in made
    ]
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


def dsml(block: str, gap: str = "") -> Callable[[Sequence[Made]], str]:
    mark = "｜DSML｜"

    def one(name: str, arguments: Mapping[str, Any]) -> str:
        lines = [
            f'<{mark}{gap}parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{bare(value)}</{mark}{gap}parameter>"
            for key, value in arguments.items()
        ]
        body = "\n".join(lines)
        return f'<{mark}{gap}invoke name="{name}">\n{body}\n</{mark}{gap}invoke>'

    def write(made: Sequence[Made]) -> str:
        calls = "\n".join(one(*call) for call in made)
        return f"<{mark}{gap}{block}>\n{calls}\n</{mark}{gap}{block}>"

    return write


def glm(gap: str) -> Callable[[Sequence[Made]], str]:
    def one(name: str, arguments: Mapping[str, Any]) -> str:
        body = "".join(
            f"<arg_key>{key}</arg_key>{gap}<arg_value>{bare(value)}</arg_value>{gap}"
            for key, value in arguments.items()
        )
        return f"<tool_call>{name}{gap}{body}</tool_call>"

    return lambda made: gap.join(one(*call) for call in made)


def minimax(made: Sequence[Made]) -> str:
    def one(name: str, arguments: Mapping[str, Any]) -> str:
        body = "".join(
            f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in arguments.items()
        )
        return f'<invoke name="{name}">\n{body}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(one(*call) for call in made)}</minimax:tool_call>"


def harmony(made: Sequence[Made]) -> str:
    ((name, arguments),) = made
    body = json.dumps(arguments)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}<|call|>"


def llama3(made: Sequence[Made]) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in made)


def mistral(made: Sequence[Made]) -> str:
    listed = [{"name": name, "arguments": arguments, "id": "Ab3dE6gH9"} for name, arguments in made]
    return f"[TOOL_CALLS]{json.dumps(listed)}"


_DEEPSEEK = frozenset(
    {
        *("<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "｜DSML｜"),
    }
)
_GLM = MARKERS | {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
_MINIMAX = frozenset({"<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"})
_MISTRAL = frozenset({"[TOOL_CALLS]", "[THINK]", "[/THINK]"})
_HARMONY = frozenset(
    f"<|{word}|>" for word in ("start", "end", "message", "channel", "constrain", "return", "call")
)


def deepseek_thinks(text: str) -> str:
    return f"<think>{text}</think>"


def harmony_thinks(text: str) -> str:
    return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"


def harmony_words(text: str) -> str:
    return f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"


def paragraph(text: str) -> str:
    return f"{text}\n\n"


SPEECHES = (
    Speech("qwen3", MARKERS, qwen3, between_tags, paragraph),
    Speech("qwen3_5", MARKERS, qwen3_5, between_tags, paragraph, typed=True),
    Speech("deepseek_v3", _DEEPSEEK, deepseek_v3, deepseek_thinks, str),
    Speech("deepseek_v31", _DEEPSEEK, deepseek_v31, deepseek_thinks, str),
    Speech("deepseek_v32", _DEEPSEEK, dsml("function_calls"), deepseek_thinks, paragraph),
    Speech("deepseek_v4", _DEEPSEEK, dsml("tool_calls"), deepseek_thinks, paragraph),
    Speech("deepseek_v41", _DEEPSEEK, dsml("calls", " "), deepseek_thinks, paragraph),
    Speech("glm4", _GLM, glm("\n"), lambda text: f"\n<think>{text}</think>\n", "{}\n".format, typed=True),
    Speech("glm5", _GLM, glm(""), deepseek_thinks, str, typed=True),
    Speech("minimax_m2", _MINIMAX, minimax, between_tags, "{}\n".format, typed=True),
    Speech("harmony", _HARMONY, harmony, harmony_thinks, harmony_words, parallel=False),
    Speech("mistral", _MISTRAL, mistral, "[THINK]{}[/THINK]".format, str),
    Speech("llama3", frozenset({"<|python_tag|>"}), llama3, between_tags, lambda _: ""),
)
BY_FORM = {speech.form: speech for speech in SPEECHES}
