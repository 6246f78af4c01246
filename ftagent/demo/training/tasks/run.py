"""Requests to run a shell command and say what came out."""

from __future__ import annotations

import random

from ftagent.demo.training.commands import Command, command
from ftagent.demo.training.tasks.asking import ask, quoted, spaced
from ftagent.demo.training.tasks.steps import Exchange, run_step
from ftagent.demo.training.tools import Toolbox
from ftagent.demo.training.ways import ways

_VERBS = ("run", "run", "run", "execute", "call", "use the shell to run")
_WHAT = ways(
    """
    {c} | {c} | the command {c} | the command {c} | the shell command {c} | {c} in the shell | {c}
    in the terminal | this command: {c} | the following command: {c}
    """
)
_TAILS = ways(
    """
    | | and report the output | and tell me what it prints | and tell me the output | and show me
    the output | and report what it prints | and report the result | and say what it printed | and
    give me the result | and tell me the result | and report | , then tell me what it printed | ,
    then report its output | and repeat its output
    """
)
_QUESTIONS = ways(
    """
    What does {c} print? | What is the output of {c}? | What does the command {c} print? | Tell me
    the output of {c}. | Show me the output of {c}. | What happens when you run {c}?
    """
)
_BARE = ways(
    """
    run {c} | run the command {c} | execute {c} | run {c} in the shell | run this command and tell
    me the output: {c} | run this and report the output: {c} | execute the following command: {c} |
    run {c} and tell me the output | run {c} and report
    """
)


def _report(done: Command) -> str:
    if done.exit_code:
        return f"The command failed: {done.output}"
    if not done.output:
        return "The command ran and printed nothing."
    if "\n" in done.output:
        return f"The command printed:\n\n```\n{done.output}\n```"
    return f"The command printed: {done.output}"


def _ask_for(rng: random.Random, line: str, code: str) -> str:
    """`code` is the line in its quotation marks."""
    verb, what, tail = rng.choice(_VERBS), rng.choice(_WHAT).format(c=code), spaced(rng.choice(_TAILS))
    text = ask(rng, f"{verb} {what}{tail}")
    if rng.random() < 0.06:
        lead = ask(rng, f"{verb} this command{tail}", ending=False) + rng.choice((":\n\n", ":\n"))
        return lead + rng.choice((line, f"```\n{line}\n```", f"```bash\n{line}\n```"))
    if rng.random() < 0.12:
        return rng.choice(_QUESTIONS).format(c=code)
    return text


def run(rng: random.Random, box: Toolbox) -> Exchange:
    """One command, in quotation marks or bare."""
    done = command(rng)
    line = done.line
    code = quoted(rng, line) if rng.random() < 0.35 else f"`{line}`"
    if rng.random() < 0.15 and len(line) < 40 and "`" not in line:
        # Without quotation marks the command runs to the end of the request or to the next phrase.
        text = ask(rng, rng.choice(_BARE).format(c=line), ending=False)
    else:
        text = _ask_for(rng, line, code)
    thought = "It failed." if done.exit_code else "The command ran."
    return Exchange(text, _report(done), thought, (run_step(rng, box, done),))
