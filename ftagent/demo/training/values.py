"""Random words, names, lines and values that the tasks are about. Drawn from `rng` alone; knows no tools."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

from ftagent.demo.training import corpus
from ftagent.demo.training.ways import ways

_EXTENSIONS = ways(
    """
    txt | md | py | json | ini | toml | yaml | cfg | csv | log | sh | html | js | env | conf | rst | c | out
    """
)
FOLDERS = ("src", "docs", "data", "lib", "tests", "build", "notes", "app", "scripts", "etc", "config")
_NAMES = ways(
    """
    Ada | Alan | Grace | Linus | Barbara | Edsger | Ken | Margaret | Tim | Radia | Dennis | Frances
    | Guido | Hedy | Ivan | Joan | Katherine | Lars | Mina | Niklaus | Olga | Paul | Rosa | Sofia |
    Tomas | Uma | Vera | Wei | Yuki | Zoe
    """
)
_COLOURS = ways(
    """
    red | green | blue | yellow | purple | orange | black | white | violet | teal | crimson | amber
    | silver | gold | cyan | magenta | indigo | turquoise | brown | pink
    """
)
_CITIES = ways(
    """
    Paris | Tokyo | Oslo | Lima | Cairo | Berlin | Madrid | Delhi | Quito | Rome | Vienna | Prague |
    Seoul | Dublin | Lisbon | Athens | Havana | Nairobi | Warsaw | Zurich
    """
)
_DEEDS = ("lives in", "likes", "went to", "called from", "wrote to")
_GREETINGS = ways(
    """
    hello | Hello, world! | hello world | Hi there! | Hello from ftagent | test | This is a test. |
    OK | done | ready | yes | foo | foo bar | lorem ipsum | TODO | it works | ping | 42
    """
)


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
    alphabet = rng.choice(
        (
            string.ascii_lowercase,
            string.ascii_letters + string.digits,
            string.digits,
            "0123456789abcdef",
            string.ascii_uppercase,
        )
    )
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 12)))


def stem(rng: random.Random) -> str:
    """A file's name without its extension: one to three words, joined somehow."""
    parts = [
        token(rng).lower() if rng.random() < 0.2 else word(rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))
    ]
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
        name += "." + (
            extension
            or (rng.choice(("txt", "md", "py", "json")) if rng.random() < 0.5 else rng.choice(_EXTENSIONS))
        )
    if rng.random() < 0.15:
        name = f"{rng.choice(FOLDERS) if rng.random() < 0.7 else word(rng)}/{name}"
    if rng.random() < 0.06:
        name = f"/{rng.choice(('tmp', 'home', 'work', 'srv', 'var'))}/{word(rng)}/{name}"
    elif rng.random() < 0.04:
        name = "./" + name
    return name


_LINES = ways(
    """
    print('{a} {b}') | print("{a}") | {a} = {n} | def {a}({b}): return {b} + {n} | import {a} |
    console.log('{a}'); | #!/bin/bash | <h1>{A} {b}</h1> | {{"{a}": {n}}} | SELECT {a} FROM {b}; |
    echo {a} | {a}: [{n}, {m}] | return {a}.{b}() | Dr. {A} {b}, room {n} | {a}, {b}, {c} | - {a}
    {b} | * {a} | # {A} | {A}: {b} {c} | {a}={b} | {n} {a}s and {m} {b}s | buy {a}, call {B}, {c}
    the {d} | {A} isn't {b} | don't {a} the {b} | The {a} {b} {c} over the {d}. | Dear {A}, {b} {c}!
    | {a}@{b}.com | https://{a}.{b}/{c} | v{n}.{m}.0 | {a} ({b}) | {a} & {b} | {a}/{b} | [{a}] |
    {A}{B}{C} | {a}_{b}_{c} | {n}% | {A} {b} at {n}:{m} | €{n}.{m} | naïve {a} café | {a} → {b} |
    {a}... {b}?! | const {a} = {n}; | let {a} = '{b}' | all {a} by {B}
    """
)


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
        text = f"{rng.choice(_NAMES)} {rng.choice(_DEEDS)} {rng.choice(_CITIES)}"
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
