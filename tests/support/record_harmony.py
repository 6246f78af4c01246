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


def main() -> None:
    harmony: Any = importlib.import_module("openai_harmony")
    encoding = harmony.load_harmony_encoding("HarmonyGptOss")

    def read(text: str) -> list[dict[str, str]]:
        tokens = encoding.encode(text, allowed_special="all")
        messages = encoding.parse_messages_from_completion_tokens(tokens, harmony.Role.ASSISTANT)
        return [
            {
                "channel": message.channel or "",
                "recipient": message.recipient or "",
                "text": "".join(part.text for part in message.content),
            }
            for message in messages
        ]

    replies = [{"text": text, "messages": read(text)} for text in completions(120)]
    FILE.write_text(json.dumps({"replies": replies}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
