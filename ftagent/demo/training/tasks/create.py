"""Requests for new files."""

from __future__ import annotations

import random

from ftagent.demo.training import files, values
from ftagent.demo.training.tasks.asking import ask, named, quoted, spaced, tool_hint
from ftagent.demo.training.tasks.steps import Exchange, write_step
from ftagent.demo.training.tools import Toolbox
from ftagent.demo.training.ways import ways

# {f} is the file's name, {q} the text in quotation marks, {t} the bare text, {n} its number of lines.
_LINES = ways(
    """
    create {f} with this content | write a file {f} with exactly this text | create a file named {f}
    with these lines | make {f} with the following content | save this as {f} | write the following
    to {f} | put this into a file called {f} | create the file {f} containing | create {f} with
    these lines | create {f} with these {n} lines | create {f} containing the lines | write {f}
    """
)
_WITH = ways(
    """
    with the text {q} | containing {q} | with the content {q} | that contains {q} | that says {q} |
    containing the text {q} | with the line {q} | with exactly {q} in it | whose content is {q} |
    holding the text {q} | with {q} inside | containing exactly {q} | with the words {q} | that
    contains exactly the text {q} | with the single line {q} | containing only {q} | and write {q}
    into it | and put {q} in it | containing the word {q} | with this text: {q} | with content: {q}
    | that lists {q} | that lists the single line {q} | consisting of {q} | with the sentence {q} |
    that reads {q} | with the message {q} | with the phrase {q} | that has {q} in it | with {q} |
    and fill it with {q} | with one line, {q} | and add the text {q}
    """
)
_VERBS = ("create", "create", "create", "make", "write", "add", "generate", "set up")
_WHAT = ways(
    """
    a file named {f} | a file called {f} | a file {f} | {f} | the file {f} | a new file {f} | a text
    file {f} | a new file named {f} | a text file named {f} | a file with the name {f} | a new text
    file called {f} | a file at {f} | a {f} file
    """
)
_TEXT_FIRST = ways(
    """
    write {q} to {f} | write {q} into {f} | write the text {q} to a file named {f} | save {q} in {f}
    | save the text {q} as {f} | put {q} into a file called {f} | put the text {q} in {f} | store
    {q} in the file {f} | write a file {f} that says {q} | write the line {q} to the file {f} |
    write the sentence {q} to {f} | save the line {q} to {f} | save {q} to a file called {f} | store
    the text {q} in a new file named {f} | echo {q} into {f}
    """
)
_PLACES = ways(
    """
    | | | | in the current directory | here | in this directory | in the repository | in this repo |
    in the working directory | in the project root
    """
)
_ONE_WORD = ways(
    """
    save the word {t} in {f} | write the word {t} to {f} | put the word {t} into {f} | write {t} to
    {f} | create {f} with the word {t} | create {f} containing the word {t} in it | save {t} as {f}
    | put the number {t} in {f} | store {t} in {f}
    """
)
_BARE = ways(
    """
    with the text {t} | containing {t} | that says {t} | with the content {t} | with content: {t} |
    containing the text: {t} | with this text: {t} | with {t} | containing just {t} | that contains
    {t}
    """
)
_SECOND_SENTENCE = ways(
    """
    . Its content should be | . It should contain | . Content: | . It must say | . The text is | .
    It must contain exactly: | . Put this in it: | . Its only line is | , and its text should be
    """
)
_TWO = ways(
    """
    create two files: {f} with the text {q} and {g} with the text {r} | create {f} containing {q}
    and {g} containing {r} | write {q} to {f} and {r} to {g} | create the file {f} with {q}, then
    create {g} with {r}
    """
)


def _ask_for_lines(rng: random.Random, name: str, file: str, text: str) -> str:
    """The text stands below the request, in a fence or bare."""
    fence = rng.choice(("```", "```", f"```{name.rsplit('.', 1)[-1]}"))
    body = f"{fence}\n{text}\n```" if rng.random() < 0.6 else text
    lead = rng.choice(_LINES).format(f=file, n=text.count("\n") + 1)
    return ask(rng, lead, ending=False) + rng.choice((":\n\n", ":\n")) + body


def create_ask(rng: random.Random, name: str, text: str, tool: str) -> str:
    """One of many ways to ask for a file with a given text."""
    file = named(rng, name)
    if "\n" in text:
        return _ask_for_lines(rng, name, file, text)
    marked = quoted(rng, text)
    with_it = rng.choice(_WITH).format(q=marked)
    verb = rng.choice(_VERBS)
    what = f"{verb} {rng.choice(_WHAT).format(f=file)}"
    text_first = rng.choice(_TEXT_FIRST).format(q=marked, f=file)
    place = spaced(rng.choice(_PLACES))
    kind = rng.random()
    if kind < 0.05 and text.isalnum():
        return ask(rng, rng.choice(_ONE_WORD).format(t=text, f=file) + place)
    if kind < 0.14 and text[-1:].isalnum() and not text.startswith((" ", "`")):
        # Without quotation marks the text runs to the end of the request.
        return ask(rng, f"{what} {rng.choice(_BARE).format(t=text)}", ending=False)
    if kind < 0.35:
        return ask(rng, text_first + place) + tool_hint(rng, tool)
    if kind < 0.5:
        return ask(rng, f"{what}{place} {with_it}") + tool_hint(rng, tool)
    if kind < 0.56:
        first = ask(rng, f"{what}{place}", ending=False)
        return f"{first}{rng.choice(_SECOND_SENTENCE)} {marked}" + rng.choice((".", "", "."))
    return ask(rng, f"{what} {with_it}{place}") + tool_hint(rng, tool)


def create(rng: random.Random, box: Toolbox) -> Exchange:
    """One file, of one line or several."""
    name = values.file_name(rng)
    text = values.phrase(rng) if rng.random() < 0.72 else files.block(rng)
    if rng.random() < 0.04:
        text = text.replace(" ", "  ", 1)
    step = write_step(rng, box, name, text)
    answer = rng.choice(("I created `{n}`.", "Created `{n}`.", "Done: `{n}` is written.")).format(n=name)
    return Exchange(create_ask(rng, name, text, step.call.name), answer, "The file is written.", (step,))


def create_two(rng: random.Random, box: Toolbox) -> Exchange:
    """Two files of one line each."""
    names = [values.file_name(rng), values.file_name(rng)]
    texts = [values.phrase(rng), values.phrase(rng)]
    f, g = (named(rng, name) for name in names)
    q, r = (quoted(rng, text) for text in texts)
    body = rng.choice(_TWO).format(f=f, g=g, q=q, r=r)
    steps = tuple(write_step(rng, box, name, text) for name, text in zip(names, texts, strict=True))
    answer = f"I created `{names[0]}` and `{names[1]}`."
    return Exchange(ask(rng, body), answer, "Both files are written.", steps)
