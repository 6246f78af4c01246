"""The known reply forms by name, and which one a checkpoint teaches. Knows the tables and template text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ftagent.engine.prompt.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from ftagent.engine.prompt.families.dsml import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41
from ftagent.engine.prompt.families.glm import GLM4, GLM5
from ftagent.engine.prompt.families.harmony import HARMONY
from ftagent.engine.prompt.families.llama import LLAMA3, MISTRAL, PLAIN_FORM
from ftagent.engine.prompt.families.minimax import MINIMAX_M2
from ftagent.engine.prompt.families.qwen import QWEN3, QWEN3_5
from ftagent.engine.prompt.forms import FormTable
from ftagent.errors import ConfigError

log = logging.getLogger(__name__)

ReplyForm = Literal[
    "qwen3",
    "qwen3_5",
    "harmony",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "glm4",
    "glm5",
    "minimax_m2",
    "llama3",
    "mistral",
    "plain",
]

FORMS: Mapping[ReplyForm, FormTable] = MappingProxyType(
    {
        "qwen3": QWEN3,
        "qwen3_5": QWEN3_5,
        "harmony": HARMONY,
        "deepseek_v3": DEEPSEEK_V3,
        "deepseek_v31": DEEPSEEK_V31,
        "deepseek_v32": DEEPSEEK_V32,
        "deepseek_v4": DEEPSEEK_V4,
        "deepseek_v41": DEEPSEEK_V41,
        "glm4": GLM4,
        "glm5": GLM5,
        "minimax_m2": MINIMAX_M2,
        "llama3": LLAMA3,
        "mistral": MISTRAL,
        "plain": PLAIN_FORM,
    }
)

# Marks of a form in a chat template, the most telling first: all of a row must be there.
_MARKS: tuple[tuple[tuple[str, ...], ReplyForm], ...] = (
    (("<|channel|>", "<|message|>"), "harmony"),
    (("｜DSML｜", "<｜System｜>"), "deepseek_v41"),
    (("｜DSML｜", "function_calls"), "deepseek_v32"),
    (("｜DSML｜",), "deepseek_v4"),
    (("<｜tool▁call▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v31"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<arg_key>", "</arg_key><arg_value>"), "glm5"),
    (("<arg_key>",), "glm4"),
    (("<tool_call>", "<function="), "qwen3_5"),
    (("<tool_call>", '"name'), "qwen3"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|start_header_id|>", '"parameters"'), "llama3"),
)

# Families whose templates may say nothing of calls, by the beginning of config.json's model_type.
_FAMILIES: tuple[tuple[str, ReplyForm], ...] = (
    ("gpt_oss", "harmony"),
    ("deepseek_v41", "deepseek_v41"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek_v32", "deepseek_v32"),
    ("glm_moe_dsa", "glm5"),
    ("glm5", "glm5"),
    ("glm4", "glm4"),
    ("minimax_m2", "minimax_m2"),
)


def detect_form(chat_template: str, family: str = "", *, warn: bool = True) -> ReplyForm:
    """The form that a chat template teaches; if it teaches none, that of the family (config.json's
    `model_type`). Otherwise "plain", with a warning: calls are then text."""
    for marks, form in _MARKS:
        if all(mark in chat_template for mark in marks):
            return form
    for beginning, form in _FAMILIES:
        if family.startswith(beginning):
            return form
    if warn:
        log.warning(
            "the chat template%s teaches no form of tool calls that is known here: replies are plain text",
            f" of this {family} model" if family else "",
        )
    return "plain"


def form_table(form: ReplyForm | FormTable) -> FormTable:
    """The table of a form. A table passes through. Raises ConfigError for an unknown name."""
    if isinstance(form, FormTable):
        return form
    if form not in FORMS:
        raise ConfigError(f"unknown reply form {form!r}: known are {', '.join(sorted(FORMS))}")
    return FORMS[form]
