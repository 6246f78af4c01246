"""`ftagent bench anchors`: what a turn costs after an edit, and the first one after a restart.

Knows options and how figures are shown; `engine.anchor_bench` measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ftagent.commands.common import (
    ENGINE_FLAGS,
    emit,
    engine_options,
    json_flag,
    load_settings,
    log_to_stderr,
    narrate,
    setting_flags,
)
from ftagent.commands.records import record_head

if TYPE_CHECKING:
    from ftagent.engine.anchor_bench import AnchorsResult


@click.command()
@click.option(
    "--system",
    metavar="N",
    type=click.IntRange(min=20),
    default=600,
    show_default=True,
    help="Words of the system text.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=100),
    help="A system text of about N tokens instead, to edit behind a long context.",
)
@click.option(
    "--cold",
    metavar="N",
    type=click.IntRange(min=1),
    help="Compute only the last N turns of each replay cold. Unset: all, and with --tokens one.",
)
@click.option(
    "--sessions",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Conversations that take turns in the last replay.",
)
@click.option("--restart/--no-restart", default=True, show_default=True, help="Measure a second start too.")
@json_flag
@setting_flags(ENGINE_FLAGS)
def anchors(
    system: int,
    tokens: int | None,
    cold: int | None,
    sessions: int,
    restart: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """What a turn costs after the edits that agents make, and the first one after a restart.

    Replays conversations that are appended to, stripped of thinking, compacted, forked and interleaved, and
    compares with an engine that keeps nothing. Every engine has a process of its own.
    """
    log_to_stderr()
    settings = load_settings(flags).values
    from ftagent.engine.anchor_bench import AnchorsWish, bench_anchors

    compared = 1 if cold is None and tokens is not None else cold
    wish = AnchorsWish(engine_options(settings), system, tokens, compared, restart, sessions)
    result = bench_anchors(wish, narrate)
    if as_json:
        from ftagent.engine.machine.probe import probe

        emit({**record_head("anchors", probe()), **asdict(result)})
        return
    for line in _anchor_lines(result):
        click.echo(line)


def _anchor_lines(result: AnchorsResult) -> Iterator[str]:
    heads = (
        "turns",
        "in common",
        "new",
        "reused",
        "recomputed",
        "least",
        "first token",
        "cold",
        "ratio",
        "equal",
    )
    yield f"{'tokens':<22}" + "".join(f"{head:>12}" for head in heads)
    for replay in result.replays:
        cells = (
            *(f"{count:,}" for count in (replay.turns, replay.common, replay.new, replay.reused)),
            f"{replay.recomputed:,}",
            f"{replay.reused_share:.1%}",
            f"{1000 * replay.first_token_warm_s:.0f} ms",
            f"{1000 * replay.first_token_cold_s:.0f} ms",
            f"{replay.ratio:.3f}",
            "yes" if replay.warm_equals_cold else "NO",
        )
        yield f"{replay.replay:<22}" + "".join(f"{cell:>12}" for cell in cells)
    again = result.restart
    if again is not None:
        yield (
            f"{'second start':<22}{again.reused:,} of {again.prompt:,} tokens from a file; first token "
            f"{1000 * again.first_token_s:.0f} ms, cold {1000 * again.cold_first_s:.0f} ms (later "
            f"{1000 * again.cold_s:.0f}), ratio {again.ratio:.3f}, equal: {'yes' if again.equal else 'NO'}"
        )
    yield f"{'model':<22}{result.model} on {result.device}, {result.context} tokens of context"
