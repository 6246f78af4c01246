"""Random names, texts, files and commands that the tasks are about. Seeded; knows no tools."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from ftagent.demo.training import corpus

_EXTENSIONS = ("txt", "md", "py", "json", "ini", "toml", "yaml", "cfg", "csv", "log", "sh", "html", "js", "env", "conf", "rst", "c", "out")
_FOLDERS = ("src", "docs", "data", "lib", "tests", "build", "notes", "app", "scripts", "etc", "config")
_NAMES = ("Ada", "Alan", "Grace", "Linus", "Barbara", "Edsger", "Ken", "Margaret", "Tim", "Radia", "Dennis", "Frances", "Guido", "Hedy", "Ivan", "Joan", "Katherine", "Lars", "Mina", "Niklaus", "Olga", "Paul", "Rosa", "Sofia", "Tomas", "Uma", "Vera", "Wei", "Yuki", "Zoe")
_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white", "violet", "teal", "crimson", "amber", "silver", "gold", "cyan", "magenta", "indigo", "turquoise", "brown", "pink")
_CITIES = ("Paris", "Tokyo", "Oslo", "Lima", "Cairo", "Berlin", "Madrid", "Delhi", "Quito", "Rome", "Vienna", "Prague", "Seoul", "Dublin", "Lisbon", "Athens", "Havana", "Nairobi", "Warsaw", "Zurich")
_GREETINGS = ("hello", "Hello, world!", "hello world", "Hi there!", "Hello from ftagent", "test", "This is a test.", "OK", "done", "ready", "yes", "foo", "foo bar", "lorem ipsum", "TODO", "it works", "ping", "42")


def word(rng: random.Random) -> str:
    """A word: mostly a common one, sometimes a rare one, sometimes one that does not exist."""
    kind = rng.random()
    if kind < 0.6:
        ranked = corpus.words()
        return ranked[int(len(ranked) * rng.random() ** 1.5)]
    if kind < 0.8:
        return rng.choice(corpus.rare_words())
    return coined(rng)


def coined(rng: random.Random) -> str:
    """A word that does not exist: it can only be copied, never guessed."""
    made = "".join(rng.choice(corpus.fragments()) for _ in range(rng.choice((1, 2, 2, 3))))[:14]
    return made if rng.random() < 0.3 else made.lower()


def token(rng: random.Random) -> str:
    """A string that nobody could guess: letters, digits, mixed case or hexadecimal."""
    alphabet = rng.choice((string.ascii_lowercase, string.ascii_letters + string.digits, string.digits, "0123456789abcdef", string.ascii_uppercase))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 12)))


def stem(rng: random.Random) -> str:
    parts = [token(rng).lower() if rng.random() < 0.2 else word(rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    name = rng.choice(("_", "-", "", "_")).join(parts)
    if rng.random() < 0.15:
        name += str(rng.randint(1, 99))
    if rng.random() < 0.12:
        name = name.upper() if rng.random() < 0.5 else name.capitalize()
    return name


def file_name(rng: random.Random, extension: str | None = None) -> str:
    """A path: mostly a bare name, sometimes in a folder or absolute, sometimes without an extension."""
    name = stem(rng)
    if extension or rng.random() < 0.95:
        name += "." + (extension or (rng.choice(("txt", "md", "py", "json")) if rng.random() < 0.5 else rng.choice(_EXTENSIONS)))
    if rng.random() < 0.15:
        name = f"{rng.choice(_FOLDERS) if rng.random() < 0.7 else word(rng)}/{name}"
    if rng.random() < 0.06:
        name = f"/{rng.choice(('tmp', 'home', 'work', 'srv', 'var'))}/{word(rng)}/{name}"
    elif rng.random() < 0.04:
        name = "./" + name
    return name


_LINES = (
    "print('{a} {b}')", 'print("{a}")', "{a} = {n}", "def {a}({b}): return {b} + {n}", "import {a}", "console.log('{a}');",
    "#!/bin/bash", "<h1>{A} {b}</h1>", '{{"{a}": {n}}}', "SELECT {a} FROM {b};", "echo {a}", "{a}: [{n}, {m}]", "return {a}.{b}()",
    "Dr. {A} {b}, room {n}", "{a}, {b}, {c}", "- {a} {b}", "* {a}", "# {A}", "{A}: {b} {c}", "{a}={b}", "{n} {a}s and {m} {b}s",
    "buy {a}, call {B}, {c} the {d}", "{A} isn't {b}", "don't {a} the {b}", "The {a} {b} {c} over the {d}.", "Dear {A}, {b} {c}!",
    "{a}@{b}.com", "https://{a}.{b}/{c}", "v{n}.{m}.0", "{a} ({b})", "{a} & {b}", "{a}/{b}", "[{a}]", "{A}{B}{C}", "{a}_{b}_{c}", "{n}%",
    "{A} {b} at {n}:{m}", "€{n}.{m}", "naïve {a} café", "{a} → {b}", "{a}... {b}?!", "const {a} = {n};", "let {a} = '{b}'", "all {a} by {B}",
)  # fmt: skip


def line(rng: random.Random) -> str:
    """One line of a kind that files often hold: code, prices, names, punctuation of every sort."""
    names = {letter: word(rng) for letter in "abcd"}
    capitals = {letter.upper(): value.capitalize() for letter, value in names.items()}
    return rng.choice(_LINES).format(**names, **capitals, n=rng.randint(0, 99), m=rng.randint(0, 999))


def phrase(rng: random.Random) -> str:
    """A short text on one line."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(_GREETINGS)
    if kind < 0.4:
        text = " ".join(word(rng) for _ in range(rng.randint(1, 7)))
    elif kind < 0.46:
        text = f"{rng.choice(_NAMES)} {rng.choice(('lives in', 'likes', 'went to', 'called from', 'wrote to'))} {rng.choice(_CITIES)}"
    elif kind < 0.54:
        text = " ".join(coined(rng) for _ in range(rng.randint(1, 4)))
    elif kind < 0.62:
        text = token(rng)
    elif kind < 0.66:
        text = f"{word(rng)} {rng.choice(('=', ':', '->', '=>', '-', '+'))} {rng.choice((token, word))(rng)}"
    elif kind < 0.71:
        text = str(rng.choice((rng.randint(0, 99), rng.randint(100, 99999), round(rng.random() * 100, 2))))
    elif kind < 0.88:
        return line(rng)
    else:
        return rng.choice(corpus.sentences()).replace('"', "").replace("`", "")[:120]
    if rng.random() < 0.35:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.35:
        text += rng.choice(".!.!?")
    return text


def scalar(rng: random.Random) -> str:
    """A value such as a configuration file holds."""
    pick: tuple[Callable[[], str], ...] = (
        lambda: str(rng.randint(0, 65535)),
        lambda: str(rng.randint(1, 99)),
        lambda: rng.choice(("true", "false", "yes", "no", "on", "off")),
        lambda: token(rng),
        lambda: word(rng),
        lambda: rng.choice(_COLOURS),
        lambda: rng.choice(_NAMES),
        lambda: rng.choice(_CITIES),
        lambda: f"{rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
        lambda: f"{word(rng)}-{word(rng)}",
        lambda: f"{word(rng)}.example.com",
        lambda: f"/{word(rng)}/{word(rng)}",
    )
    return rng.choice(pick)()


_KEYS = ("name", "port", "host", "version", "timeout", "color", "colour", "user", "city", "level", "mode", "size", "limit", "retries", "theme", "owner", "project", "language", "title", "author", "secret", "codename", "password", "id", "status", "region", "debug", "path", "email", "count", "answer", "password_hint", "api_version", "max_size", "log_level", "animal", "fruit", "weight", "speed", "license")


def keys(rng: random.Random, count: int) -> list[str]:
    pool = [rng.choice(_KEYS) if rng.random() < 0.6 else (word(rng) if rng.random() < 0.7 else f"{word(rng)}_{word(rng)}") for _ in range(count * 2)]
    return list(dict.fromkeys(pool))[:count]


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file whose text sets some keys; `values` are as a person would say them."""

    name: str
    text: str
    values: dict[str, str]


def keyed_file(rng: random.Random) -> KeyedFile:
    """An ini, env, toml, yaml, json, python, markdown or plain file with two to nine keys."""
    extension = rng.choice(("ini", "env", "toml", "yaml", "yml", "json", "py", "md", "txt", "cfg", "conf", "properties"))
    values = {key: scalar(rng) for key in keys(rng, rng.randint(1, 9))}
    pairs = list(values.items())
    if extension in ("yaml", "yml", "txt"):
        lines = [f"{key}: {value}" for key, value in pairs]
    elif extension == "json":
        text = json.dumps(values, indent=rng.choice((2, 4, None)))
        return KeyedFile(file_name(rng, extension), text + rng.choice(("", "\n")), values)
    elif extension == "md":
        shape = rng.choice(("- {k}: {v}", "* {k} = {v}", "The {k} is {v}.", "**{k}**: {v}"))
        lines = ["# " + stem(rng).capitalize(), ""] + [shape.format(k=key, v=value) for key, value in pairs]
    elif extension == "py":
        lines = [f"{key.upper() if rng.random() < 0.3 else key} = {value if value.isdigit() else repr(value)}" for key, value in pairs]
    else:
        sign = rng.choice(("=", " = ", "="))
        lines = [f"{key.upper() if extension == 'env' else key}{sign}{value}" for key, value in pairs]
        if extension in ("ini", "toml", "cfg") and rng.random() < 0.6:
            lines.insert(0, f"[{word(rng)}]")
        if rng.random() < 0.25:
            lines.insert(rng.randrange(len(lines) + 1), "# " + phrase(rng))
    if extension == "env" or any(line[:1].isupper() for line in lines if extension == "py"):
        values = {next((k for k in (key, key.upper()) if any(line.startswith(k) for line in lines)), key): value for key, value in pairs}
    return KeyedFile(file_name(rng, extension), "\n".join(lines) + "\n", values)


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
    return sorted(stem(rng) + rng.choice((".py", ".md", ".txt", ".json", "", "/")) for _ in range(rng.randint(1, 9)))


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command and what it printed."""

    line: str
    output: str
    exit_code: int = 0


def command(rng: random.Random) -> Command:
    """A shell command with a plausible output; outputs are random, so they must be read, not guessed."""
    name = file_name(rng)
    text = phrase(rng)
    number = rng.randint(2, 999)
    version = f"{rng.randint(0, 24)}.{rng.randint(0, 30)}.{rng.randint(0, 20)}"
    several = "\n".join(rng.choice((phrase, token, file_name, word))(rng) for _ in range(rng.randint(2, 6)))
    options = (
        lambda: Command(f"echo {text}", text),
        lambda: Command(f'echo "{text}"', text),
        lambda: Command(f"echo '{text}'", text),
        lambda: Command(f"cat {name}", rng.choice((text, several))),
        lambda: Command(rng.choice(("ls", "ls -1", "ls -a", f"ls {rng.choice(_FOLDERS)}", "git ls-files")), "\n".join(listing(rng))),
        lambda: Command(rng.choice(("python3 --version", "python --version")), f"Python {version}"),
        lambda: Command(rng.choice(("node --version", "node -v", "npm --version", "gcc -dumpversion", "make --version", "git --version")), rng.choice(("v", "", "git version ", "GNU Make ")) + version),
        lambda: Command("pwd", f"/{word(rng)}/{stem(rng)}"),
        lambda: Command(rng.choice(("date", "date +%Y", "date -u", "date +%F", "uptime")), rng.choice((f"20{rng.randint(20, 40)}-0{rng.randint(1, 9)}-{rng.randint(10, 28)}", str(rng.randint(1990, 2050))))),
        lambda: Command("whoami", word(rng)),
        lambda: Command("hostname", token(rng)),
        lambda: Command(rng.choice(("uname", "uname -s", "uname -r", "uname -m", "arch", "nproc")), rng.choice(("Linux", "x86_64", version, str(number)))),
        lambda: Command(f"wc -l {name}", f"{number} {name}"),
        lambda: Command(f"wc -l < {name}", str(number)),
        lambda: Command(f"grep -n {word(rng)} {name}", f"{number}:{text}"),
        lambda: Command(f"python3 -c 'print({rng.randint(1, 99)} {rng.choice('+-*')} {rng.randint(1, 99)})'", str(number)),
        lambda: Command(f'python3 -c "print({rng.randint(1, 999)} * {rng.randint(1, 999)})"', str(number * 37)),
        lambda: Command(f"expr {rng.randint(1, 99)} + {rng.randint(1, 99)}", str(number)),
        lambda: Command(f"seq {rng.choice((3, 4, 5))}", "\n".join(str(i) for i in range(1, 5))),
        lambda: Command(rng.choice((f"mkdir {stem(rng)}", f"mkdir -p {word(rng)}/{stem(rng)}", f"touch {name}", f"rm {name}", f"cp {name} {file_name(rng)}", f"mv {name} {file_name(rng)}", f"chmod +x {name}")), ""),
        lambda: Command(f"echo {text} > {name}", ""),
        lambda: Command(f"echo '{text}' >> {name}", ""),
        lambda: Command(f"printf '{word(rng)}\\n' > {name}", ""),
        lambda: Command(rng.choice(("git status", "git status --short", "git log --oneline", "git branch", "git diff --stat")), several),
        lambda: Command(rng.choice((f"head -n {number % 9 + 1} {name}", f"tail -n 3 {name}", f"sort {name}", f"uniq {name}")), several),
        lambda: Command(rng.choice(("make", "make test", f"pytest {name}", "npm test", f"python3 {name}", f"bash {name}", f"./{name}", f"sh {name}")), rng.choice((several, f"{number} passed", text))),
        lambda: Command(rng.choice(("df -h", "free -m", "env", "ps", "id", f"du -sh {name}", f"stat {name}", f"md5sum {name}", f"file {name}")), rng.choice((several, token(rng)))),
        lambda: Command(f"{word(rng)} --{word(rng)}", rng.choice((text, several))),
        lambda: Command(f"{word(rng)} {word(rng)} -{rng.choice(string.ascii_lowercase)} {name}", text),
        lambda: Command(f"cat {name}", f"cat: {name}: No such file or directory", 1),
        lambda: Command(f"{word(rng)}", f"bash: {word(rng)}: command not found", 127),
    )
    return rng.choice(options)()
