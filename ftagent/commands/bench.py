"""`ftagent bench`: decode and prefill speed on this machine, with what is needed to compare the figures."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ftagent import __version__
from ftagent.commands.common import (
    ENGINE_FLAGS,
    emit,
    json_flag,
    load_settings,
    log_to_stderr,
    open_engine,
    setting_flags,
)
from ftagent.commands.processor import processor

if TYPE_CHECKING:
    from ftagent.engine.bench import DecodeResult, PrefillResult

_REPEATS = click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs; their median counts.",
)


@click.group()
def command() -> None:
    """Measure decode and prefill speed."""


@command.command()
@click.option(
    "--behind",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of the prompt before them.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=2),
    default=256,
    show_default=True,
    help="Tokens to generate.",
)
@_REPEATS
@json_flag
@setting_flags(ENGINE_FLAGS)
def decode(behind: int, tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Tokens per second that one request is given, once it has begun."""
    log_to_stderr()
    with open_engine(load_settings(flags).values) as engine:
        from ftagent.engine.bench import bench_decode

        _report("decode", bench_decode(engine, context=behind, tokens=tokens, repeats=repeats), as_json)


@command.command()
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Tokens of the prompt.",
)
@_REPEATS
@json_flag
@setting_flags(ENGINE_FLAGS)
def prefill(tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Seconds from a request to its first token, for a prompt of which nothing is kept."""
    log_to_stderr()
    with open_engine(load_settings(flags).values) as engine:
        from ftagent.engine.bench import bench_prefill

        _report("prefill", bench_prefill(engine, tokens=tokens, repeats=repeats), as_json)


def _report(name: str, result: DecodeResult | PrefillResult, as_json: bool) -> None:
    machine = processor()
    if as_json:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        emit(
            {
                "bench": name,
                "version": __version__,
                "date": date,
                "machine": asdict(machine),
                **asdict(result),
            }
        )
        return
    for key, value in asdict(result).items():
        click.echo(f"{key:<15} {_shown(value)}")
    click.echo(f"{'machine':<15} {machine.name}, {machine.cores} cores")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, tuple):
        return "  ".join(map(_shown, value))
    return str(value)
