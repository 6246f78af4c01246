"""Ten tasks for the real Claude Code on the embedded model: how many have the right effect and exit code 0?

    FTAGENT_CLAUDE=... python benchmarks/claude_tasks.py [--lean]

Each runs headless in a git repository of its own, behind the client's whole prompt unless `--lean` is given.
The tasks were worded by hand, not by the tables that training draws from. Prints a line per task, then the
count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Check = Callable[[Path, str], bool]
INVENTORY = "item,count\nbolt,12\nnut,9\nscrew,30\n"
SETTINGS = '[server]\nworkers = 16\ncodename = "bluebird"\nport = 9001\n'


def holds(name: str, text: str) -> Check:
    """The file is there with this text, white space around it aside."""
    return lambda project, said: (project / name).is_file() and (project / name).read_text().strip() == text


def says(text: str) -> Check:
    return lambda project, said: text in said


TASKS: tuple[tuple[str, Check], ...] = (
    (
        'Create a file named weather.txt with the text "Sunny with a chance of penguins".',
        holds("weather.txt", "Sunny with a chance of penguins"),
    ),
    ("Write the line 'retries = 7' to limits.cfg", holds("limits.cfg", "retries = 7")),
    (
        'Please make a new file docs/plan.md containing "Step one: breathe."',
        holds("docs/plan.md", "Step one: breathe."),
    ),
    (
        "Run the command `echo tangerine-88 > color.out` and report what happened.",
        holds("color.out", "tangerine-88"),
    ),
    ("Run `wc -l inventory.csv` and tell me the output.", says("4 inventory.csv")),
    ("Read inventory.csv and tell me what its first line says.", says("item,count")),
    ("Read app.toml and tell me the value of workers.", says("16")),
    ("What is the value of codename in app.toml?", says("bluebird")),
    (
        "Execute the command 'mkdir -p a/b && touch a/b/c.txt'.",
        lambda project, said: (project / "a/b/c.txt").is_file(),
    ),
    (
        "Create hello.sh with this content:\n```\n#!/bin/sh\necho hi there\n```",
        holds("hello.sh", "#!/bin/sh\necho hi there"),
    ),
)


def repository(directory: Path) -> None:
    """A git repository with two committed files."""
    (directory / "inventory.csv").write_text(INVENTORY)
    (directory / "app.toml").write_text(SETTINGS)
    git = ("git", "-c", "user.name=T", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Start")):
        subprocess.run((*git, *arguments), cwd=directory, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lean", action="store_true", help="offer the client's basic tools only")
    flag = "--lean" if parser.parse_args().lean else "--no-lean"
    good = 0
    for task, check in TASKS:
        with tempfile.TemporaryDirectory() as name:
            repository(Path(name))
            began = time.monotonic()
            command = (sys.executable, "-m", "ftagent", "run", "claude-code", flag, "-p", task)
            done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
            right = done.returncode == 0 and check(Path(name), done.stdout)
            good += right
            seconds = time.monotonic() - began
            print(
                f"{'right' if right else 'WRONG'}  {seconds:4.0f} s  {task!r}: {done.stdout.strip()!r}",
                flush=True,
            )
    print(f"{good} of {len(TASKS)}")


if __name__ == "__main__":
    main()
