"""Time the dense decode kernels of a CUDA device: products, attention, candidates.

    python -m benchmarks.decode_kernels [--batch 1 8] [--context 1024 8192 32768] [--model 30b|35b] [--plain]

Each line is the median of replays of a CUDA graph with many calls, over weights or pages that together exceed
the L2 cache several times. us a call, and GB/s of the bytes that must be read. `launch` is the chain's floor:
an embedding of one row. --plain launches without programmatic dependent launch. Each result is compared with
torch before it is timed. Without a CUDA device it runs once on small shapes under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from ftagent.engine.kernels.gpu.attention import AttentionSpec, decode_attention, split_count
from ftagent.engine.kernels.gpu.launch import plain_launches, processors
from ftagent.engine.kernels.gpu.linear import embed, linear_add, norm_linear
from ftagent.engine.kernels.gpu.sample import candidates

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPE = torch.bfloat16
POOL_BYTES = 600_000_000 if CUDA else 1  # what the calls of a graph go round
CALLS = 48 if CUDA else 1
REPLAYS = 15
PAGE = 64


class Model(NamedTuple):
    """Dense shapes of a family: products (name, rows of the weight, columns), added products, attention."""

    products: tuple[tuple[str, int, int], ...]
    added: tuple[tuple[str, int, int], ...]
    attention: AttentionSpec
    vocabulary: int


MODELS = {
    "30b": Model(
        (("norm + qkv", 5120, 2048), ("norm + router", 128, 2048), ("norm + head", 151_936, 2048)),
        (("output + residual", 2048, 4096),),
        AttentionSpec(32, 4, 128, 128, 128**-0.5, 1e-6, False),
        151_936,
    ),
    "35b": Model(
        (
            ("norm + qkv + gate", 9216, 2048),
            ("norm + linear attention in", 12_352, 2048),
            ("norm + router + shared", 1281, 2048),
            ("norm + head", 248_320, 2048),
        ),
        (("output + residual", 2048, 4096),),
        AttentionSpec(16, 2, 256, 64, 256**-0.5, 1e-6, True),
        248_320,
    ),
    "tiny": Model(
        (("norm + qkv", 40, 64),),
        (("output + residual", 64, 32),),
        AttentionSpec(4, 2, 16, 16, 0.25, 1e-6, True),
        70,
    ),
}


def median_us(call: Callable[[int], None], calls: int) -> float:
    """Microseconds of one call; call(i) is captured for i in range(calls)."""
    call(0)
    if not CUDA:
        return float("nan")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times: list[float] = []
    for _ in range(REPLAYS):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def report(name: str, batch: int, us: float, moved: int) -> None:
    print(f"{name:42} batch {batch}  {us:9.2f} us  {moved / us / 1000:7.0f} GB/s", flush=True)


def counter(rows: int) -> torch.Tensor:
    return torch.tensor([rows], dtype=torch.int32, device=DEVICE)


def close(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    worst = ((found.double() - exact).abs().max() / exact.abs().max()).item()
    if not worst < tolerance:
        raise SystemExit(f"wrong result: off by {worst:.2g} of the largest value")


def weights(rows: int, columns: int) -> torch.Tensor:
    """[n, rows, columns], n so that the pool exceeds the cache."""
    copies = max(1, min(CALLS, POOL_BYTES // (rows * columns * DTYPE.itemsize)))
    return torch.randn(copies, rows, columns, device=DEVICE, dtype=DTYPE)


def time_product(name: str, size: int, columns: int, batch: int) -> None:
    pool = weights(size, columns)
    x, norm = torch.randn(batch, columns, device=DEVICE), torch.rand(columns, device=DEVICE)
    out, rows = torch.empty(batch, size, device=DEVICE), counter(batch)

    def call(i: int) -> None:
        norm_linear(x, norm, 1e-6, pool[i % len(pool)], out, None, rows)

    call(0)
    exact = torch.nn.functional.rms_norm(x.double(), (columns,), norm.double(), 1e-6) @ pool[0].double().T
    close(out, exact, 0.02)
    us = median_us(call, CALLS if size < 100_000 else 6)
    report(f"{name} {size} x {columns}", batch, us, pool[0].numel() * DTYPE.itemsize)


def time_added(name: str, size: int, columns: int, batch: int) -> None:
    pool = weights(size, columns)
    a = torch.randn(batch, columns, device=DEVICE, dtype=DTYPE)
    x, rows = torch.zeros(batch, size, device=DEVICE), counter(batch)

    def call(i: int) -> None:
        linear_add(a, pool[i % len(pool)], x, rows)

    call(0)
    close(x, a.double() @ pool[0].double().T, 1e-4)
    us = median_us(call, CALLS)
    report(f"{name} {size} x {columns}", batch, us, pool[0].numel() * DTYPE.itemsize)


def time_attention(spec: AttentionSpec, context: int, batch: int) -> None:
    pages = -(-(context + 1) // PAGE)
    moved = 2 * spec.kv_heads * context * spec.head_dim * DTYPE.itemsize * batch
    copies = max(1, min(CALLS, POOL_BYTES // moved))
    pool = [
        torch.randn(2 * spec.kv_heads, batch * pages * PAGE, spec.head_dim, device=DEVICE, dtype=DTYPE)
        for _ in range(copies)
    ]
    table = torch.randperm(batch * pages, device=DEVICE).int().view(batch, pages)
    positions = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
    splits = split_count(pages * PAGE, spec.kv_heads, processors(DEVICE))
    flat = torch.randn(batch, spec.width, device=DEVICE)
    norms = torch.ones(spec.heads + spec.kv_heads, spec.head_dim, device=DEVICE)
    angle = torch.rand(context + 1, spec.rotary, device=DEVICE)
    partial = torch.empty(batch, spec.heads, splits, spec.head_dim, device=DEVICE)
    lse = torch.empty(batch, spec.heads, splits, device=DEVICE)
    out = torch.empty(batch, spec.heads * spec.head_dim, device=DEVICE, dtype=DTYPE)
    cos, sin, rows = angle.cos(), angle.sin(), counter(batch)

    def call(i: int) -> None:
        kv = pool[i % copies]
        decode_attention(flat, spec, norms, cos, sin, positions, table, kv, partial, lse, out, rows)

    us = median_us(call, CALLS)
    report(f"attention + join, context {context}, {splits} splits", batch, us, moved)


def time_candidates(vocabulary: int, batch: int) -> None:
    logits = torch.randn(batch, vocabulary, device=DEVICE)
    values = torch.empty(batch, 64, device=DEVICE)
    ids, rows = torch.empty(batch, 64, dtype=torch.int32, device=DEVICE), counter(batch)
    us = median_us(lambda _: candidates(logits, values, ids, rows), CALLS)
    exact = logits.sort(dim=-1, descending=True, stable=True)
    if not torch.equal(ids.long(), exact.indices[:, :64]):
        raise SystemExit("wrong result: candidates differ from a stable sort")
    report(f"candidates of {vocabulary}", batch, us, logits.numel() * 4)


def time_launch() -> None:
    table, x = torch.randn(8, 64, device=DEVICE, dtype=DTYPE), torch.empty(1, 64, device=DEVICE)
    tokens, rows = torch.zeros(1, dtype=torch.int32, device=DEVICE), counter(1)
    us = median_us(lambda _: embed(tokens, table, x, rows), 200 if CUDA else 1)
    report("launch (embedding of one row)", 1, us, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8] if CUDA else [2])
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 8192, 32_768] if CUDA else [70])
    parser.add_argument(
        "--model", choices=sorted(MODELS), nargs="+", default=["30b", "35b"] if CUDA else ["tiny"]
    )
    parser.add_argument("--plain", action="store_true", help="without programmatic dependent launch")
    options = parser.parse_args()
    torch.manual_seed(0)
    with plain_launches() if options.plain else nullcontext():
        time_launch()
        for name in options.model:
            model = MODELS[name]
            print(f"{name}:", flush=True)
            for batch in options.batch:
                for product in model.products:
                    time_product(*product, batch)
                for product in model.added:
                    time_added(*product, batch)
                for context in options.context:
                    time_attention(model.attention, context, batch)
                time_candidates(model.vocabulary, batch)


if __name__ == "__main__":
    main()
