"""Tool-using tasks: how people ask, which calls follow, what the tools answer, and the closing answer.

An Exchange is one user request with everything the assistant does for it. Placement behind long prefixes is
`dialogues`' job.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ftagent.conversation import ToolCall
from ftagent.demo.training import corpus, values
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
    steps: tuple[Step, ...] = field(default=())


# ---------------------------------------------------------------------------------------------- phrasing

_PLEASE = ("", "", "", "", "Please ", "please ", "Can you ", "Could you ", "I want you to ", "I need you to ", "Now ", "Next, ", "Your task: ", "Task: ", "First, ", "Hi! Please ", "Would you ")
_ENDINGS = ("", "", "", "", "", " Do nothing else.", " Then stop.", " Nothing more.", " Thanks!", " Then say done.", " Do not do anything else.", " That is all.", " Be brief.", " Keep it short.", " Answer in one sentence.")


def _ask(rng: random.Random, body: str, ending: bool = True) -> str:
    """Put a polite start, an ending and the right capital letter around a verb phrase."""
    start = rng.choice(_PLEASE)
    text = start + body
    if not start or start.endswith((": ", "! ")):
        text = text[: len(start)] + text[len(start) :][:1].upper() + text[len(start) + 1 :] if rng.random() < 0.85 else text
    if ending:
        stop = "?" if start.strip() in ("Can you", "Could you", "Would you") and rng.random() < 0.7 else rng.choice((".", ".", ".", ""))
        closing = rng.choice(_ENDINGS)
        text += (stop or ("." if closing else "")) + closing
    return text


def _named(rng: random.Random, name: str) -> str:
    """How a file is called in a request."""
    return rng.choice(("{n}", "{n}", "`{n}`", "`{n}`", '"{n}"', "'{n}'")).format(n=name)


def _quoted(rng: random.Random, text: str) -> str:
    """The text in some quotation marks that it does not hold itself."""
    pairs = ("''", '""', "``", "“”", "«»")
    marks = [pair for pair in pairs if pair[0] not in text and pair[1] not in text] or ["“”"]
    weights = [6 if pair in ("''", '""') else 3 if pair == "``" else 1 for pair in marks]
    left, right = rng.choices(marks, weights)[0]
    return f"{left}{text}{right}"


def _use(rng: random.Random, tool: str) -> str:
    return f" Use the {tool} tool." if rng.random() < 0.08 else ""


# ------------------------------------------------------------------------------------------------ results


def _wrote(rng: random.Random, name: str, text: str) -> str:
    return rng.choice(
        (
            f"File created successfully at: {name}",
            f"File created successfully at: {name} (file state is current in your context — no need to Read it back)",
            f"Wrote {len(text)} bytes to {name}",
            f"Successfully wrote to {name}.",
            f"Wrote file successfully.",
            f"The file {name} has been written.",
            "ok",
            "Done",
            "",
            f"Created {name}",
            f"Successfully created and wrote to new file: {name}.",
        )
    )


def _reminder(rng: random.Random, chance: float) -> str:
    if rng.random() >= chance:
        return ""
    return "\n\n<system-reminder>\n" + " ".join(rng.choice(corpus.sentences()) for _ in range(rng.randint(1, 3))) + "\n</system-reminder>"


def _shown(rng: random.Random, text: str) -> str:
    """A file's text as some read tool shows it."""
    style = rng.choice(("     {i}→{line}", "{i}\t{line}", "{i}\t{line}", "     {i}\t{line}", "{i}: {line}", "{i}|{line}", "{line}", "{line}", "{line}"))
    lines = text.rstrip("\n").split("\n")
    shown = "\n".join(style.format(i=i, line=line) for i, line in enumerate(lines, 1))
    if rng.random() < 0.1:
        shown = f"<file>\n{shown}\n</file>"
    return shown + _reminder(rng, 0.1)


def _printed(rng: random.Random, command: values.Command) -> str:
    """A command's output as some shell tool shows it."""
    text = command.output
    if not text:
        return rng.choice(("", "(Bash completed with no output)", "Tool ran without output or errors", "(no output)", "Exit code: 0"))
    if command.exit_code:
        return rng.choice((f"Exit code {command.exit_code}\n{text}", f"Error: {text}", f"{text}\n\nCommand exited with code {command.exit_code}"))
    style = rng.random()
    if style < 0.06:
        return f"Chunk ID: {values.token(rng)}\nWall time: 0.{rng.randint(1, 9)} seconds\nProcess exited with code 0\nOutput:\n{text}"
    if style < 0.1:
        return f"<stdout>{text}</stdout>"
    if style < 0.14:
        return f"Output: {text}\nExit Code: 0"
    return text + rng.choice(("", "", "\n"))


# ------------------------------------------------------------------------------------------------- create


def _heredoc(name: str, text: str) -> str:
    if "\n" not in text and "'" not in text:
        return f"printf '%s\\n' '{text}' > {name}"
    return f"cat > {name} <<'EOF'\n{text}\nEOF"


def _write_step(rng: random.Random, box: Toolbox, name: str, text: str) -> Step:
    if box.has("write"):
        tool = box.names["write"]
        return Step(f"Create {name} with {tool}.", box.call("write", path=name, content=text), _wrote(rng, name, text))
    tool = box.names["run"]
    call = box.call("run", command=_heredoc(name, text))
    return Step(f"Create {name} with {tool}.", call, _printed(rng, values.Command("", "")))


def create_ask(rng: random.Random, name: str, text: str, tool: str) -> str:
    """One of many ways to ask for a file with a given text."""
    file = _named(rng, name)
    if "\n" in text:
        fence = rng.choice(("```", "```", f"```{name.rsplit('.', 1)[-1]}"))
        body = f"{fence}\n{text}\n```" if rng.random() < 0.6 else text
        lead = rng.choice(("create {f} with this content", "write a file {f} with exactly this text", "create a file named {f} with these lines", "make {f} with the following content", "save this as {f}", "write the following to {f}", "put this into a file called {f}", "create the file {f} containing", "create {f} with these lines", f"create {{f}} with these {text.count(chr(10)) + 1} lines", "create {f} containing the lines", "write {f}"))
        return _ask(rng, lead.format(f=file), ending=False) + rng.choice((":\n\n", ":\n")) + body
    quoted = _quoted(rng, text)
    with_it = rng.choice(("with the text {q}", "containing {q}", "with the content {q}", "that contains {q}", "that says {q}", "containing the text {q}", "with the line {q}", "with exactly {q} in it", "whose content is {q}", "holding the text {q}", "with {q} inside", "containing exactly {q}", "with the words {q}", "that contains exactly the text {q}", "with the single line {q}", "containing only {q}", "and write {q} into it", "and put {q} in it", "containing the word {q}", "with this text: {q}", "with content: {q}", "that lists {q}", "that lists the single line {q}", "consisting of {q}", "with the sentence {q}", "that reads {q}", "with the message {q}", "with the phrase {q}", "that has {q} in it", "with {q}", "and fill it with {q}", "with one line, {q}", "and add the text {q}"))
    verb = rng.choice(("create", "create", "create", "make", "write", "add", "generate", "set up"))
    what = rng.choice(("a file named {f}", "a file called {f}", "a file {f}", "{f}", "the file {f}", "a new file {f}", "a text file {f}", "a new file named {f}", "a text file named {f}", "a file with the name {f}", "a new text file called {f}", "a file at {f}", "a {f} file"))
    other = rng.choice(("write {q} to {f}", "write {q} into {f}", "write the text {q} to a file named {f}", "save {q} in {f}", "save the text {q} as {f}", "put {q} into a file called {f}", "put the text {q} in {f}", "store {q} in the file {f}", "write a file {f} that says {q}", "write the line {q} to the file {f}", "write the sentence {q} to {f}", "save the line {q} to {f}", "save {q} to a file called {f}", "store the text {q} in a new file named {f}", "echo {q} into {f}"))
    place = rng.choice(("", "", "", "", " in the current directory", " here", " in this directory", " in the repository", " in this repo", " in the working directory", " in the project root"))
    kind = rng.random()
    if kind < 0.05 and text.isalnum():
        # One word stands without quotation marks.
        body = rng.choice(("save the word {t} in {f}", "write the word {t} to {f}", "put the word {t} into {f}", "write {t} to {f}", "create {f} with the word {t}", "create {f} containing the word {t} in it", "save {t} as {f}", "put the number {t} in {f}", "store {t} in {f}"))
        return _ask(rng, body.format(t=text, f=file) + place)
    if kind < 0.14 and text[-1:].isalnum() and not text.startswith((" ", "`")):
        # Without quotation marks the text runs to the end of the request.
        bare = rng.choice(("with the text {t}", "containing {t}", "that says {t}", "with the content {t}", "with content: {t}", "containing the text: {t}", "with this text: {t}", "with {t}", "containing just {t}", "that contains {t}"))
        return _ask(rng, f"{verb} {what.format(f=file)} {bare.format(t=text)}", ending=False)
    if kind < 0.35:
        return _ask(rng, other.format(q=quoted, f=file) + place) + _use(rng, tool)
    if kind < 0.5:
        return _ask(rng, f"{verb} {what.format(f=file)}{place} {with_it.format(q=quoted)}") + _use(rng, tool)
    if kind < 0.56:
        return _ask(rng, f"{verb} {what.format(f=file)}{place}", ending=False) + rng.choice((". Its content should be ", ". It should contain ", ". Content: ", ". It must say ", ". The text is ", ". It must contain exactly: ", ". Put this in it: ", ". Its only line is ", ", and its text should be ")) + quoted + rng.choice((".", "", "."))
    return _ask(rng, f"{verb} {what.format(f=file)} {with_it.format(q=quoted)}{place}") + _use(rng, tool)


def create(rng: random.Random, box: Toolbox) -> Exchange:
    name = values.file_name(rng)
    text = values.phrase(rng) if rng.random() < 0.72 else values.block(rng)
    if rng.random() < 0.04:
        text = text.replace(" ", "  ", 1)
    step = _write_step(rng, box, name, text)
    answer = rng.choice(("I created `{n}`.", "Created `{n}`.", "Done: `{n}` is written.")).format(n=name)
    return Exchange(create_ask(rng, name, text, step.call.name), answer, "The file is written.", (step,))


def create_two(rng: random.Random, box: Toolbox) -> Exchange:
    names = [values.file_name(rng), values.file_name(rng)]
    texts = [values.phrase(rng), values.phrase(rng)]
    file = [_named(rng, name) for name in names]
    quoted = [_quoted(rng, text) for text in texts]
    body = rng.choice(
        (
            f"create two files: {file[0]} with the text {quoted[0]} and {file[1]} with the text {quoted[1]}",
            f"create {file[0]} containing {quoted[0]} and {file[1]} containing {quoted[1]}",
            f"write {quoted[0]} to {file[0]} and {quoted[1]} to {file[1]}",
            f"create the file {file[0]} with {quoted[0]}, then create {file[1]} with {quoted[1]}",
        )
    )
    steps = tuple(_write_step(rng, box, name, text) for name, text in zip(names, texts, strict=True))
    return Exchange(_ask(rng, body), f"I created `{names[0]}` and `{names[1]}`.", "Both files are written.", steps)


# --------------------------------------------------------------------------------------------------- run


def _run_step(rng: random.Random, box: Toolbox, command: values.Command) -> Step:
    return Step(f"Run the command with {box.names['run']}.", box.call("run", command=command.line), _printed(rng, command))


def _report(rng: random.Random, command: values.Command) -> str:
    if command.exit_code:
        return f"The command failed: {command.output}"
    if not command.output:
        return "The command ran and printed nothing."
    if "\n" in command.output:
        return f"The command printed:\n\n```\n{command.output}\n```"
    return f"The command printed: {command.output}"


def run(rng: random.Random, box: Toolbox) -> Exchange:
    command = values.command(rng)
    code = _quoted(rng, command.line) if rng.random() < 0.35 else f"`{command.line}`"
    if rng.random() < 0.15 and len(command.line) < 40 and "`" not in command.line:
        return _run_bare(rng, box, command)
    verb = rng.choice(("run", "run", "run", "execute", "call", "use the shell to run"))
    what = rng.choice(("{c}", "{c}", "the command {c}", "the command {c}", "the shell command {c}", "{c} in the shell", "{c} in the terminal", "this command: {c}", "the following command: {c}"))
    tail = rng.choice(("", "", " and report the output", " and tell me what it prints", " and tell me the output", " and show me the output", " and report what it prints", " and report the result", " and say what it printed", " and give me the result", " and tell me the result", " and report", ", then tell me what it printed", ", then report its output", " and repeat its output"))
    ask = _ask(rng, f"{verb} {what.format(c=code)}{tail}")
    if rng.random() < 0.06:
        ask = _ask(rng, f"{verb} this command{tail}", ending=False) + rng.choice((":\n\n", ":\n")) + rng.choice((command.line, f"```\n{command.line}\n```", f"```bash\n{command.line}\n```"))
    elif rng.random() < 0.12:
        ask = rng.choice((f"What does {code} print?", f"What is the output of {code}?", f"What does the command {code} print?", f"Tell me the output of {code}.", f"Show me the output of {code}.", f"What happens when you run {code}?"))
    thought = "It failed." if command.exit_code else "The command ran."
    return Exchange(ask, _report(rng, command), thought, (_run_step(rng, box, command),))


def _run_bare(rng: random.Random, box: Toolbox, command: values.Command) -> Exchange:
    """The command stands in the request without quotation marks, at its end or before a comma."""
    line = command.line
    body = rng.choice((f"run {line}", f"run the command {line}", f"execute {line}", f"run {line} in the shell", f"run this command and tell me the output: {line}", f"run this and report the output: {line}", f"execute the following command: {line}", f"run {line} and tell me the output", f"run {line} and report"))
    thought = "It failed." if command.exit_code else "The command ran."
    return Exchange(_ask(rng, body, ending=False), _report(rng, command), thought, (_run_step(rng, box, command),))


# -------------------------------------------------------------------------------------------------- read


def _read_step(rng: random.Random, box: Toolbox, name: str, text: str) -> Step:
    if box.has("read"):
        return Step(f"Read {name} with {box.names['read']}.", box.call("read", path=name), _shown(rng, text))
    call = box.call("run", command=f"cat {name}")
    return Step(f"Read {name} with {box.names['run']}.", call, _printed(rng, values.Command("", text.rstrip("\n"))))


def read_value(rng: random.Random, box: Toolbox) -> Exchange:
    kept = values.keyed_file(rng)
    key = rng.choice(list(kept.values))
    value = kept.values[key]
    file, quoted = _named(rng, kept.name), rng.choice(("{k}", "{k}", "`{k}`", "'{k}'", '"{k}"')).format(k=key)
    ask = rng.choice(
        (
            _ask(rng, f"read {file} and tell me the value of {quoted}"),
            _ask(rng, f"read the file {file} and tell me the value of {quoted}"),
            _ask(rng, f"read {file} and say what {quoted} is"),
            _ask(rng, f"read the file {file} and say the value of {quoted}"),
            _ask(rng, f"tell me the value of {quoted} in {file}"),
            _ask(rng, f"look at {file} and tell me the {quoted}"),
            _ask(rng, f"read {file} and report the value of the key {quoted}"),
            _ask(rng, f"open {file} and tell me which {quoted} it sets"),
            _ask(rng, f"read {file} and answer: what is the {quoted}?", ending=False),
            _ask(rng, f"find the value of {quoted} in {file}"),
            _ask(rng, f"look up {quoted} in {file}"),
            _ask(rng, f"check {file} and tell me what {quoted} is set to"),
            f"What is the value of {quoted} in {file}?",
            f"What is {quoted} in {file}?",
            f"What is the {quoted} in {file}?",
            f"Which {quoted} does {file} set?",
            f"What {quoted} is set in {file}?",
            f"In {file}, what is {quoted}?",
            f"In the file {file}, what is the value of {quoted}?",
            f"What does {file} say about {quoted}?",
            f"According to {file}, what is the {quoted}?",
            _ask(rng, f"read {file} and tell me its {quoted}"),
            _ask(rng, f"look at {file}. Which {quoted} is set there"),
            _ask(rng, f"open {file} and report its {quoted}"),
            _ask(rng, f"read {file} and report the {quoted} in it"),
            _ask(rng, f"read {file} and say the name of the {quoted}"),
            _ask(rng, f"check the file {file} and say how many {quoted} there are"),
            _ask(rng, f"read the file {file} and give me the {quoted}"),
            f"Which value does {quoted} have in {file}?",
            f"{file}: what is {quoted}?",
        )
    )
    step = _read_step(rng, box, kept.name, kept.text)
    return Exchange(ask, f"The value of `{key}` in `{kept.name}` is {value}.", f"{key} is {value}.", (step,))


def read_all(rng: random.Random, box: Toolbox) -> Exchange:
    name = values.file_name(rng)
    text = values.phrase(rng) if rng.random() < 0.6 else values.block(rng)
    file = _named(rng, name)
    ask = rng.choice(
        (
            _ask(rng, f"read {file} and tell me what it says"),
            _ask(rng, f"read the file {file} and tell me its content"),
            _ask(rng, f"show me {file}"),
            _ask(rng, f"show me the content of {file}"),
            _ask(rng, f"print the contents of {file}"),
            _ask(rng, f"read {file} and repeat its content"),
            f"What is in {file}?",
            f"What does {file} say?",
            f"What does the file {file} contain?",
            f"What is the content of {file}?",
            _ask(rng, f"tell me what {file} says"),
            _ask(rng, f"tell me the text in {file}"),
            _ask(rng, f"read {file} out to me"),
        )
    )
    step = _read_step(rng, box, name, text)
    answer = f"`{name}` says: {text}" if "\n" not in text else f"`{name}` holds:\n\n```\n{text.rstrip(chr(10))}\n```"
    return Exchange(ask, answer, "Report the content.", (step,))


def read_line(rng: random.Random, box: Toolbox) -> Exchange:
    name = values.file_name(rng)
    lines = [values.phrase(rng) for _ in range(rng.randint(2, 7))]
    which, line = rng.choice((("first", lines[0]), ("last", lines[-1]), ("second", lines[1])))
    file = _named(rng, name)
    ask = rng.choice((_ask(rng, f"read {file} and tell me its {which} line"), _ask(rng, f"tell me the {which} line of {file}"), f"What is the {which} line of {file}?", f"What is on the {which} line of {file}?"))
    step = _read_step(rng, box, name, "\n".join(lines))
    return Exchange(ask, f"The {which} line of `{name}` is: {line}", f"The {which} line is: {line}", (step,))


def read_missing(rng: random.Random, box: Toolbox) -> Exchange:
    kept = values.keyed_file(rng)
    key = rng.choice(list(kept.values))
    step = _read_step(rng, box, kept.name, "")
    error = rng.choice(("File does not exist.", f"File does not exist. Note: your current working directory is /{values.word(rng)}.", f"Error: ENOENT: no such file or directory, open '{kept.name}'", "<tool_use_error>File does not exist.</tool_use_error>", f"Error: file not found: {kept.name}", f"cat: {kept.name}: No such file or directory"))
    ask = rng.choice((_ask(rng, f"read {_named(rng, kept.name)} and tell me the value of {key}"), f"What is the value of {key} in {_named(rng, kept.name)}?", _ask(rng, f"read {_named(rng, kept.name)}")))
    return Exchange(ask, f"I could not read `{kept.name}`: the file does not exist.", "The file does not exist.", (Step(step.thought, step.call, error),))


# ---------------------------------------------------------------------------------- edit, list, two steps


def edit(rng: random.Random, box: Toolbox) -> Exchange:
    """Replace a string. Editors want the file read first, so it is read first."""
    kept = values.keyed_file(rng)
    key = rng.choice(list(kept.values))
    old, new = kept.values[key], values.scalar(rng)
    file = _named(rng, kept.name)
    if not box.has("edit") or old == new or kept.text.count(old) != 1:
        return read_value(rng, box)
    old_quoted, new_quoted = _quoted(rng, old), _quoted(rng, new)
    ask = rng.choice(
        (
            _ask(rng, f"in {file}, replace {old_quoted} with {new_quoted}"),
            _ask(rng, f"replace {old_quoted} with {new_quoted} in {file}"),
            _ask(rng, f"replace {old_quoted} by {new_quoted} in the file {file}"),
            _ask(rng, f"edit {file}: replace {old_quoted} with {new_quoted}"),
            _ask(rng, f"change {old_quoted} to {new_quoted} in {file}"),
            _ask(rng, f"in the file {file}, change {old_quoted} to {new_quoted}"),
        )
    )
    done = rng.choice((f"The file {kept.name} has been updated.", f"The file {kept.name} has been updated successfully.", "ok", f"Edited {kept.name}", "Edit applied successfully.", f"Successfully replaced 1 block(s) in {kept.name}."))
    steps = (
        _read_step(rng, box, kept.name, kept.text),
        Step(f"Replace it with {box.names['edit']}.", box.call("edit", path=kept.name, old=old, new=new), done),
    )
    return Exchange(ask, f"I replaced `{old}` with `{new}` in `{kept.name}`.", "The file is changed.", steps)


def list_files(rng: random.Random, box: Toolbox) -> Exchange:
    names = values.listing(rng)
    folder = rng.choice((".", ".", ".", values.word(rng), "src", "docs"))
    place = rng.choice(("in this directory", "in the current directory", "here", "in the working directory", "in this folder")) if folder == "." else f"in {_named(rng, folder)}"
    ask = rng.choice((_ask(rng, f"list the files {place}"), f"Which files are {place}?", f"What files are {place}?", _ask(rng, f"show me the files {place}"), _ask(rng, f"tell me which files are {place}"), _ask(rng, f"list all files {place} and tell me their names")))
    shown = "\n".join(rng.choice(("{}", "{}", "- {}")).format(name) for name in names)
    if box.has("list"):
        step = Step(f"List {folder} with {box.names['list']}.", box.call("list", folder=folder), shown)
    elif box.has("run"):
        line = "ls" if folder == "." else f"ls {folder}"
        step = Step(f"List {folder} with {box.names['run']}.", box.call("run", command=line), "\n".join(names))
    else:
        return read_all(rng, box)
    return Exchange(ask, "The files are: " + ", ".join(f"`{name}`" for name in names), "Report the names.", (step,))


def copy_text(rng: random.Random, box: Toolbox) -> Exchange:
    source, target = values.file_name(rng), values.file_name(rng)
    text = values.phrase(rng)
    ask = rng.choice((_ask(rng, f"read {_named(rng, source)} and write its content to {_named(rng, target)}"), _ask(rng, f"read {_named(rng, source)}, then create {_named(rng, target)} with the same text")))
    steps = (_read_step(rng, box, source, text), _write_step(rng, box, target, text))
    return Exchange(ask, f"I wrote the content of `{source}` to `{target}`.", "The file is written.", steps)


def create_and_run(rng: random.Random, box: Toolbox) -> Exchange:
    name, text, output = values.file_name(rng, "py"), f"print({rng.randint(1, 999)} + {rng.randint(1, 999)})", str(rng.randint(2, 1998))
    ask = rng.choice((_ask(rng, f"create {_named(rng, name)} with the text {_quoted(rng, text)} and then run `python3 {name}`"), _ask(rng, f"write {_quoted(rng, text)} to {_named(rng, name)}, then run `python3 {name}` and tell me the output")))
    command = values.Command(f"python3 {name}", output)
    steps = (_write_step(rng, box, name, text), _run_step(rng, box, command))
    return Exchange(ask, f"I created `{name}`. The command printed: {output}", "The command ran.", steps)


_KINDS = ((create, 30), (create_two, 4), (run, 26), (read_value, 22), (read_all, 7), (read_line, 3), (read_missing, 2), (edit, 6), (list_files, 4), (copy_text, 3), (create_and_run, 3))
_NEEDS_SHELL = (run, create_and_run)


def exchange(rng: random.Random, box: Toolbox) -> Exchange:
    """A random task that this tool list can do."""
    while True:
        kind = rng.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
        can_read = box.has("read") or box.has("run")
        can_write = box.has("write") or box.has("run")
        if kind in _NEEDS_SHELL and not box.has("run"):
            continue
        if can_read and can_write:
            return kind(rng, box)
        if can_write and kind in (create, create_two):
            return kind(rng, box)
