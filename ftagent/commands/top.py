"""`ftagent top`: the figures of a running engine, live, or once for scripts."""

from __future__ import annotations

import click

from ftagent.commands.common import emit, errors_as_events, json_flag
from ftagent.commands.figures import as_json as report_json
from ftagent.commands.figures import engine_flags, where
from ftagent.errors import ConfigError
from ftagent.gateway.client import Reader, Report


@click.command()
@engine_flags
@click.option("--once", is_flag=True, help="Print the figures once, without a screen.")
@json_flag
def command(engine_url: str | None, pid: int | None, once: bool, as_json: bool) -> int:
    """Show what a running engine does: speeds, caches, experts, memory, requests. q leaves.

    The engine is the one that `ftagent serve`, `run` or `chat` started last on this machine, or the one at
    --engine URL.
    """
    with errors_as_events(as_json):
        if as_json and not once:
            raise ConfigError("--json needs --once: the screen is for people")
        if not once:
            from ftagent.tui import lifetime

            lifetime.need_terminal("top", "for the figures of now use `ftagent top --once`")
        url, token = where(engine_url, pid)
        report = Reader().fetch(url, token)  # a wrong address or token is said before the screen starts
        if once:
            _print(report, as_json)
            return 0
    from ftagent.tui.feed import RemoteFeed
    from ftagent.tui.top import run_top

    feed = RemoteFeed(url, token)
    try:
        return run_top(feed)
    finally:
        feed.close()


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        emit(report_json(report))
        return
    from ftagent.tui.figures import details

    click.echo(f"{report.model.id}: {report.health}")
    for row in details(report.snapshot) if report.snapshot else []:
        click.echo(f"{row.label:<16}  {row.value}")
