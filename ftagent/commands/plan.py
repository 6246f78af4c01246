"""`ftagent plan`: would a model fit, how is memory divided, how fast would it be. Read from headers alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ftagent.commands.common import (
    ENGINE_FLAGS,
    emit,
    engine_options,
    errors_as_events,
    json_flag,
    load_settings,
    log_to_stderr,
    setting_flags,
)
from ftagent.commands.progress import size_text
from ftagent.errors import LoadFailed

if TYPE_CHECKING:
    from ftagent.engine.planner import Pool
    from ftagent.engine.preview import Preview, Speed

WIDTH = 60
_FLAGS = ("vram", "ram", "context", "experts", "device", "mode", "anchors")


@click.command()
@click.argument("model", metavar="MODEL")
@setting_flags({key: ENGINE_FLAGS[key] for key in _FLAGS})
@json_flag
def command(model: str, as_json: bool, **flags: Any) -> None:
    """Show how MODEL would be loaded: memory by purpose, and the speed to expect. Reads headers only.

    With --vram alone the plan is for a GPU of that size, whether this machine has one or not; with --device
    for that device as it is now, of which --vram then bounds the use. --ram stands for free host memory.
    Exit code 3 when the model does not fit; the plan is shown all the same.
    """
    log_to_stderr()
    with errors_as_events(as_json):
        options = engine_options(load_settings({"model": model, **flags}).values)
        from ftagent import demo
        from ftagent.engine.preview import preview

        found = preview(demo.directory_of(options.model), options)
    if as_json:
        emit(record(found))
    else:
        for line in lines(found):
            click.echo(line)
    if found.plan.refusals:
        raise LoadFailed(found.plan.refusals[0])


def record(found: Preview) -> dict[str, Any]:
    """The one object of `--json`; docs/plan.md says what is in it."""
    plan, sizes, speed = found.plan, found.sizes, found.speed
    return {
        "type": "plan",
        "directory": str(found.directory),
        "family": found.family,
        "parameters": found.parameters,
        "active_parameters": found.active_parameters,
        "device": found.device,
        "dtype": found.dtype,
        "mode": plan.mode,
        "fits": not plan.refusals,
        "refusals": list(plan.refusals),
        "context": plan.context,
        "kv_tokens": plan.pages * sizes.page_tokens,
        "chunk_tokens": plan.chunk_tokens,
        "experts": {
            "total": sizes.experts,
            "slots": plan.slots,
            "per_token": found.per_token,
            "slot_bytes": sizes.slot_bytes,
            "stored": list(found.stored),
        },
        "kept": {"states": plan.kept.states, "bytes": plan.kept.total(sizes.state_bytes)},
        "memory": {
            "device": _memory(plan.pools, plan.have),
            "host": _memory(plan.host, plan.host_have),
        },
        "speed": {
            "decode_tokens_per_s": _rounded(speed.decode),
            "prefill_tokens_per_s": _rounded(speed.prefill),
            "hit_rate": _rounded(speed.hit_rate, 3),
            "measured": speed.measured,
            "unknown": speed.unknown,
        },
    }


def lines(found: Preview) -> Iterator[str]:
    """The same for people, WIDTH columns wide at most."""
    plan, sizes = found.plan, found.sizes
    where = {"cpu": "the CPU", "cuda": f"a GPU of which {size_text(plan.have or 0)} may be used"}
    yield from _wrapped(
        f"{found.directory.name or found.directory}: {found.family}, {_count(found.parameters)} weights, "
        f"{_count(found.active_parameters)} of them for a token"
    )
    yield from _wrapped(f"on {where.get(found.device, found.device)}, in {found.dtype}")
    yield ""
    if found.device != "cpu" or plan.have is not None:
        yield from _table("device memory", plan.pools, plan.have)
    yield from _table("host memory", plan.host, plan.host_have)
    yield f"{'context':<10} {plan.context:,} tokens"
    if sizes.experts:
        share = f"{plan.slots / sizes.experts:.0%}"
        yield f"{'experts':<10} {plan.slots:,} of {sizes.experts:,} in slots ({share}), mode {plan.mode}"
    yield from _speed_lines(found.speed)
    if plan.refusals:
        yield ""
        yield "it does not fit"


def _speed_lines(speed: Speed) -> Iterator[str]:
    for name, value in (("decode", speed.decode), ("prefill", speed.prefill)):
        yield f"{name:<10} " + ("unknown" if value is None else f"about {value:,.0f} tokens/s, an estimate")
    if speed.hit_rate is not None and speed.decode is not None:
        yield f"{'':<10} at an assumed hit rate of {speed.hit_rate:.2f}"
    if speed.unknown is not None:
        yield from _wrapped(speed.unknown, " " * 11)


def _table(title: str, pools: Sequence[Pool], have: int | None) -> Iterator[str]:
    yield f"{title:<34} {'need':>12} {'have':>12}".rstrip()
    for pool in pools:
        if pool.bytes:
            yield f"  {pool.name:<32} {size_text(pool.bytes):>12}"
    total = sum(pool.bytes for pool in pools)
    yield f"  {'in all':<32} {size_text(total):>12} {'' if have is None else size_text(have):>12}".rstrip()
    yield ""


def _memory(pools: Sequence[Pool], have: int | None) -> dict[str, Any]:
    rows = [{"kind": pool.kind, "name": pool.name, "bytes": pool.bytes} for pool in pools]
    return {"need": sum(pool.bytes for pool in pools), "have": have, "pools": rows}


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _count(weights: int) -> str:
    return f"{weights / 1e9:,.1f} billion" if weights >= 1e9 else f"{weights / 1e6:,.1f} million"


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
