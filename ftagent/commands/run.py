"""`ftagent run AGENT`: a coding agent as a child of this process, on the model that this process serves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ftagent import adapters, paths
from ftagent.adapters import base, process
from ftagent.commands import interactive
from ftagent.commands.common import (
    ENGINE_FLAGS,
    emit,
    errors_as_events,
    json_flag,
    load_settings,
    log_to_stderr,
    narrate,
    open_engine,
    setting_flags,
)
from ftagent.engine.api import Engine
from ftagent.errors import ConfigError
from ftagent.settings import Settings


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks of a run, besides the settings."""

    agent: str
    task: str | None
    events: bool
    ask: bool
    lean: bool | None
    engine_url: str | None
    timeout_s: float | None
    arguments: tuple[str, ...]
    way: interactive.Way | None = None


@click.command()
@click.argument("agent", metavar="AGENT")
@click.argument("arguments", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-p", "--task", metavar="TASK", help="Do this without a screen and end; `-` reads it from stdin."
)
@json_flag
@click.option(
    "--pane", "way", flag_value="pane", help="Show the agent beside the engine's figures. Default if it fits."
)
@click.option("--exec", "way", flag_value="exec", help="Give the agent the whole terminal.")
@click.option("--tmux", "way", flag_value="tmux", help="The same, and the figures in a tmux pane beside it.")
@click.option("--ask", is_flag=True, help="With -p: deny what the agent would have to ask for.")
@click.option(
    "--lean/--no-lean",
    default=None,
    help="Offer the agent's basic tools only, which makes the first prompt a third as long. "
    "Default: only on the embedded model, which is too small for more.",
)
@click.option(
    "--engine", "engine_url", metavar="URL", help="Use a running engine; FTAGENT_TOKEN is its token."
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="With -p: end the agent after so long, with exit code 124.",
)
@click.option("--pass-env", multiple=True, metavar="NAME", help=Settings.model_fields["pass_env"].description)
@setting_flags(ENGINE_FLAGS)
def command(
    agent: str,
    task: str | None,
    way: interactive.Way | None,
    engine_url: str | None,
    as_json: bool,
    **rest: Any,
) -> int:
    """Run a coding agent on the model. AGENT: claude-code, codex, opencode, pi, qwen-code, or custom.

    With -p the agent works through TASK unattended, without asking for permission: in this directory, with
    your rights. Give --ask to have it denied whatever it would ask for. Without -p the agent has a screen,
    and asks as it always does: beside the engine's figures in a terminal of 100 x 20 or more, else alone.
    What follows -- goes to the agent.

    The agent's keys and settings stay out: it sees a short list of variables, its state lives in a directory
    of ftagent's, and your own ~/.claude, ~/.codex and so on are neither read nor written. The exit code is
    the agent's.

    `custom -- CMD ARGS` runs any other program, told of the engine by the variables that clients of OpenAI
    and Anthropic read; {task}, {model}, {url} and {context} are filled in. Its own settings are its business.
    """
    wish = Wish(
        agent,
        _task(task),
        as_json,
        rest.pop("ask"),
        rest.pop("lean"),
        engine_url,
        rest.pop("timeout_s"),
        rest.pop("arguments"),
        way,
    )
    with errors_as_events(as_json):
        _check(wish)
        return _run(wish, load_settings(rest).values)


def _task(value: str | None) -> str | None:
    return sys.stdin.read() if value == "-" else value


def _check(wish: Wish) -> None:
    """Refuse combinations that cannot work. Raises ConfigError."""
    if wish.task is not None:
        if wish.way:
            raise ConfigError(f"--{wish.way} and -p exclude each other: with -p the agent has no screen")
        if not wish.task.strip():
            raise ConfigError("the task is empty; say what to do with -p TASK")
        return
    for given, flag in ((wish.events, "--json"), (wish.ask, "--ask"), (wish.timeout_s, "--timeout")):
        if given:
            raise ConfigError(f"{flag} needs -p TASK: without it the agent has the terminal")
    interactive.choose(wish.way)


def _run(wish: Wish, settings: Settings) -> int:
    adapter = adapters.get(wish.agent)
    project = Path.cwd()
    # Whatever can be refused is refused before a model is loaded for it.
    environment = base.scrubbed(adapter, os.environ, settings.pass_env)
    named = getattr(settings, adapter.setting, None)
    program = base.program(adapter, named, environment, project, wish.arguments)
    directory = paths.private_dir(base.project_directory(paths.state_dir(), adapter, project))
    log_to_stderr()
    with _target(wish, settings) as (target, engine):
        launch = adapter.prepare(
            base.Order(
                program=program.words,
                target=target,
                directory=directory,
                project=project,
                task=wish.task,
                events=wish.events,
                unattended=wish.task is not None and not wish.ask,
                lean=_lean(wish, engine),
                arguments=program.arguments,
            )
        )
        try:
            child = {**environment, **launch.environment}
            if wish.task is None:
                seen = interactive.Interactive(
                    adapter, launch.arguments, child, target, engine, settings.prefix_key
                )
                code = interactive.run(seen, interactive.choose(wish.way))
                if adapter.resume:
                    narrate(f"to go on: ftagent run {adapter.name} -- {' '.join(adapter.resume)}")
                return code
            if wish.events:
                emit(_session(wish, program.version, target, directory))
            return _headless(wish, launch.arguments, child, engine)
        finally:
            for file in launch.scratch:
                file.unlink(missing_ok=True)


def _lean(wish: Wish, engine: Engine | None) -> bool:
    """What was asked for, else whether the model is the embedded one."""
    return wish.lean if wish.lean is not None else engine is not None and engine.model.embedded


@contextlib.contextmanager
def _target(wish: Wish, settings: Settings) -> Iterator[tuple[base.Target, Engine | None]]:
    """The engine to use: another process's, or one of our own behind a gateway on the loopback."""
    if wish.engine_url:
        from ftagent.commands.attach import probe

        yield probe(wish.engine_url, settings.token), None
        return
    with open_engine(settings) as engine:
        from ftagent.gateway.announce import announce
        from ftagent.gateway.server import start_gateway

        with start_gateway(engine) as gateway, announce(gateway.url, gateway.token, engine.model.id):
            token = gateway.token or ""
            yield base.Target(gateway.url, token, engine.model.id, engine.model.context), engine


def _headless(wish: Wish, arguments: tuple[str, ...], env: dict[str, str], engine: Engine | None) -> int:
    if not wish.ask:
        narrate(f"{wish.agent} works unattended in {Path.cwd()}: it may change files and run commands")
    began = time.monotonic()
    ended = process.run_headless(arguments, env, _forward if wish.events else None, wish.timeout_s)
    if ended.timed_out:
        narrate(f"ftagent: {wish.agent} was stopped after {wish.timeout_s:g} s (--timeout)")
    elif ended.signal:
        narrate(f"ftagent: {wish.agent} was ended by {signal.Signals(ended.signal).name}")
    if wish.events:
        if engine:
            emit({"type": "usage", **_usage(engine)})
        seconds = round(time.monotonic() - began, 3)
        emit({"type": "exit", "code": ended.exit_code, "signal": ended.signal, "seconds": seconds})
    return ended.exit_code


def _forward(stream: process.Stream, line: str) -> None:
    """Wrap a line of the agent: JSON of its stdout as an event, anything else as text."""
    if stream == "stdout":
        with contextlib.suppress(ValueError):
            emit({"type": "agent", "event": json.loads(line)})
            return
    emit({"type": "output", "stream": stream, "text": line})


def _session(wish: Wish, version: str, target: base.Target, directory: Path) -> dict[str, Any]:
    return {
        "type": "session",
        "version": 1,
        "agent": wish.agent,
        "agent_version": version,
        "model": target.model,
        "context": target.context,
        "url": target.url,
        "project": str(Path.cwd()),
        "agent_directory": str(directory),
    }


def _usage(engine: Engine) -> dict[str, int]:
    """Tokens since the engine started; it was started for this run."""
    stats = engine.stats()
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "completion_tokens": stats.completion_tokens,
    }
