"""Records what the `openai-harmony` package reads and writes, as the oracle of the tests about gpt-oss.

The package needs the file `o200k_base.tiktoken`, which it would fetch; with that file in a folder:

    pip install openai-harmony
    TIKTOKEN_ENCODINGS_BASE=FOLDER python -m tests.support.record_harmony

Recorded with openai-harmony 0.0.8.
"""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "engine" / "prompt" / "fixtures" / "harmony_oracle.json"

PLACES = (
    " to={to}<|channel|>{channel} <|constrain|>json<|message|>",
    " to={to}<|channel|>{channel} json<|message|>",
    " to={to}<|channel|>{channel}<|message|>",
    "<|channel|>{channel} to={to} <|constrain|>json<|message|>",
    "<|channel|>{channel} to={to} json<|message|>",
    "<|channel|>{channel} to={to}<|message|>",
    "<|channel|>{channel} to={to} code<|message|>",
)
WORDS = ("We need `find`.", "a < b", "Line one.\nLine two.", "{not: json}", "1. x\n2. y", "안녕 🤖")
BODIES = ('{"q":"a b","limit":3}', '{"q": "</x> \\"quoted\\" \\u00e9"}', "{}", '{"q":"x",\n "limit":1}')


PROMPT_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds lines.",
            "parameters": {
                "type": "object",
                "properties": {
                    "q": {"type": "string", "description": "What to find"},
                    "limit": {"type": "integer"},
                    "kind": {"type": "string", "enum": ["a", "b"]},
                    "ids": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["q"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "description": "Says pong.", "parameters": {}}},
]
_CALL = {"type": "function", "id": "c", "function": {"name": "find", "arguments": {"q": "a", "limit": 2}}}
_ASKED = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "One?"}]
_LOOKED = {"role": "assistant", "content": "", "thinking": "We look.", "tool_calls": [_CALL]}
_FOUND = {"role": "tool", "content": "1: a", "tool_call_id": "c"}
_ANSWER = {"role": "assistant", "content": "Here.", "thinking": "Found."}
PROMPTS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    _ASKED,
    [*_ASKED, _LOOKED, _FOUND],
    [*_ASKED, _LOOKED, _FOUND, _ANSWER, {"role": "user", "content": "Two?"}],
    [*_ASKED, {**_ANSWER, "thinking": ""}, {"role": "user", "content": "Two?"}, _LOOKED, _FOUND],
]


def completions(count: int) -> list[str]:
    """Replies as models write them: analysis, a preamble, then a call or an answer."""
    draw = random.Random(16)
    found = []
    for _ in range(count):
        parts = [
            f"<|channel|>analysis<|message|>{draw.choice(WORDS)}<|end|>" for _ in range(draw.randint(0, 2))
        ]
        if draw.random() < 0.4:
            parts.append(f"<|channel|>commentary<|message|>{draw.choice(WORDS)}<|end|>")
        if draw.random() < 0.7:
            to = draw.choice(("functions.find", "functions.ping", "python"))
            channel = draw.choice(("commentary", "commentary", "analysis"))
            parts.append(draw.choice(PLACES).format(to=to, channel=channel) + draw.choice(BODIES))
        else:
            parts.append(f"<|channel|>final<|message|>{draw.choice(WORDS)}")
        found.append("<|start|>assistant".join(parts))
    return found


class Library:
    """openai-harmony, with this module's plain data in and out."""

    def __init__(self) -> None:
        self._library: Any = importlib.import_module("openai_harmony")
        self._encoding = self._library.load_harmony_encoding("HarmonyGptOss")

    def read(self, text: str) -> list[dict[str, str]]:
        """The messages of a reply."""
        tokens = self._encoding.encode(text, allowed_special="all")
        messages = self._encoding.parse_messages_from_completion_tokens(tokens, self._library.Role.ASSISTANT)
        return [
            {
                "channel": message.channel or "",
                "recipient": message.recipient or "",
                "text": "".join(part.text for part in message.content),
            }
            for message in messages
        ]

    def prompt(self, said: list[dict[str, Any]]) -> str:
        """The prompt for the next reply, with tools if some were called."""
        library, instructed = self._library, said[0]["role"] == "system"
        tools = PROMPT_TOOLS if any("tool_calls" in turn for turn in said) else []
        system = library.SystemContent.new().with_conversation_start_date("2025-06-28")
        messages = [library.Message.from_role_and_content(library.Role.SYSTEM, system)]
        developer = library.DeveloperContent.new()
        if instructed:
            developer = developer.with_instructions(said[0]["content"])
        if tools:
            functions = [tool["function"] for tool in tools]
            described = [
                library.ToolDescription.new(one["name"], one["description"], one["parameters"] or None)
                for one in functions
            ]
            developer = developer.with_function_tools(described)
        if tools or instructed:
            messages.append(library.Message.from_role_and_content(library.Role.DEVELOPER, developer))
        messages += [message for turn in said[instructed:] for message in self._spoken(turn)]
        whole = library.Conversation.from_messages(messages)
        ids = self._encoding.render_conversation_for_completion(whole, library.Role.ASSISTANT)
        return str(self._encoding.decode_utf8(ids))

    def _spoken(self, said: dict[str, Any]) -> list[Any]:
        roles = self._library.Role
        if said["role"] == "user":
            return [self._message(roles.USER, said["content"])]
        if said["role"] == "tool":
            author = self._library.Author.new(roles.TOOL, "functions.find")
            found = self._library.Message.from_author_and_content(author, said["content"])
            return [found.with_channel("commentary").with_recipient("assistant")]
        thinking = said["thinking"]
        spoken = [self._message(roles.ASSISTANT, thinking, channel="analysis")] if thinking else []
        for call in said.get("tool_calls", ()):
            body, to = json.dumps(call["function"]["arguments"]), "functions." + call["function"]["name"]
            header = {"channel": "commentary", "recipient": to, "content_type": "<|constrain|>json"}
            spoken.append(self._message(roles.ASSISTANT, body, **header))
        if said["content"]:
            spoken.append(self._message(roles.ASSISTANT, said["content"], channel="final"))
        return spoken

    def _message(self, role: Any, text: str, **header: str) -> Any:
        found = self._library.Message.from_role_and_content(role, text)
        for name, value in header.items():
            found = getattr(found, f"with_{name}")(value)
        return found


def main() -> None:
    library = Library()
    recorded = {
        "prompts": [library.prompt(said) for said in PROMPTS],
        "replies": [{"text": text, "messages": library.read(text)} for text in completions(120)],
    }
    FILE.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
