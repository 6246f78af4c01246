"""Makes the recordings of this directory again: `python -m tests.tui.terminal.record [NAME]...`.

Each is a program on a terminal of its own, in a directory that is made for it, so that what it shows is ours.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tui.terminal.casts import RECORDINGS, Size, write_cast

QUIET_S = 0.4  # a program that has written nothing for so long waits for a key


class Recipe(NamedTuple):
    """A command, and what is typed or resized each time it has become quiet."""

    command: Sequence[str]
    keys: Sequence[bytes | Size] = ()
    size: Size = Size(80, 24)


RECIPES = {
    "vim": Recipe(
        ("vim", "-Nu", "NONE", "-c", "syntax on", "-c", "set number hlsearch ruler laststatus=2", "walk.py"),
        (
            b"/node\r",
            b"cwbranch\x1b",
            b":vsplit\r",
            b"Go# the end\x1b",
            Size(100, 30),
            b"gg",
            b"\x06",
            b":q\r",
        ),
    ),
    "less": Recipe(("less", "-RN", "colours.txt"), (b" ", b"/wave\r", b"n", b"G", Size(60, 15), b"b")),
    "ls": Recipe(("ls", "--color=always", "-la", "--time-style=+", "files")),
    "git": Recipe(("git", "-P", "log", "--graph", "--color=always", "--oneline", "--stat")),
    "htop": Recipe(
        ("unshare", "-rpf", "--mount-proc", "htop", "-d", "5"),
        (b"t", b"\x1b[B", b"I", Size(100, 20), b"\x1b[B", b"\x1b[A"),
    ),
    "inline": Recipe(
        (sys.executable, "-m", "tests.tui.terminal.inline_agent"), (b"a", b"b", Size(70, 20), b"c")
    ),
    "dialog": Recipe(
        (sys.executable, "-m", "tests.tui.terminal.curses_dialog"), (b"\t", b"\x1b[B", Size(50, 18), b"x")
    ),
}


def record(recipe: Recipe, directory: Path) -> Iterator[tuple[float, str, str]]:
    """Run the recipe; yields the events of its recording."""
    master, slave = os.openpty()
    _set_size(master, recipe.size)
    kept = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    kept |= {
        "COLORTERM": "truecolor",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    process = subprocess.Popen(
        recipe.command,
        cwd=directory,
        env=kept,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # else it would hear of no resize
    )
    os.close(slave)
    decode = codecs.getincrementaldecoder("utf-8")().decode
    keys = list(recipe.keys)
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([master], [], [], QUIET_S)
        now = time.monotonic()
        if ready:
            try:
                data = os.read(master, 65536)
            except OSError:  # the program has ended
                break
            yield now - last, "o", decode(data)
            last = now
        elif not keys:
            break
        elif isinstance(key := keys.pop(0), Size):
            _set_size(master, key)
            yield now - last, "r", f"{key.columns}x{key.rows}"
            last = now
        else:
            os.write(master, key)
    process.kill()
    process.wait()
    os.close(master)


def _set_size(master: int, size: Size) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", size.rows, size.columns, 0, 0))


def make_content(directory: Path) -> None:
    """Files for the programs to show."""
    (directory / "walk.py").write_text(
        '"""Walks a tree."""\n\n\n'
        + "\n\n".join(
            f"def visit_{number}(node: dict[str, int]) -> int:\n"
            f"    # node {number}: strings, numbers, a wide 日本 word\n"
            f'    return node["{number}"] + {number * 7} if node else 0x{number:x}\n'
            for number in range(40)
        )
    )
    lines = [
        f"\x1b[3{number % 8}mwave {number:3}\x1b[0m \x1b[38;2;{number % 256};90;200m"
        f"{'≈' * (number % 60)}\x1b[0m \x1b[1;4mend\x1b[0m"
        for number in range(300)
    ]
    (directory / "colours.txt").write_text("\n".join(lines) + "\n")
    files = directory / "files"
    for name in ("src", "docs"):
        (files / name).mkdir(parents=True)
    for name in ("run.sh", "notes.md", "picture.png", "archive.tar.gz", "名前.txt"):
        (files / name).write_text(name * 9)
    (files / "run.sh").chmod(0o755)
    (files / "link").symlink_to("run.sh")
    _make_history(directory)


def _make_history(directory: Path) -> None:
    who = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    for role in ("AUTHOR", "COMMITTER"):
        who |= {
            f"GIT_{role}_NAME": "A",
            f"GIT_{role}_EMAIL": "a@example.org",
            f"GIT_{role}_DATE": "2026-01-01T12:00Z",
        }

    def git(*arguments: str) -> None:
        subprocess.run(("git", *arguments), cwd=directory, env=who, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", "walk.py")
    git("commit", "-m", "Walk a tree")
    git("checkout", "-b", "colours")
    git("add", "colours.txt")
    git("commit", "-m", "Colours of waves")
    git("checkout", "main")
    git("add", "files")
    git("commit", "-m", "Files, one with a wide name")
    git("merge", "--no-ff", "-m", "Both together", "colours")


def main(names: Sequence[str]) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    for name in names or RECIPES:
        with tempfile.TemporaryDirectory() as scratch:
            make_content(Path(scratch))
            recipe = RECIPES[name]
            write_cast(RECORDINGS / f"{name}.cast", recipe.size, name, record(recipe, Path(scratch)))


if __name__ == "__main__":
    main(sys.argv[1:])
