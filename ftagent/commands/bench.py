"""`ftagent bench`: decode and prefill speed on this machine."""

from __future__ import annotations

import click


@click.group()
def command() -> None:
    """Measure decode and prefill speed."""
