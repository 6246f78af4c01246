"""Tool-using tasks: how people ask, which calls follow, what the tools answer, and the closing answer.

Knows one request at a time; `dialogues` puts them behind prefixes and into conversations.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ftagent.demo.training.tasks.create import create, create_two
from ftagent.demo.training.tasks.edit import copy_text, create_and_run, edit, list_files
from ftagent.demo.training.tasks.read import read_all, read_line, read_missing, read_value
from ftagent.demo.training.tasks.run import run
from ftagent.demo.training.tasks.steps import Exchange
from ftagent.demo.training.tools import Toolbox

Kind = Callable[[random.Random, Toolbox], Exchange]

_WEIGHTS: dict[Kind, int] = {
    create: 30,
    create_two: 4,
    run: 26,
    read_value: 22,
    read_all: 7,
    read_line: 3,
    read_missing: 2,
    edit: 6,
    list_files: 4,
    copy_text: 3,
    create_and_run: 3,
}
_NEEDS_SHELL = (run, create_and_run)
_ONLY_WRITES = (create, create_two)


def exchange(rng: random.Random, box: Toolbox) -> Exchange:
    """A random task that this tool list can do. The list can write files, by a tool or by the shell."""
    while True:
        kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if kind in _NEEDS_SHELL and not box.has("run"):
            continue
        if box.has("read") or box.has("run") or kind in _ONLY_WRITES:
            return kind(rng, box)
