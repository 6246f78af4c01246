"""The table of actions: what is a command and what is a message."""

from __future__ import annotations

import pytest

from ftagent.tui.actions import ACTIONS, footer_labels, help_lines, key_name, parse_command, unknown_command


def test_no_key_command_or_id_is_taken_twice() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    commands = [action.slash for action in ACTIONS if action.slash]
    ids = [action.id for action in ACTIONS]
    for names in (keys, commands, ids):
        assert len(names) == len(set(names))
    assert all(action.keys or action.slash for action in ACTIONS)


@pytest.mark.parametrize(
    ("typed", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/HELP  ", "help", ""),
        ("/resume 2026", "resume", "2026"),
        ("/export  my file.md ", "export", "my file.md"),
    ],
)
def test_commands(typed: str, name: str, argument: str) -> None:
    command = parse_command(typed)
    assert command is not None
    assert command.action is not None
    assert (command.action.slash, command.argument) == (name, argument)


@pytest.mark.parametrize(
    "typed", ["hello", "/etc/hosts", "/usr/bin is full", " /help", "/help\nme", "/", "// x", "/2"]
)
def test_messages(typed: str) -> None:
    assert parse_command(typed) is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/halp", "did you mean /help?"),
        ("/sesions", "did you mean /sessions?"),
        ("/zzzzqq", "/help lists all"),
    ],
)
def test_unknown_commands_name_the_nearest(typed: str, said: str) -> None:
    command = parse_command(typed)
    assert command is not None
    assert command.action is None
    assert said in unknown_command(command.name)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("escape", "Esc"),
        ("ctrl+j", "Ctrl+J"),
        ("shift+enter", "Shift+Enter"),
        ("f1", "F1"),
        ("pageup", "PgUp"),
    ],
)
def test_key_names(key: str, name: str) -> None:
    assert key_name(key) == name


def test_help_has_every_action_and_the_footer_the_labelled_ones() -> None:
    helped = [text for _, text in help_lines()]
    assert set(helped) == {action.help for action in ACTIONS}
    assert len(footer_labels()) == sum(bool(action.label) for action in ACTIONS)
    assert footer_labels()[0] == "Enter send"
