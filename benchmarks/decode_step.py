"""Time a whole decode step on a CUDA device, and what each kind of kernel and each choice costs in it.

    python -m benchmarks.decode_step [--model 30b 35b] [--context 1024] [--batch 1] [--part PART ...]

Random weights at the shape of a real model (24 layers), every expert resident, one CUDA graph a case. All
cases of a shape take turns; figures are medians of rounds, in microseconds a step and a layer.

whole: the step, its bytes, their time at 4.5 TB/s and the rest, with and without programmatic dependent
launch. choices: other settings of the kernels against the chosen ones, with the largest difference of a
logit (random weights: one expert chosen otherwise changes them all). ends: mean time from the end of
the kernel before to the end of each kind of kernel, from the profiler; these add up to the step. without: the
step with each kind left out; the difference is what it costs on the critical path (without `route` all layers
read the same experts). Without a CUDA device it runs once on a small shape under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from benchmarks.decode_model import SHAPES, Maker, StepShape, make_model, make_step, step_bytes, write_inputs
from ftagent.engine.device.decode import DecodeModel, DecodeStep
from ftagent.engine.kernels.gpu import attention, combine, delta, experts, linear, route, sample
from ftagent.engine.kernels.gpu.launch import launch, plain_launches

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPE = torch.bfloat16
BANDWIDTH = 4.5e12  # bytes a second that this device's memory gives to one kernel
CAPACITY = 32_768 if CUDA else 0  # tokens that a step could serve
ROUNDS = 9
REPLAYS = 12
PARTS = ("whole", "choices", "ends", "without")
LAUNCHING = (attention, combine, delta, experts, linear, route, sample)


class Setting(NamedTuple):
    """A module-level constant of a kernel's module."""

    module: ModuleType
    name: str
    value: Any


@dataclass(slots=True)
class Case:
    """One captured step, and the seconds of its rounds."""

    name: str
    step: DecodeStep
    labels: tuple[str, ...]  # of its launches
    seconds: list[float] = field(default_factory=list)
    bits: str = ""  # how the logits compare with those of the first case

    @property
    def us(self) -> float:
        return statistics.median(self.seconds) * 1e6


CHOICES: dict[str, tuple[Setting, ...]] = {
    "products: half the rows a program": (Setting(linear, "LANE_WEIGHTS", 32),),
    "products: two programs a multiprocessor": (Setting(linear, "LOOPING", 2),),
    "delta net: 8 warps a state": (Setting(delta, "STEP_WARPS", 8),),
    "combine: half the columns a program": (Setting(combine, "COLUMNS", 8),),
    "candidates in two launches": (Setting(sample, "BLOCK", 4096), Setting(sample, "WARPS", 16)),
}


@contextmanager
def settings(chosen: Sequence[Setting]) -> Iterator[None]:
    """The kernels with these settings inside."""
    before = [getattr(setting.module, setting.name) for setting in chosen]
    for setting in chosen:
        setattr(setting.module, setting.name, setting.value)
    try:
        yield
    finally:
        for setting, value in zip(chosen, before, strict=True):
            setattr(setting.module, setting.name, value)


def label(kernel: Any, args: Sequence[Any]) -> str:
    """Kind of a launch: the kernel's name, for products with the size of the weight."""
    name = str(kernel.fn.__name__)
    if name == "_norm_linear":
        return f"{name} {args[2].shape[0]}"
    return f"{name} {args[1].shape[0]}x{args[1].shape[1]}" if name == "_linear_add" else name


@contextmanager
def intercepted(wanted: Callable[[str], bool]) -> Iterator[None]:
    """Launch only those kernels whose label is wanted."""

    def filtered(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        if wanted(label(kernel, args)):
            launch(kernel, grid, *args, **constants)

    with settings([Setting(module, "launch", filtered) for module in LAUNCHING]):
        yield


class Bench:
    """The cases of one shape: same weights, same states, a graph each."""

    def __init__(self, shape: StepShape, context: int, batch: int) -> None:
        self.shape, self.context, self.batch = shape, context, batch
        self.model: DecodeModel = make_model(shape, context, batch, Maker(DTYPE, DEVICE))
        self.cases: list[Case] = []

    def add(self, name: str, chosen: Sequence[Setting] = (), plain: bool = False, left_out: str = "") -> Case:
        """Capture the step with some settings, without PDL, or without one kind of kernel."""
        labels: list[str] = []

        def wanted(kind: str) -> bool:
            labels.append(kind)
            return kind != left_out

        with settings(chosen), plain_launches() if plain else nullcontext():
            step = make_step(self.model, self.context, self.batch, CAPACITY)
            with intercepted(wanted):
                step.prepare()
        write_inputs(step, self.context, self.batch)
        # On a device all is launched once to compile it, and again to capture it.
        case = Case(name, step, tuple(labels[len(labels) // 2 :] if CUDA else labels))
        self.cases.append(case)
        return case

    def measure(self) -> None:
        """Rounds in which all cases take turns."""
        for case in self.cases:
            case.step.launch()
        for _ in range(ROUNDS if CUDA else 1):
            for case in self.cases:
                case.seconds.append(seconds(case.step) if CUDA else float("nan"))

    def compare(self) -> None:
        """Whether a case always gives the same bits, and the first case's; a race would show here."""
        expected = self.logits(self.cases[0])
        for case in self.cases:
            found = [self.logits(case) for _ in range(5 if CUDA else 1)]
            steady = all(torch.equal(found[0], again) for again in found)
            worst = float((found[0] - expected).abs().max())
            case.bits = ("" if steady else "UNSTEADY ") + (f"logits differ by {worst:.2g}" if worst else "")

    def logits(self, case: Case) -> torch.Tensor:
        """Of one step from empty states."""
        self.model.states.conv.zero_()
        self.model.states.recurrent.zero_()
        case.step.launch()
        return case.step.outputs.logits.clone()

    def line(self, case: Case, base: Case | None = None) -> None:
        us = case.us
        against = "" if base is None else f"  {us - base.us:+8.1f} a step {self.a_layer(us - base.us):+7.2f}"
        print(
            f"  {case.name:44} {us:8.1f} us  {self.a_layer(us):6.2f} a layer{against}  {case.bits}",
            flush=True,
        )

    def a_layer(self, us: float) -> float:
        return us / self.shape.layers


def seconds(step: DecodeStep) -> float:
    """Of one replay among REPLAYS that are queued behind each other."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    step.launch()
    begin.record()
    for _ in range(REPLAYS):
        step.launch()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPLAYS


def ends(case: Case) -> dict[str, list[float]]:
    """Microseconds from the end of the kernel before to the end of each, by label, of one profiled step.

    Empty where the profiler saw other kernels than were launched.
    """
    labels = case.labels
    names = {kind.split()[0] for kind in labels}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            case.step.launch()
        torch.cuda.synchronize()
    spans = [event.time_range for event in profile.events() if event.name in names]
    if len(spans) != 3 * len(labels):
        return {}
    spans = sorted(spans, key=lambda span: span.start)[-len(labels) :]
    found: dict[str, list[float]] = defaultdict(list)
    for kind, before, span in zip(labels[1:], spans[:-1], spans[1:], strict=True):
        found[kind].append(span.end - before.end)
    return dict(found)


def report(bench: Bench, parts: Sequence[str]) -> None:
    shape = bench.shape
    whole = bench.add("chosen settings")
    labels = whole.labels
    plain = bench.add("without programmatic dependent launch", plain=True)
    names = [name for name in CHOICES if shape.delta is not None or not name.startswith("delta net")]
    choices = [bench.add(name, CHOICES[name]) for name in names if "choices" in parts]
    bench.compare()
    kinds = list(dict.fromkeys(labels)) if "without" in parts else []
    left = [bench.add(f"without {kind} ({labels.count(kind)})", left_out=kind) for kind in kinds]
    bench.measure()
    floor = step_bytes(shape, bench.context, DTYPE.itemsize) / BANDWIDTH * 1e6
    bench.line(whole)
    bench.line(plain, whole)
    share = floor / whole.us
    print(f"  bytes at 4.5 TB/s {floor:.1f} us, {share:.0%} of the step; rest {whole.us - floor:.1f} us "
          f"({bench.a_layer(whole.us - floor):.2f} a layer)", flush=True)  # fmt: skip
    for case in choices:
        bench.line(case, whole)
    for case in left:
        bench.line(case, whole)
    if CUDA and "ends" in parts:
        report_ends(whole)


def report_ends(case: Case) -> None:
    print(f"  {case.name}: from the end of the kernel before to its own end, median, and sum of a step")
    total = ends(case)
    for kind, times in total.items():
        print(f"    {kind:32} {len(times):3} x {statistics.median(times):6.2f} us {sum(times):8.1f} us")
    print(
        f"    in all {sum(map(sum, total.values())):.1f} us" if total else "    other kernels ran", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", choices=sorted(SHAPES), nargs="+", default=["30b", "35b"] if CUDA else ["tiny"]
    )
    parser.add_argument("--context", type=int, default=1024 if CUDA else 70)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    for name in options.model:
        begin = time.perf_counter()
        print(f"{name}: {SHAPES[name].layers} layers, context {options.context}, batch {options.batch}")
        report(Bench(SHAPES[name], options.context, options.batch), options.part)
        print(f"  measured in {time.perf_counter() - begin:.0f} s", flush=True)
        if CUDA:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
