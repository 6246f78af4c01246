"""Requests to read a file: a value in it, a line of it, the whole, or a file that is not there."""

from __future__ import annotations

import random

from ftagent.demo.training import files, values
from ftagent.demo.training.tasks import results
from ftagent.demo.training.tasks.asking import ask, asked, named
from ftagent.demo.training.tasks.steps import Exchange, Step, read_step
from ftagent.demo.training.tools import Toolbox
from ftagent.demo.training.ways import ways

# {f} is the file, {k} the key, {w} which line.
_VALUE = ways(
    """
    read {f} and tell me the value of {k} | read the file {f} and tell me the value of {k} | read
    {f} and say what {k} is | read the file {f} and say the value of {k} | tell me the value of {k}
    in {f} | look at {f} and tell me the {k} | read {f} and report the value of the key {k} | open
    {f} and tell me which {k} it sets | read {f} and answer: what is the {k}? | find the value of
    {k} in {f} | look up {k} in {f} | check {f} and tell me what {k} is set to | What is the value
    of {k} in {f}? | What is {k} in {f}? | What is the {k} in {f}? | Which {k} does {f} set? | What
    {k} is set in {f}? | In {f}, what is {k}? | In the file {f}, what is the value of {k}? | What
    does {f} say about {k}? | According to {f}, what is the {k}? | read {f} and tell me its {k} |
    look at {f}. Which {k} is set there | open {f} and report its {k} | read {f} and report the {k}
    in it | read {f} and say the name of the {k} | check the file {f} and say how many {k} there are
    | read the file {f} and give me the {k} | Which value does {k} have in {f}? | {f}: what is {k}?
    """
)
_ALL = ways(
    """
    read {f} and tell me what it says | read the file {f} and tell me its content | show me {f} |
    show me the content of {f} | print the contents of {f} | read {f} and repeat its content | What
    is in {f}? | What does {f} say? | What does the file {f} contain? | What is the content of {f}?
    | tell me what {f} says | tell me the text in {f} | read {f} out to me
    """
)
_LINE = ways(
    """
    read {f} and tell me its {w} line | tell me the {w} line of {f} | What is the {w} line of {f}? |
    What is on the {w} line of {f}?
    """
)


def read_value(rng: random.Random, box: Toolbox) -> Exchange:
    """The value of one key."""
    kept = files.keyed_file(rng)
    key = rng.choice(list(kept.values))
    value = kept.values[key]
    file = named(rng, kept.name)
    marked = rng.choice(("{k}", "{k}", "`{k}`", "'{k}'", '"{k}"')).format(k=key)
    text = asked(rng, _VALUE, f=file, k=marked)
    step = read_step(rng, box, kept.name, kept.text)
    return Exchange(text, f"The value of `{key}` in `{kept.name}` is {value}.", f"{key} is {value}.", (step,))


def read_all(rng: random.Random, box: Toolbox) -> Exchange:
    """The whole file."""
    name = values.file_name(rng)
    text = values.phrase(rng) if rng.random() < 0.6 else files.block(rng)
    question = asked(rng, _ALL, f=named(rng, name))
    step = read_step(rng, box, name, text)
    if "\n" in text:
        text = text.rstrip("\n")
        answer = f"`{name}` holds:\n\n```\n{text}\n```"
    else:
        answer = f"`{name}` says: {text}"
    return Exchange(question, answer, "Report the content.", (step,))


def read_line(rng: random.Random, box: Toolbox) -> Exchange:
    """The first, second or last line."""
    name = values.file_name(rng)
    lines = [values.phrase(rng) for _ in range(rng.randint(2, 7))]
    which, line = rng.choice((("first", lines[0]), ("last", lines[-1]), ("second", lines[1])))
    text = asked(rng, _LINE, f=named(rng, name), w=which)
    step = read_step(rng, box, name, "\n".join(lines))
    return Exchange(text, f"The {which} line of `{name}` is: {line}", f"The {which} line is: {line}", (step,))


def read_missing(rng: random.Random, box: Toolbox) -> Exchange:
    """A file that does not exist: the answer says so and makes nothing up."""
    kept = files.keyed_file(rng)
    key = rng.choice(list(kept.values))
    step = read_step(rng, box, kept.name, "")
    error = results.missing(rng, kept.name)
    text = rng.choice(
        (
            ask(rng, f"read {named(rng, kept.name)} and tell me the value of {key}"),
            f"What is the value of {key} in {named(rng, kept.name)}?",
            ask(rng, f"read {named(rng, kept.name)}"),
        )
    )
    answer = f"I could not read `{kept.name}`: the file does not exist."
    return Exchange(text, answer, "The file does not exist.", (Step(step.thought, step.call, error),))
