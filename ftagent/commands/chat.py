"""`ftagent chat`: the chat screen, or one answer with `-p`."""

from __future__ import annotations

import sys
from typing import Any

import click

from ftagent.answer import answer_once, combined_prompt
from ftagent.commands.common import (
    ENGINE_FLAGS,
    errors_as_events,
    json_flag,
    load_settings,
    log_to_file,
    log_to_stderr,
    open_engine,
    setting_flags,
)
from ftagent.errors import ConfigError
from ftagent.sessions import NEWEST, SessionStore, default_directory
from ftagent.settings import Settings


@click.command()
@click.option(
    "-p",
    "--prompt",
    metavar="[TEXT]",
    is_flag=False,
    flag_value="",
    help="Answer once on stdout and end; what is piped in follows TEXT.",
)
@json_flag
@click.option(
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=NEWEST,
    help="Go on with a session: the newest, or the one whose id starts with ID.",
)
@click.option("--thinking/--no-thinking", default=None, help="Let the model think first. Default: its own.")
@setting_flags(ENGINE_FLAGS)
def command(
    prompt: str | None, as_json: bool, resume: str | None, thinking: bool | None, **flags: Any
) -> int:
    """Talk to the model.

    Without -p: a full screen; needs a terminal. With -p: the answer on stdout, or events with --json.
    """
    with errors_as_events(as_json):
        settings = load_settings(flags).values
        if prompt is not None:
            return _answer(settings, combined_prompt(prompt, sys.stdin), as_json, resume, thinking)
        if as_json:
            raise ConfigError("--json needs -p: the chat screen has no JSON form")
        return _screen(settings, resume, thinking)


def _answer(settings: Settings, prompt: str, as_json: bool, resume: str | None, thinking: bool | None) -> int:
    log_to_stderr()
    store = SessionStore(default_directory())
    resumed = store.resume(resume) if resume else None
    with open_engine(settings) as engine:
        session = resumed or store.create(engine.model.id)
        return answer_once(
            engine,
            prompt,
            as_json=as_json,
            out=sys.stdout,
            err=sys.stderr,
            session=session,
            thinking=thinking,
        )


def _screen(settings: Settings, resume: str | None, thinking: bool | None) -> int:
    from ftagent.tui.chat import need_terminal, run_chat

    need_terminal()  # refused before a model is loaded for it
    store = SessionStore(default_directory())
    resumed = store.resume(resume).id if resume else None  # this as well
    with open_engine(settings) as engine:
        log_to_file()
        return run_chat(engine, store=store, resume=resumed, thinking=thinking)
