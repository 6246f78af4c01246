"""`ftagent bench`: bandwidths, decode and prefill on this machine, with what is needed to compare figures.

Knows options and how figures are shown; `engine.bench` and `engine.machine.bandwidth` measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from ftagent.commands.bench_anchors import anchors
from ftagent.commands.common import (
    ENGINE_FLAGS,
    emit,
    json_flag,
    load_settings,
    log_to_stderr,
    open_engine,
    setting_flags,
)
from ftagent.commands.records import record_head
from ftagent.errors import ConfigError
from ftagent.hub.store import model_path
from ftagent.settings import Settings

if TYPE_CHECKING:
    from ftagent.engine.bench import DecodeResult, ExpertFigures, PrefillResult
    from ftagent.engine.experts.costs import CostModel
    from ftagent.engine.machine.bandwidth import BandwidthResult
    from ftagent.engine.machine.record_threads import ExpertSizes
    from ftagent.engine.machine.rounds import Spread

_BANDWIDTH_FLAGS = {"model": "DIR|demo", "device": "auto|cpu|cuda[:N]", "threads": "N"}

_BANDWIDTH_WORDS = {
    "read": "host memory, read by all threads",
    "cpu_one": "CPU, one expert at a time",
    "cpu_queued": "CPU, 8 experts at a time",
    "cpu_rows": "CPU, 8 experts, 4 rows each",
    "link_linear": "link, one long copy",
    "link_one": "link, one expert at a time",
    "link_queued": "link, 8 experts queued",
    "both_cpu": "both at once: CPU",
    "both_link": "both at once: link",
    "device_read": "device memory, read by the device",
}

_REPEATS = click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs; their median counts.",
)


_REFERENCE = click.option(
    "--reference",
    is_flag=True,
    help="On a GPU, the common way of offloading instead of this engine's: for comparison.",
)


def _engine_bench(function: Callable[..., None]) -> Callable[..., None]:
    """The flags of a command that measures an engine."""
    for flag in (setting_flags(ENGINE_FLAGS), json_flag, _REFERENCE, _REPEATS):
        function = flag(function)
    return function


@click.group()
def command() -> None:
    """Measure bandwidths, decode and prefill speed, and what kept prompts save."""


command.add_command(anchors)


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
@_engine_bench
def decode(behind: int, tokens: int, repeats: int, reference: bool, as_json: bool, **flags: Any) -> None:
    """Tokens per second that one request is given, once it has begun."""
    log_to_stderr()
    with open_engine(load_settings(flags).values, reference) as engine:
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
@_engine_bench
def prefill(tokens: int, repeats: int, reference: bool, as_json: bool, **flags: Any) -> None:
    """Seconds from a request to its first token, for a prompt of which nothing is kept."""
    log_to_stderr()
    with open_engine(load_settings(flags).values, reference) as engine:
        from ftagent.engine.bench import bench_prefill

        _report("prefill", bench_prefill(engine, tokens=tokens, repeats=repeats), as_json)


@command.command()
@click.option("--hidden", metavar="N", type=click.IntRange(min=1), help="Hidden size, instead of a model's.")
@click.option(
    "--intermediate", metavar="N", type=click.IntRange(min=1), help="Intermediate size of one expert."
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), help="Of the experts' weights.")
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(min=0.1, max=600),
    default=10.0,
    show_default=True,
    help="How long to measure, about.",
)
@click.option("--no-store", is_flag=True, help="Do not keep the figures for later runs of the engine.")
@json_flag
@setting_flags(_BANDWIDTH_FLAGS)
def bandwidth(
    hidden: int | None,
    intermediate: int | None,
    dtype: str | None,
    seconds: float,
    no_store: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """How fast link and CPU deal with experts, alone and at once.

    Measures with experts of the model's size. The engine starts from the figures, which are kept for this
    machine and GPU.
    """
    log_to_stderr()
    settings = load_settings(flags).values
    from ftagent.engine.experts.calibration import costs_from
    from ftagent.engine.machine.bandwidth import BandwidthOptions, bench_bandwidth
    from ftagent.engine.machine.profile import load_profile, merged, store_profile

    sizes = _sizes(model_path(settings.model), hidden, intermediate, dtype)
    index, required = _device_index(settings)
    result = bench_bandwidth(BandwidthOptions(sizes, seconds, settings.threads, index, required=required))
    file = None
    if not no_store:
        file = str(store_profile(merged(load_profile(result.profile.fingerprint), result.profile)))
    costs = costs_from(result.profile, sizes)
    if as_json:
        emit(_bandwidth_record(result, costs, file))
        return
    for line in _bandwidth_lines(result, costs):
        click.echo(line)
    click.echo(f"{'profile':<12} {file or 'not kept'}")


def _sizes(model: str, hidden: int | None, intermediate: int | None, dtype: str | None) -> ExpertSizes:
    """Of the flags where both are typed, else of the model; `dtype` overrides the model's."""
    from ftagent.engine.bench import model_expert_sizes
    from ftagent.engine.machine.record_pool import expert_sizes

    if hidden is not None and intermediate is not None:
        return expert_sizes(hidden, intermediate, dtype or "bfloat16")
    if hidden is not None or intermediate is not None:
        raise ConfigError("--hidden and --intermediate belong together")
    sizes = model_expert_sizes(model)
    return sizes if dtype is None else expert_sizes(sizes.hidden, sizes.intermediate, dtype)


def _device_index(settings: Settings) -> tuple[int | None, bool]:
    """CUDA's index of the device to measure, and whether it must be there."""
    if settings.device == "cpu":
        return None, False
    _, _, number = settings.device.partition(":")
    return int(number or 0), settings.device != "auto"


def _bandwidth_record(result: BandwidthResult, costs: CostModel, file: str | None) -> dict[str, Any]:
    """The one object of `--json`; a figure that could not be measured is null."""
    return {
        **record_head("bandwidth", result.machine),
        "gpu": None if result.gpu is None else asdict(result.gpu),
        "no_link": result.no_link,
        "hidden": result.sizes.hidden,
        "intermediate": result.sizes.intermediate,
        "dtype": result.sizes.dtype,
        "expert_bytes": result.expert_bytes,
        "pool_bytes": result.pool_bytes,
        "threads": result.profile.threads,
        "way": result.way,
        "isa": result.isa,
        "gb_per_s": asdict(result.bandwidths),
        "lines": {
            "link": [asdict(each) for each in result.profile.link],
            "cpu": [asdict(each) for each in result.profile.cpu],
        },
        "costs": asdict(costs),
        "profile": file,
    }


def _bandwidth_lines(result: BandwidthResult, costs: CostModel) -> Iterator[str]:
    sizes, tried = result.sizes, result.bandwidths.threads_tried
    by = {"native": f"native threads, {result.isa}", "torch": "torch; no C++ compiler builds the threads"}
    yield (
        f"{'expert':<12} {result.expert_bytes / 1e6:.2f} MB, {sizes.hidden} x {sizes.intermediate} "
        f"{sizes.dtype}; pool of {result.pool_bytes / 1e6:,.0f} MB"
    )
    yield f"{'computed by':<12} {by[result.way]}; {result.profile.threads} threads"
    if tried:
        rates = ", ".join(f"{count}: {rate:.1f}" for count, rate in sorted(tried))
        yield f"{'':<12} GB/s by number of threads: {rates}"
    yield f"{'device':<12} {result.gpu.name if result.gpu else result.no_link}"
    yield ""
    yield f"{'GB/s of weights':<34} {'median':>8}  {'least to most':<16} rounds"
    for key, words in _BANDWIDTH_WORDS.items():
        yield f"{words:<34} {_spread(getattr(result.bandwidths, key), result.no_link)}"
    yield ""
    fetch, compute = (
        f"{fixed / 1000:.1f} + {each / 1000:.1f} us"
        for fixed, each in ((costs.fetch_fixed, costs.fetch_expert), (costs.cpu_fixed, costs.cpu_expert))
    )
    yield f"{'one expert':<12} link {fetch}, CPU {compute} and {costs.cpu_row / 1000:.1f} us a row"


def _spread(found: Spread | None, reason: str | None) -> str:
    if found is None:
        return f"{'-':>8}  {reason}"
    between = f"{found.low:.1f} to {found.high:.1f}"
    return f"{found.median:>8.1f}  {between:<16} {found.runs}"


def _report(name: str, result: DecodeResult | PrefillResult, as_json: bool) -> None:
    from ftagent.engine.machine.probe import probe

    machine = probe()
    if as_json:
        emit({**record_head(name, machine), **asdict(result)})
        return
    for field in fields(result):
        if field.name != "experts":
            click.echo(f"{field.name:<15} {_shown(getattr(result, field.name))}")
    for key, value in _expert_lines(result.experts):
        click.echo(f"{key:<15} {value}")
    click.echo(f"{'machine':<15} {machine.cpu.name}, {machine.cpu.cores} cores")
    for gpu in machine.gpus:
        click.echo(f"{'gpu':<15} {gpu.name}")


def _expert_lines(found: ExpertFigures | None) -> Iterator[tuple[str, str]]:
    """What is known about the experts, in words."""
    if found is None:
        return
    rate = "-" if found.hit_rate is None else f"{found.hit_rate:.1%}"
    yield "expert hits", f"{rate} of {found.hits + found.misses:,}; {found.evictions:,} evictions"
    if found.mode is not None:
        yield "mode", found.mode + (f" ({found.mode_reason})" if found.mode_reason else "")
    paths = ((found.fetched, "fetched"), (found.cpu_computed, "on the CPU"), (found.split, "split"))
    more = ((found.backfilled, "backfilled"), (found.guessed, "guessed"))
    known = [f"{count:,} {words}" for count, words in paths + more if count is not None]
    if known:
        yield "misses", ", ".join(known)
    moved = ((found.bytes_link, "over the link"), (found.bytes_cpu, "read by the CPU"))
    sizes = [f"{size / 1e9:.2f} GB {words}" for size, words in moved if size is not None]
    if sizes:
        yield "bytes", ", ".join(sizes)
    if found.q is not None:
        best = "" if found.q_optimum is None else f", {found.q_optimum:.2f} would be best"
        yield "q", f"{found.q:.2f} of the missing records fetched{best}"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, tuple):
        return "  ".join(map(_shown, value))
    return str(value)
