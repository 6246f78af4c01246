"""Everything the chat screen can be told to do: one table, from which keys, slash commands, /help and the
footer are made. Knows no widget. A row of scope `app` is the method `action_<id>` (keys) or `command_<id>`
(slash) of `chat.ChatApp`; one of scope `prompt` is `do_<id>` of `prompt.PromptInput`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

_SLASH = re.compile(r"/(\S+)(?:[ \t]+(.*))?")
_NAME = re.compile(r"[A-Za-z?]+")
_KEY_NAMES = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "up": "↑", "down": "↓"}


@dataclass(frozen=True, slots=True)
class Action:
    """`keys` are Textual's key names; `slash` is the command's name without the slash, if it has one.

    `label` is the word for the footer; without one the action is not shown there. Scope `prompt` is for keys
    that must come after the letters typed before them, since the prompt's letters wait in its own queue.
    """

    id: str
    help: str
    keys: tuple[str, ...] = ()
    slash: str = ""
    arguments: str = ""
    label: str = ""
    scope: Literal["app", "prompt"] = "app"


ACTIONS = (
    Action("send", "send the message", keys=("enter",), label="send", scope="prompt"),
    Action("newline", "start a new line", keys=("shift+enter", "ctrl+j"), label="new line", scope="prompt"),
    Action("stop", "stop the answer at once; what came so far is kept", keys=("escape",), label="stop"),
    Action("interrupt", "stop or clear; twice quits", keys=("ctrl+c",)),
    Action("leave_if_empty", "quit, when nothing is typed", keys=("ctrl+d",), label="quit", scope="prompt"),
    Action("older_prompt", "the prompt before", keys=("up",), scope="prompt"),
    Action("newer_prompt", "the prompt after", keys=("down",), scope="prompt"),
    Action("page_back", "scroll back", keys=("pageup",)),
    Action("page_on", "scroll on", keys=("pagedown",)),
    Action("fold", "fold or unfold all thinking", keys=("ctrl+o",), label="thinking"),
    Action("help", "show keys and commands", keys=("f1",), slash="help", label="help"),
    Action("new", "start a new session", slash="new"),
    Action(
        "resume",
        "go on with another session, the one used last if no id is given",
        slash="resume",
        arguments="[ID]",
    ),
    Action("sessions", "list the sessions", slash="sessions"),
    Action("think", "let the model think before it answers, or not", slash="think", arguments="on|off"),
    Action("stats", "show the engine's figures in full", slash="stats"),
    Action("copy", "send the last answer to the terminal's clipboard", slash="copy"),
    Action("export", "write the session to a Markdown file", slash="export", arguments="FILE"),
    Action("suspend", "suspend to the shell", keys=("ctrl+z",)),
    Action("exit", "quit", slash="exit"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command as typed. `action` is None when there is none of that `name`."""

    name: str
    argument: str
    action: Action | None


def parse_command(typed: str) -> Command | None:
    """The command that `typed` is, or None if it is a message.

    A message may start with a slash: a path (`/etc/hosts`), several lines, or a space before the slash.
    """
    match = _SLASH.fullmatch(typed.rstrip())
    if not match or not _NAME.fullmatch(match[1]):
        return None
    name = match[1].lower()
    action = next((action for action in ACTIONS if action.slash == name), None)
    return Command(name, (match[2] or "").strip(), action)


def unknown_command(name: str) -> str:
    """One line for a command that does not exist: the nearest one, and how to send the text as it is."""
    known = [action.slash for action in ACTIONS if action.slash]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean /{nearest[0]}?" if nearest else "/help lists all."
    return f"/{name} is no command; {hint} To send it as a message, start with a space."


def key_name(key: str) -> str:
    """A key as people write it: `ctrl+j` is Ctrl+J."""
    parts = [_KEY_NAMES.get(part, part.upper() if len(part) < 3 else part.title()) for part in key.split("+")]
    return "+".join(parts)


def help_lines() -> list[tuple[str, str]]:
    """Rows of /help: how to call it, what it does; keys first, then commands."""
    keys = [(" or ".join(map(key_name, action.keys)), action.help) for action in ACTIONS if action.keys]
    commands = [
        (f"/{action.slash} {action.arguments}".rstrip(), action.help) for action in ACTIONS if action.slash
    ]
    return keys + commands


def footer_labels() -> list[str]:
    """What the footer shows, the most useful first."""
    return [f"{key_name(action.keys[-1])} {action.label}" for action in ACTIONS if action.label]
