"""Time the expert kernels of a CUDA device on experts that lie outside its cache:

    python -m benchmarks.expert_kernels [--part decode|host|grouped ...] [--sweep] [--model 30b|35b ...]

decode: one step's experts of all layers, all in slots, in a CUDA graph; us a layer and GB/s of expert bytes.
host: the same with the mailbox posted in every layer, all hits. grouped: prefill products; TFLOP/s.
--sweep tries other sizes of programs and tiles than the chosen ones. Every kernel is compared with float64
before it is timed. Without a CUDA device it runs once on tiny sizes under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import triton

from ftagent.engine.experts.mailbox import MailboxLayout
from ftagent.engine.kernels.gpu import experts_reference
from ftagent.engine.kernels.gpu.combine import SharedExpert, combine_step
from ftagent.engine.kernels.gpu.device import describe
from ftagent.engine.kernels.gpu.expert_plan import (
    ExpertPlan,
    ExpertStep,
    HostArrays,
    StepTables,
    plan_experts,
)
from ftagent.engine.kernels.gpu.experts import experts_step
from ftagent.engine.kernels.gpu.grouped import (
    Groups,
    Tile,
    choose_rows,
    choose_tile,
    down,
    gate_up,
    group_pairs,
    order_pairs,
    positions,
    scatter_add,
)
from ftagent.engine.kernels.gpu.launch import plain_launches
from ftagent.engine.kernels.gpu.route import RouteSpec, route

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPE = torch.bfloat16
ROUNDS = 15


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    intermediate: int
    experts: int
    per_token: int
    shared: int

    @property
    def expert_bytes(self) -> int:
        return 3 * self.hidden * self.intermediate * DTYPE.itemsize


SHAPES = [
    Shape("30b", 48, 2048, 768, 128, 8, 0),
    Shape("35b", 40, 2048, 512, 256, 8, 512),
]
TINY = [Shape("30b", 2, 64, 24, 8, 2, 0), Shape("35b", 2, 64, 16, 8, 2, 16)]


def once() -> Callable[[Callable[[], None]], float]:
    return seconds_of_graph if CUDA else seconds_of_call


def seconds_of_call(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def seconds_of_graph(work: Callable[[], None]) -> float:
    """Median device time of `work` as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)  # the replay is queued before it starts
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(shape, dtype=dtype, device=DEVICE)
    for part in out.view(-1, shape[-1]).split(1 << 16):
        part.normal_(0, scale)
    return out


class Decode:
    """`rows` rows through all layers of a shape; every layer has experts of its own."""

    def __init__(self, shape: Shape, rows: int, slots: torch.Tensor) -> None:
        self.shape, self.rows = shape, rows
        pairs = rows * shape.per_token
        each = len(slots) // shape.layers
        self.slots = slots
        picks = [
            torch.stack([torch.randperm(each)[: shape.per_token] for _ in range(rows)]) + layer * each
            for layer in range(shape.layers)
        ]
        self.seen = [pick.to(torch.int32).to(DEVICE) for pick in picks]
        self.ids = [torch.zeros_like(seen) for seen in self.seen]
        self.routed = torch.zeros(rows, shape.per_token, dtype=torch.int32, device=DEVICE)
        self.routed_seen = torch.zeros_like(self.routed)
        self.normed = normal(rows, shape.hidden, dtype=DTYPE)
        self.x = normal(rows, shape.hidden)
        self.weights = torch.rand(rows, shape.per_token, device=DEVICE)
        self.flat = normal(rows, shape.experts + 2 * shape.shared + 1)
        down_weight = normal(shape.layers, shape.hidden, max(1, shape.shared), scale=0.04, dtype=DTYPE)
        self.shared = [
            SharedExpert(self.flat, shape.experts, one) if shape.shared else None for one in down_weight
        ]
        slot_ptr = torch.tensor([slot.data_ptr() for slot in slots], dtype=torch.int64, device=DEVICE)
        slot_of = torch.zeros(shape.layers, shape.experts, dtype=torch.int32, device=DEVICE)
        self.tables = StepTables.empty(slot_of, slot_ptr, pairs)
        self.epoch = torch.ones(1, dtype=torch.int32, device=DEVICE)
        self.live = torch.tensor([rows], dtype=torch.int32, device=DEVICE)
        layout = MailboxLayout(
            shape.layers, shape.experts, rows, shape.per_token, 0, shape.hidden, DTYPE.itemsize
        )
        self.region = torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=CUDA)
        self.host = HostArrays.at(self.region.data_ptr(), layout.offsets)

    @property
    def nbytes(self) -> int:
        """Of distinct experts, and shared ones, a step."""
        shape = self.shape
        used = sum(len(seen.unique()) for seen in self.seen) * shape.expert_bytes
        return used + shape.layers * shape.hidden * shape.shared * DTYPE.itemsize

    def step(self, plan: ExpertPlan, host: HostArrays | None) -> ExpertStep:
        partial = torch.empty(self.rows * self.shape.per_token, plan.chunks, self.shape.hidden, device=DEVICE)
        host_part = torch.empty(self.rows * self.shape.per_token, self.shape.hidden, device=DEVICE)
        return ExpertStep(plan, self.tables, host, self.epoch, self.live, partial, host_part)

    def experts(self, step: ExpertStep) -> None:
        for layer in range(self.shape.layers):
            experts_step(step, layer, self.normed, self.ids[layer], self.seen[layer], None)

    def both(self, step: ExpertStep) -> None:
        for layer in range(self.shape.layers):
            experts_step(step, layer, self.normed, self.ids[layer], self.seen[layer], None)
            combine_step(step, layer, self.weights, self.seen[layer], self.shared[layer], self.x)

    def all(self, step: ExpertStep) -> None:
        spec = RouteSpec(self.shape.experts, self.shape.per_token, True)
        slot_of, routed, seen = self.tables.slot_of[0], self.routed, self.routed_seen
        for layer in range(self.shape.layers):
            route(self.flat, spec, slot_of, routed, self.weights, seen, None, self.live)
            experts_step(step, layer, self.normed, self.ids[layer], self.seen[layer], None)
            combine_step(step, layer, self.weights, self.seen[layer], self.shared[layer], self.x)

    def error(self, step: ExpertStep) -> float:
        """Of layer 0 against float64, by the largest value."""
        self.x.zero_()
        experts_step(step, 0, self.normed, self.ids[0], self.seen[0], None)
        combine_step(step, 0, self.weights, self.seen[0], self.shared[0], self.x)
        first = self.slots[: len(self.slots) // self.shape.layers]
        shared = self.shared[0]
        if shared is not None:
            shared = SharedExpert(shared.flat.double(), shared.at, shared.down.double())
        expected = experts_reference.layer(
            self.normed.double(), self.seen[0], self.weights.double(), [one.double() for one in first], shared
        )
        return float((self.x.double() - expected).abs().max() / expected.abs().max())


def plans(shape: Shape, sweep: bool) -> list[ExpertPlan]:
    device = describe(DEVICE)
    chosen = plan_experts(shape.hidden, shape.intermediate, shape.per_token, DTYPE.itemsize, device)
    if not sweep:
        return [chosen]
    found = [chosen]
    for block, warps, stages, each in (
        (4, 4, 3, 1), (4, 4, 2, 2), (4, 4, 4, 1), (4, 8, 3, 2), (2, 4, 3, 2), (2, 4, 4, 2), (2, 4, 3, 4),
        (2, 4, 4, 3), (1, 4, 4, 4), (2, 2, 3, 4), (8, 8, 2, 2), (8, 8, 3, 1), (4, 4, 1, 2), (4, 4, 1, 3),
        (8, 8, 1, 2), (8, 4, 1, 2), (2, 4, 1, 4),
    ):  # fmt: skip
        programs = max(1, each * device.processors // shape.per_token)
        run = triton.cdiv(triton.cdiv(shape.intermediate, programs), block) * block
        found.append(replace(chosen, run=run, block=block, warps=warps, stages=stages))
    return found


def bench_decode(shape: Shape, slots: torch.Tensor, sweep: bool) -> None:
    measure = once()
    cases = [Decode(shape, rows, slots) for rows in ((1, 4, 8) if CUDA else (1, 2))]
    for case in cases[: 1 if sweep else None]:
        for plan in plans(shape, sweep):
            step = case.step(plan, None)
            try:
                error = case.error(step)
                times = [measure(lambda s=step, f=f: f(s)) for f in (case.experts, case.both, case.all)]
                with plain_launches():
                    times.append(measure(lambda f=case.both, s=step: f(s)))
            except RuntimeError as failure:  # a candidate of the sweep that the device has no room for
                print(f"{shape.name} {plan}: {failure}")
                continue
            us = [1e6 * one / shape.layers for one in times]
            rates = [case.nbytes / one / 1e9 for one in times]
            print(
                f"decode {shape.name} rows {case.rows} block {plan.block} run {plan.run} warps {plan.warps} "
                f"stages {plan.stages} chunks {plan.chunks}: experts {us[0]:.2f} us, + combine {us[1]:.2f}, "
                f"+ route {us[2]:.2f}, without PDL {us[3]:.2f}; {rates[0]:.0f} GB/s experts, "
                f"{rates[1]:.0f} with combine; error {error:.1e} {verdict(error, 1e-4)}",
                flush=True,
            )


def bench_host(shape: Shape, slots: torch.Tensor) -> None:
    """What posting every layer to the host costs when nothing misses."""
    measure = once()
    case = Decode(shape, 1, slots)
    (plan,) = plans(shape, False)
    alone, met = case.step(plan, None), case.step(plan, case.host)
    error = case.error(met)
    times = [measure(lambda s=step: case.both(s)) for step in (alone, met, alone, met)]
    us = [f"{1e6 * one / shape.layers:.2f}" for one in times]
    print(
        f"host {shape.name}: us a layer alone {us[0]}, posted {us[1]}, alone {us[2]}, posted {us[3]}; error "
        f"{error:.1e} {verdict(error, 1e-4)}; fail {int(case.tables.fail)}",
        flush=True,
    )


def tiles(rows: int, sweep: bool) -> list[Tile]:
    chosen = choose_tile(choose_rows(rows), DTYPE.itemsize, describe(DEVICE))
    others = [
        Tile(128, 256, 64, 8, 3), Tile(128, 256, 32, 8, 4), Tile(128, 128, 64, 8, 4),
        Tile(128, 128, 64, 4, 4),
        Tile(64, 256, 64, 4, 3), Tile(64, 256, 64, 8, 4), Tile(64, 128, 64, 4, 4), Tile(64, 128, 64, 4, 6),
        Tile(16, 64, 128, 4, 3), Tile(16, 128, 128, 4, 3), Tile(16, 64, 256, 4, 3), Tile(32, 128, 64, 4, 4),
    ]  # fmt: skip
    near = [tile for tile in others if sweep and rows / 4 <= tile.rows <= 4 * rows]
    return [chosen, *near]


def bench_grouped(shape: Shape, slots: torch.Tensor, sweep: bool) -> None:
    experts = slots[: shape.experts]
    pointers = torch.tensor([one.data_ptr() for one in experts], dtype=torch.int64, device=DEVICE)
    for rows in (4, 16, 64, 128, 512) if CUDA else (2,):
        tokens = max(1, rows * len(experts) // shape.per_token)
        x = normal(tokens, shape.hidden, dtype=DTYPE)
        ids = torch.rand(tokens, len(experts), device=DEVICE).topk(shape.per_token).indices
        pairs, offsets = order_pairs(ids, len(experts))
        for tile in tiles(rows, sweep):
            groups = group_pairs(pairs, offsets, pointers, shape.per_token, tile.rows)
            try:
                time_grouped(shape, x, ids, groups, tile, rows, experts)
            except RuntimeError as failure:  # a candidate of the sweep that the device has no room for
                print(f"{shape.name} {tile}: {failure}")


def time_grouped(
    shape: Shape,
    x: torch.Tensor,
    ids: torch.Tensor,
    groups: Groups,
    tile: Tile,
    rows: int,
    experts: torch.Tensor,
) -> None:
    measure = once()
    count, tokens = len(groups.pairs), len(x)
    act = torch.empty(count, shape.intermediate, dtype=DTYPE, device=DEVICE)
    out = torch.empty(count, shape.hidden, dtype=DTYPE, device=DEVICE)
    weights = torch.rand(tokens, shape.per_token, device=DEVICE)
    y = torch.zeros(tokens, shape.hidden, device=DEVICE)
    place = positions(groups.pairs, count)
    up_s = measure(lambda: gate_up(x, groups, act, tile))
    down_s = measure(lambda: down(act, groups, out, tile))
    y.zero_()
    scatter_add(out, place, weights, y)
    some = torch.arange(0, tokens, max(1, tokens // 3), device=DEVICE)[:3]
    expected = experts_reference.layer(
        x[some].double(), ids[some], weights[some].double(), [one.double() for one in experts]
    )
    error = float((y[some].double() - expected).abs().max() / expected.abs().max())
    add_s = measure(lambda: scatter_add(out, place, weights, y))

    def regroup() -> None:
        group_pairs(groups.pairs, groups.offsets, groups.pointers, shape.per_token, tile.rows)

    map_s = measure(regroup)
    flops = 2 * count * shape.hidden * shape.intermediate
    rates = [f"{part / 1e12:.0f}" for part in (2 * flops / up_s, flops / down_s, 3 * flops / (up_s + down_s))]
    read = len(experts) * shape.expert_bytes / (up_s + down_s) / 1e9
    print(
        f"grouped {shape.name} rows {rows} tile {tuple(tile)}: gate_up {up_s * 1e6:.0f} us {rates[0]} "
        f"TFLOP/s, down {down_s * 1e6:.0f} us {rates[1]}, both {rates[2]} and {read:.0f} GB/s of experts; "
        f"scatter {add_s * 1e6:.0f} us, map {map_s * 1e6:.1f} us; error {error:.1e} {verdict(error, 2e-2)}",
        flush=True,
    )


def verdict(error: float, allowed: float) -> str:
    return "ok" if error <= allowed else "WRONG"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--part", nargs="+", choices=("decode", "host", "grouped"), default=["decode", "host", "grouped"]
    )
    parser.add_argument("--model", nargs="+", choices=("30b", "35b"), default=["30b", "35b"])
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    for shape in SHAPES if CUDA else TINY:
        if shape.name not in options.model:
            continue
        count = max(shape.experts, shape.layers * 2 * shape.per_token)
        slots = normal(count, shape.intermediate, 3, shape.hidden, scale=shape.hidden**-0.5, dtype=DTYPE)
        if "decode" in options.part:
            bench_decode(shape, slots, options.sweep)
        if "host" in options.part:
            bench_host(shape, slots)
        if "grouped" in options.part:
            bench_grouped(shape, slots, options.sweep)
        del slots


if __name__ == "__main__":
    main()
