"""One request with everything the assistant does for it, and the steps that many requests share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ftagent.conversation import ToolCall
from ftagent.demo.training.commands import Command
from ftagent.demo.training.tasks import results
from ftagent.demo.training.tools import Toolbox


@dataclass(frozen=True, slots=True)
class Step:
    """One call with the thought before it and the result after it."""

    thought: str
    call: ToolCall
    result: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, the calls it takes, and the answer that ends the turn."""

    ask: str
    answer: str
    thought: str = ""
    steps: tuple[Step, ...] = ()


def _heredoc(name: str, text: str) -> str:
    if "\n" not in text and "'" not in text:
        return f"printf '%s\\n' '{text}' > {name}"
    return f"cat > {name} <<'EOF'\n{text}\nEOF"


def write_step(rng: random.Random, box: Toolbox, name: str, text: str) -> Step:
    """Write a file, by the shell where there is no tool for it."""
    if box.has("write"):
        thought = f"Create {name} with {box.names['write']}."
        return Step(thought, box.call("write", path=name, content=text), results.wrote(rng, name, text))
    thought = f"Create {name} with {box.names['run']}."
    call = box.call("run", command=_heredoc(name, text))
    return Step(thought, call, results.printed(rng, Command("", "")))


def read_step(rng: random.Random, box: Toolbox, name: str, text: str) -> Step:
    """Read a file, by the shell where there is no tool for it."""
    if box.has("read"):
        thought = f"Read {name} with {box.names['read']}."
        return Step(thought, box.call("read", path=name), results.shown(rng, text))
    thought = f"Read {name} with {box.names['run']}."
    call = box.call("run", command=f"cat {name}")
    return Step(thought, call, results.printed(rng, Command("", text.rstrip("\n"))))


def run_step(rng: random.Random, box: Toolbox, command: Command) -> Step:
    """Run a shell command."""
    thought = f"Run the command with {box.names['run']}."
    return Step(thought, box.call("run", command=command.line), results.printed(rng, command))
