"""Tool lists as agents offer them: the few that matter, under many names, among many that do not.

Each call returns ToolSpecs plus a `Toolbox` that says how each ability is spelled in this list.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ftagent.conversation import ToolCall, ToolSpec
from ftagent.demo.training import corpus
from ftagent.demo.training.ways import ways

Ability = Literal["write", "read", "run", "edit", "list"]

# Names, parameters and descriptions as agents spell them, per ability.
_NAMES: Mapping[Ability, tuple[str, ...]] = {
    "write": ways("Write|write|write_file|create_file|WriteFile|save_file|file_write|write_to_file"),
    "read": ways("Read|read|read_file|ReadFile|view_file|open_file|file_read|cat_file"),
    "run": ways("Bash|bash|shell|run_command|exec_command|run_shell_command|execute|terminal"),
    "edit": ways("Edit|edit|str_replace|edit_file|replace|replace_in_file|EditFile"),
    "list": ways("LS|ls|list|list_directory|list_dir|list_files|ListFiles"),
}
_PARAMETERS: Mapping[Ability, tuple[str, ...]] = {
    "write": ("path", "content"),
    "read": ("path",),
    "run": ("command",),
    "edit": ("path", "old", "new"),
    "list": ("folder",),
}
_ABOUT: Mapping[Ability, tuple[str, ...]] = {
    "write": ways(
        """
        Writes a file to the local filesystem. | Create a file with the given content. | Write content
        to a file, replacing it.
        """
    ),
    "read": ways(
        """
        Reads a file from the local filesystem. | Read the contents of a file. | Returns the text of a
        file.
        """
    ),
    "run": ways(
        """
        Executes a shell command and returns its output. | Run a command in the terminal. | Runs a bash
        command.
        """
    ),
    "edit": ways(
        """
        Performs exact string replacement in a file. | Replace text in a file. | Edit a file by
        replacing one string with another.
        """
    ),
    "list": ways("Lists files and directories. | List the entries of a directory."),
}
_PATH = ("file_path", "path", "filePath", "filename", "file")
_CONTENT = ("content", "text", "contents", "data", "file_text")
_COMMAND = ("command", "cmd", "script", "command_line")
_OLD_NEW = (
    *(("old_string", "new_string"), ("oldText", "newText"), ("old_str", "new_str")),
    *(("oldString", "newString"), ("old", "new")),
)
_FOLDER = ("path", "directory", "dir_path", "folder")
_CLAUDE_CODE = {
    "path": "file_path",
    "content": "content",
    "command": "command",
    "old": "old_string",
    "new": "new_string",
}
_OPTIONAL = ways("timeout|offset|limit|description|replace_all|workdir|pages|background")
_VERBS = ways(
    """
    Schedule | Search | Report | Open | Fetch | Plan | Notify | Track | Query | Sync | Agent | Skill |
    Workflow | Task | Todo | Web
    """
)
_TYPES = ("string", "integer", "boolean", "number", "array", "object")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """How this tool list spells each ability; an absent ability is None."""

    names: Mapping[Ability, str]
    keys: Mapping[str, str]  # "path", "content", "command", "old", "new", "folder"

    def has(self, ability: Ability) -> bool:
        return ability in self.names

    def call(self, ability: Ability, **values: str) -> ToolCall:
        """A call of `ability`; keyword names are those of `keys`."""
        return ToolCall("", self.names[ability], {self.keys[key]: value for key, value in values.items()})


def _word(rng: random.Random) -> str:
    return rng.choice(corpus.words())


def _words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(_word(rng) for _ in range(rng.randint(low, high)))


def description(rng: random.Random, ability: Ability | None, verbose: float) -> str:
    """A tool description: a sentence on the ability, then up to several unrelated ones."""
    parts = [rng.choice(_ABOUT[ability])] if ability else []
    parts += [
        rng.choice(corpus.sentences()) if rng.random() < 0.8 else distraction(rng)
        for _ in range(int(rng.expovariate(1.0) * 6 * verbose))
    ]
    return rng.choice((" ", "\n", "\n- ", "\n\n")).join(parts) or rng.choice(corpus.sentences())


def distraction(rng: random.Random) -> str:
    """A sentence that looks like a task but is part of an explanation."""
    name = f"{_word(rng)}.{rng.choice(('md', 'txt', 'py', 'json'))}"
    return rng.choice(
        (
            f"For example, to create a file {name}, write its content with this tool.",
            f"Never create {name} unless the user asks for it.",
            f"Use it to run a command such as `{_word(rng)} --{_word(rng)}`.",
            f"IMPORTANT: read {name} before you edit it.",
            "Do what has been asked; nothing more, nothing less.",
            f"Example: user: run the tests. assistant: runs `{_word(rng)}`.",
            f"If the user asks for {_word(rng)}, tell them about {_word(rng)}.",
        )
    )


def _schema(properties: dict[str, Any], required: list[str], rng: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    if rng.random() < 0.3:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return schema


def _parameter(rng: random.Random, kind: str, verbose: float) -> dict[str, Any]:
    value: dict[str, Any] = {"type": kind}
    if rng.random() < 0.8 * max(0.3, verbose):
        value = {
            "description": rng.choice(corpus.sentences()) if rng.random() < 0.5 else _words(rng, 3, 9),
            **value,
        }
    if kind == "array":
        value["items"] = {"type": "string"}
    if kind == "string" and rng.random() < 0.15:
        value["enum"] = [rng.choice(corpus.words()) for _ in range(rng.randint(2, 5))]
    return value


def irrelevant_tool(rng: random.Random, verbose: float) -> ToolSpec:
    """A tool that no task of ours needs."""
    name = rng.choice(_VERBS) + rng.choice(corpus.words()).capitalize() * (rng.random() < 0.8)
    if rng.random() < 0.3:
        name = f"{rng.choice(corpus.words())}_{rng.choice(corpus.words())}"
    keys = {
        rng.choice(corpus.words()): _parameter(rng, rng.choice(_TYPES), verbose)
        for _ in range(rng.randint(0, 6))
    }
    required = [key for key in keys if rng.random() < 0.4]
    return ToolSpec(name, description(rng, None, verbose), _schema(keys, required, rng))


def _ability_tool(rng: random.Random, ability: Ability, keys: Mapping[str, str], verbose: float) -> ToolSpec:
    wanted = _PARAMETERS[ability]
    properties = {keys[key]: _parameter(rng, "string", verbose) for key in wanted}
    for value in properties.values():
        value.pop("enum", None)
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        value = _parameter(rng, rng.choice(("integer", "boolean", "string")), verbose)
        properties[rng.choice(_OPTIONAL)] = value
    if rng.random() < 0.15:
        properties = dict(rng.sample(list(properties.items()), len(properties)))
    return ToolSpec(
        "", description(rng, ability, verbose), _schema(properties, [keys[key] for key in wanted], rng)
    )


def _keys(rng: random.Random) -> tuple[dict[str, str], int]:
    """How parameters are spelled, and the number of the style in which most tools are."""
    path = rng.choice(_PATH)
    old, new = rng.choice(_OLD_NEW)
    content, command, folder = rng.choice(_CONTENT), rng.choice(_COMMAND), rng.choice(_FOLDER)
    keys = {"path": path, "content": content, "command": command, "old": old, "new": new, "folder": folder}
    style = rng.randrange(8) if rng.random() < 0.4 else 0
    return (keys | _CLAUDE_CODE if rng.random() < 0.3 else keys), style


def _name(rng: random.Random, ability: Ability, style: int) -> str:
    names = _NAMES[ability]
    return names[style % len(names)] if rng.random() < 0.7 else rng.choice(names)


def toolbox(rng: random.Random, verbose: float, irrelevant: int) -> tuple[tuple[ToolSpec, ...], Toolbox]:
    """A tool list with up to five abilities and `irrelevant` other tools, in some order.

    `verbose` 0..1 sets how long descriptions are. Most lists spell their names in one style, Claude Code's
    most often. Every list can write files, by a tool or by the shell.
    """
    keys, style = _keys(rng)
    have: list[Ability] = [
        ability for ability in _NAMES if rng.random() < (0.55 if ability == "list" else 0.93)
    ]
    if rng.random() < 0.06:
        have = ["run"]
    if not ({"write", "run"} & set(have)):
        have.append("run")
    names = {ability: _name(rng, ability, style) for ability in have}
    specs = []
    for ability in have:
        spec = _ability_tool(rng, ability, keys, verbose)
        specs.append(ToolSpec(names[ability], spec.description, spec.parameters))
    specs += [irrelevant_tool(rng, verbose) for _ in range(irrelevant)]
    if rng.random() < 0.5:
        specs.sort(key=lambda spec: spec.name)
    else:
        rng.shuffle(specs)
    return tuple(specs), Toolbox(names, keys)
