"""Starts the run screen with a program of the tests' on a scripted engine, for tests in a real terminal.

    python -m tests.support.pane_runner [--prefix KEY] [--crash] -- PROGRAM [ARGUMENT]...

Prints its process id first, and when the screen has ended the program's last screen. Exits with its code.
`--crash` lets the app fail when the program sets its title.
"""

from __future__ import annotations

import argparse
import os
import sys

from ftagent.tui import run as screen
from ftagent.tui.feed import LocalFeed
from ftagent.tui.host_keys import HostKeys
from ftagent.tui.terminal.outer import ask_colours
from tests.support.scripted import ScriptedEngine


def crash(self: screen.RunFooter, title: str) -> None:
    raise RuntimeError("a defect of the screen")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", default="ctrl+]")
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    if options.crash:
        screen.RunFooter.titled = crash  # type: ignore[method-assign]
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL", "PYTHONPATH") if key in os.environ}
    environment = {**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    print(f"pid={os.getpid()}", flush=True)  # noqa: T201
    agent = screen.Agent("probe", options.program, environment)
    feed = LocalFeed(ScriptedEngine(lambda request: []))
    outcome = screen.run_agent(agent, feed, HostKeys(options.prefix), ask_colours(sys.stdin.fileno()))
    print(*outcome.screen, sep="\n", flush=True)  # noqa: T201
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
