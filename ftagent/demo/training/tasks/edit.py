"""Requests to change or list files, and those that take two different steps."""

from __future__ import annotations

import random

from ftagent.demo.training import files, values
from ftagent.demo.training.commands import Command
from ftagent.demo.training.tasks import results
from ftagent.demo.training.tasks.asking import ask, asked, named, quoted
from ftagent.demo.training.tasks.read import read_all, read_value
from ftagent.demo.training.tasks.steps import Exchange, Step, read_step, run_step, write_step
from ftagent.demo.training.tools import Toolbox
from ftagent.demo.training.ways import ways

_EDIT = ways(
    """
    in {f}, replace {old} with {new} | replace {old} with {new} in {f} | replace {old} by {new} in
    the file {f} | edit {f}: replace {old} with {new} | change {old} to {new} in {f} | in the file
    {f}, change {old} to {new}
    """
)
_HERE = ways(
    """
    in this directory | in the current directory | here | in the working directory | in this folder
    """
)
_LIST = ways(
    """
    list the files {p} | Which files are {p}? | What files are {p}? | show me the files {p} | tell
    me which files are {p} | list all files {p} and tell me their names
    """
)


def edit(rng: random.Random, box: Toolbox) -> Exchange:
    """Replace a string. Editors want the file read first, so it is read first."""
    kept = files.keyed_file(rng)
    key = rng.choice(list(kept.values))
    old, new = kept.values[key], values.scalar(rng)
    file = named(rng, kept.name)
    if not box.has("edit") or old == new or kept.text.count(old) != 1:
        return read_value(rng, box)
    old_marked, new_marked = quoted(rng, old), quoted(rng, new)
    text = asked(rng, _EDIT, f=file, old=old_marked, new=new_marked)
    done = results.edited(rng, kept.name)
    call = box.call("edit", path=kept.name, old=old, new=new)
    steps = (
        read_step(rng, box, kept.name, kept.text),
        Step(f"Replace it with {box.names['edit']}.", call, done),
    )
    answer = f"I replaced `{old}` with `{new}` in `{kept.name}`."
    return Exchange(text, answer, "The file is changed.", steps)


def list_files(rng: random.Random, box: Toolbox) -> Exchange:
    """The files of a folder, by the shell where there is no tool for it."""
    names = files.listing(rng)
    folder = rng.choice((".", ".", ".", values.word(rng), "src", "docs"))
    place = rng.choice(_HERE) if folder == "." else f"in {named(rng, folder)}"
    text = asked(rng, _LIST, p=place)
    shown = "\n".join(rng.choice(("{}", "{}", "- {}")).format(name) for name in names)
    if box.has("list"):
        step = Step(f"List {folder} with {box.names['list']}.", box.call("list", folder=folder), shown)
    elif box.has("run"):
        call = box.call("run", command="ls" if folder == "." else f"ls {folder}")
        step = Step(f"List {folder} with {box.names['run']}.", call, "\n".join(names))
    else:
        return read_all(rng, box)
    answer = "The files are: " + ", ".join(f"`{name}`" for name in names)
    return Exchange(text, answer, "Report the names.", (step,))


def copy_text(rng: random.Random, box: Toolbox) -> Exchange:
    """Read one file, write another."""
    source, target = values.file_name(rng), values.file_name(rng)
    text = values.phrase(rng)
    question = rng.choice(
        (
            ask(rng, f"read {named(rng, source)} and write its content to {named(rng, target)}"),
            ask(rng, f"read {named(rng, source)}, then create {named(rng, target)} with the same text"),
        )
    )
    steps = (read_step(rng, box, source, text), write_step(rng, box, target, text))
    answer = f"I wrote the content of `{source}` to `{target}`."
    return Exchange(question, answer, "The file is written.", steps)


def create_and_run(rng: random.Random, box: Toolbox) -> Exchange:
    """Write a script, run it. The output is random: it is to be read, not computed."""
    name = values.file_name(rng, "py")
    text = f"print({rng.randint(1, 999)} + {rng.randint(1, 999)})"
    output = str(rng.randint(2, 1998))
    line = f"python3 {name}"
    first = f"create {named(rng, name)} with the text {quoted(rng, text)} and then run `{line}`"
    first = ask(rng, first)
    second = f"write {quoted(rng, text)} to {named(rng, name)}, then run `{line}` and tell me the output"
    question = rng.choice((first, ask(rng, second)))
    steps = (write_step(rng, box, name, text), run_step(rng, box, Command(line, output)))
    answer = f"I created `{name}`. The command printed: {output}"
    return Exchange(question, answer, "The command ran.", steps)
