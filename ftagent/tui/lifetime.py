"""How a screen begins and ends: only on a terminal, and on a signal with the terminal restored."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from textual.app import App

from ftagent.errors import ConfigError


def need_terminal(what: str, hint: str) -> None:
    """Raise ConfigError where a screen cannot be drawn or keys cannot be read, with `hint` for a way out."""
    # stderr too: that is where Textual draws.
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)):
        if not stream.isatty():
            raise ConfigError(f"{what} needs a terminal, and {name} is none; {hint}")
    if os.environ.get("TERM") == "dumb":
        raise ConfigError(f"{what} cannot draw on a dumb terminal (TERM=dumb); {hint}")


async def run_until_signal(app: App[int]) -> int:
    """Run `app` to its end; SIGTERM, SIGHUP and SIGINT end it with 128 + the signal's number."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, app.exit, 128 + number)
    code = await app.run_async()
    return code if code is not None else app.return_code or 0
