"""`ftagent config`: where the settings are, what each is, where it comes from, whether all are valid."""

from __future__ import annotations

import json
from typing import Any

import click

from ftagent import paths
from ftagent.commands.common import emit, json_flag, load_settings
from ftagent.settings import Settings


@click.group()
def command() -> None:
    """Show and check the settings.

    A value comes from the command line, else from FTAGENT_<KEY>, else from the file, else it is the default.
    """


@command.command()
@json_flag
def path(as_json: bool) -> None:
    """Print where the settings file is, whether it exists or not."""
    file = paths.config_file()
    if as_json:
        emit({"path": str(file), "exists": file.exists()})
    else:
        click.echo(file)


@command.command()
@json_flag
def show(as_json: bool) -> None:
    """Print every setting in force and where it comes from."""
    loaded = load_settings({})
    values: dict[str, Any] = loaded.values.model_dump(mode="json")
    if values["token"]:
        values["token"] = "(set, not shown)"
    if as_json:
        emit({key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()})
        return
    rows = [(key, "unset" if value in (None, []) else json.dumps(value)) for key, value in values.items()]
    wide, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, shown in rows:
        click.echo(f"{key:<{wide}}  {shown:<{middle}}  {loaded.sources[key]}")


@command.command()
@json_flag
def validate(as_json: bool) -> None:
    """Check the settings. Exit code 2, and the key at fault on stderr, when one is wrong."""
    file = paths.config_file()
    load_settings({})
    if as_json:
        emit({"valid": True, "path": str(file), "exists": file.exists()})
    else:
        click.echo(f"valid: {file}" if file.exists() else f"valid: {file} does not exist, defaults apply")


@command.command()
def schema() -> None:
    """Print the JSON Schema of the settings file."""
    click.echo(json.dumps(Settings.model_json_schema(), indent=2))
