"""Random files that the tasks are about: keyed ones in many formats, blocks of text, listings."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from ftagent.demo.training import corpus
from ftagent.demo.training.values import file_name, phrase, scalar, stem, word
from ftagent.demo.training.ways import ways

_KEYS = ways(
    """
    name | port | host | version | timeout | color | colour | user | city | level | mode | size |
    limit | retries | theme | owner | project | language | title | author | secret | codename |
    password | id | status | region | debug | path | email | count | answer | password_hint |
    api_version | max_size | log_level | animal | fruit | weight | speed | license
    """
)
_EXTENSIONS = ways("ini | env | toml | yaml | yml | json | py | md | txt | cfg | conf | properties")


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file whose text sets some keys; `values` are as a person would say them."""

    name: str
    text: str
    values: Mapping[str, str]


def _key(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(_KEYS)
    return word(rng) if rng.random() < 0.7 else f"{word(rng)}_{word(rng)}"


def keys(rng: random.Random, count: int) -> list[str]:
    """Up to `count` different keys."""
    return list(dict.fromkeys([_key(rng) for _ in range(count * 2)]))[:count]


def keyed_file(rng: random.Random) -> KeyedFile:
    """An ini, env, toml, yaml, json, python, markdown or plain file with up to nine keys."""
    extension = rng.choice(_EXTENSIONS)
    values = {key: scalar(rng) for key in keys(rng, rng.randint(1, 9))}
    if extension == "json":
        text = json.dumps(values, indent=rng.choice((2, 4, None)))
        return KeyedFile(file_name(rng, extension), text + rng.choice(("", "\n")), values)
    lines = _lines(rng, extension, values)
    if extension in ("env", "py"):
        values = {_spelled(key, lines): value for key, value in values.items()}
    return KeyedFile(file_name(rng, extension), "\n".join(lines) + "\n", values)


def _lines(rng: random.Random, extension: str, values: Mapping[str, str]) -> list[str]:
    """The keys as that format writes them, with a title, a section or a comment here and there."""
    pairs = list(values.items())
    if extension in ("yaml", "yml", "txt"):
        return [f"{key}: {value}" for key, value in pairs]
    if extension == "md":
        shape = rng.choice(("- {k}: {v}", "* {k} = {v}", "The {k} is {v}.", "**{k}**: {v}"))
        return [f"# {stem(rng).capitalize()}", "", *(shape.format(k=key, v=value) for key, value in pairs)]
    if extension == "py":
        names = [key.upper() if rng.random() < 0.3 else key for key, _ in pairs]
        codes = [value if value.isdigit() else repr(value) for _, value in pairs]
        return [f"{name} = {code}" for name, code in zip(names, codes, strict=True)]
    sign = rng.choice(("=", " = ", "="))
    lines = [f"{key.upper() if extension == 'env' else key}{sign}{value}" for key, value in pairs]
    if extension in ("ini", "toml", "cfg") and rng.random() < 0.6:
        lines.insert(0, f"[{word(rng)}]")
    if rng.random() < 0.25:
        lines.insert(rng.randrange(len(lines) + 1), "# " + phrase(rng))
    return lines


def _spelled(key: str, lines: list[str]) -> str:
    """The key as the file spells it: as it is or in capitals."""
    return next((k for k in (key, key.upper()) if any(line.startswith(k) for line in lines)), key)


def block(rng: random.Random) -> str:
    """A text of several lines: code, JSON, a list or prose."""
    kind = rng.random()
    if kind < 0.4:
        return corpus.code_piece(rng, rng.randint(2, 9))
    if kind < 0.55:
        return keyed_file(rng).text.rstrip("\n")
    if kind < 0.75:
        mark = rng.choice(("- ", "* ", "", "# ", "1. "))
        return "\n".join(mark + phrase(rng) for _ in range(rng.randint(2, 6)))
    return "\n".join(rng.choice(corpus.sentences()) for _ in range(rng.randint(2, 4)))


def listing(rng: random.Random) -> list[str]:
    """One to nine names of files and folders, sorted."""
    endings = (".py", ".md", ".txt", ".json", "", "/")
    return sorted(stem(rng) + rng.choice(endings) for _ in range(rng.randint(1, 9)))
