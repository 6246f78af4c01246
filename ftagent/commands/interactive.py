"""An agent with a screen: in a pane beside the figures, or on the whole terminal, alone or in tmux."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import click

from ftagent.adapters import process
from ftagent.adapters.base import Adapter, Target
from ftagent.commands.common import log_to_file
from ftagent.engine.api import Engine
from ftagent.errors import ConfigError
from ftagent.gateway.announce import announce

Way = Literal["pane", "exec", "tmux"]

_FIGURES_COLUMNS = 36  # of the tmux pane
_FINDING = ("HOME", "XDG_STATE_HOME", "PYTHONPATH", "LANG", "LC_ALL", "COLORTERM")  # none holds a secret
# What tells an agent about the user's terminal, which is not the one it runs in.
_OUTER = ("TMUX", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLORFGBG")


@dataclass(frozen=True, slots=True)
class Interactive:
    """One run of an agent with a screen."""

    adapter: Adapter
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)  # has the engine's token
    target: Target = field(repr=False)
    engine: Engine | None  # of this process; else the one at `target`
    prefix_key: str


def choose(asked: Way | None) -> Way:
    """What was asked for, else a pane where there is room for one. Raises ConfigError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("no terminal for the agent, stdin or stdout is none; give the task with -p TASK")
    if asked == "tmux" and not (os.environ.get("TMUX") and shutil.which("tmux")):
        raise ConfigError("--tmux works inside tmux alone; start `tmux` first, or use --pane")
    if asked == "pane":
        from ftagent.tui.lifetime import need_terminal

        need_terminal("--pane", "use --exec")
    if asked is not None:
        return asked
    from ftagent.tui.panes import COLUMNS, ROWS

    columns, rows = shutil.get_terminal_size()
    room = columns >= COLUMNS and rows >= ROWS and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return "pane" if room else "exec"


def run(run: Interactive, way: Way) -> int:
    """Run the agent to its end; returns the exit code. Raises AgentNotExecutable or AgentFailed."""
    log_to_file()
    if way == "pane":
        return _in_pane(run)
    with _figures_beside(run) if way == "tmux" else contextlib.nullcontext():
        return process.run_foreground(run.arguments, run.environment).exit_code


def _in_pane(run: Interactive) -> int:
    from ftagent.tui.feed import Feed, LocalFeed, RemoteFeed
    from ftagent.tui.host_keys import HostKeys
    from ftagent.tui.run import Agent, run_agent
    from ftagent.tui.terminal.outer import ask_colours

    keys = HostKeys(run.prefix_key)
    feed: Feed = LocalFeed(run.engine) if run.engine else RemoteFeed(run.target.url, run.target.token)
    try:
        environment = pane_environment(run.adapter, run.environment)
        agent = Agent(run.adapter.name, run.arguments, environment)
        outcome = run_agent(agent, feed, keys, ask_colours(sys.stdin.fileno()))
    finally:
        feed.close()
    if outcome.screen:  # what the agent showed last stays to be read
        click.echo("\n".join(outcome.screen))
    return outcome.exit_code


def pane_environment(adapter: Adapter, environment: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment in the pane: the terminal it names is ours."""
    inner = {key: value for key, value in environment.items() if key not in _OUTER}
    return {**inner, "TERM": "xterm-256color", "COLORTERM": "truecolor", **adapter.pane}


@contextlib.contextmanager
def _figures_beside(run: Interactive) -> Iterator[None]:
    """`ftagent top` in a tmux pane at the right while the agent runs. It finds the engine by its note."""
    top = [sys.executable, "-m", "ftagent", "top", "--pid", str(os.getpid())]
    # A new pane has the environment of tmux's server, which may know another home.
    known = [word for name in _FINDING if name in os.environ for word in ("-e", f"{name}={os.environ[name]}")]
    split = [
        "tmux",
        "split-window",
        "-h",
        "-d",
        "-l",
        str(_FIGURES_COLUMNS),
        *known,
        "-P",
        "-F",
        "#{pane_id}",
    ]
    elsewhere = announce(run.target.url, run.target.token, run.target.model)
    with contextlib.nullcontext() if run.engine else elsewhere:
        done = subprocess.run([*split, *top], capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip()
            raise ConfigError(f"tmux has no room for figures beside the agent: {said}; use --exec")
        try:
            yield
        finally:
            subprocess.run(["tmux", "kill-pane", "-t", done.stdout.strip()], capture_output=True, check=False)
