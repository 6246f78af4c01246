"""Starts the chat screen on a scripted engine, for tests that look at it in a real terminal.

    python -m tests.support.chat_runner DIRECTORY [--resume ID] [--embedded]

The first word of the prompt chooses the answer: `count N` streams N words at 100 a second, `think` thinks
first, `hostile` tries to escape, `fail` breaks midway, `long` is refused; anything else is answered by what
the engine was sent. Exits with run_chat's code.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest, ModelInfo
from ftagent.errors import PromptTooLong
from ftagent.events import Failed, Finished, Progress, TextDelta, ThinkingDelta, Usage
from ftagent.sessions import SessionStore
from ftagent.tui.chat import run_chat
from tests.support.scripted import Script, ScriptedEngine

HOSTILE = (
    "before\n\n\x1b]0;owned\x07\x1b[2J\x9b31mred\x1b[?1049l\u202e\n\n"
    "[click](file:///etc/passwd) ![img](http://x/y.png) <b>bold</b> <http://auto.link>\n\n"
    "<script>alert(1)</script>\n\n[hidden]: http://reference\n\n&#27;[31m &#x202e; after"
)


def script_for(request: GenerateRequest) -> Script:
    """The answer to `request`, as the module docstring says."""
    assert isinstance(request.prompt, Conversation)
    prompt = request.prompt.messages[-1].text
    word, _, rest = prompt.partition(" ")
    usage = Usage(prompt_tokens=120, completion_tokens=7, cached_tokens=96, reasoning_tokens=3)
    done = Finished("stop", usage)
    match word:
        case "count":
            return [*_words(int(rest)), done]
        case "think":
            return [ThinkingDelta("deep "), ThinkingDelta("thoughts"), TextDelta("So be it."), done]
        case "hostile":
            return [TextDelta(HOSTILE), done]
        case "fail":
            return [TextDelta("partial"), Failed("the worker died")]
        case "long":
            return [PromptTooLong(9000, 8192)]
        case "wait":
            return [Progress("prefill", 512, 2048), 3600.0]
        case _:
            turns = len(request.prompt.messages)
            return [
                TextDelta(f"You said **{prompt}**, message {turns}, thinking {request.prompt.thinking}."),
                done,
            ]


def _words(count: int) -> Iterator[TextDelta | float]:
    for number in range(1, count + 1):
        yield TextDelta(f"word{number}{'.' if number % 60 else '.' + chr(10) * 2} ")
        yield 0.01


class EmbeddedEngine(ScriptedEngine):
    @property
    def model(self) -> ModelInfo:
        return dataclasses.replace(super().model, id="demo", embedded=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--resume")
    parser.add_argument("--embedded", action="store_true")
    arguments = parser.parse_args()
    engine = (EmbeddedEngine if arguments.embedded else ScriptedEngine)(script_for)
    return run_chat(engine, store=SessionStore(arguments.directory), resume=arguments.resume)


if __name__ == "__main__":
    sys.exit(main())
