"""Writes the reference of the command line from its own help: `python -m tests.support.cli_reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from ftagent.cli import cli

HEADING = """# Command line

Made from `--help` by `python -m tests.support.cli_reference > docs/cli.md`; a test compares the two.
"""
_WIDTH = 100


def reference() -> str:
    """All of docs/cli.md."""
    return HEADING + "".join(_sections(cli, None))


def _sections(command: click.Command, parent: click.Context | None) -> Iterator[str]:
    name = command.name if parent else "ftagent"
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    context.help_option_names = ["-h", "--help"]
    yield f"\n## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child
            child.name = child_name
            yield from _sections(child, context)


if __name__ == "__main__":
    sys.stdout.write(reference())
