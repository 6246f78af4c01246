"""Bring one kept state, and kept KV pages, from registered host memory to a GPU: beside the link's own rate.

    python -m benchmarks.snapshot_restore [--layers 40] [--tokens 8192] [--runs 30] [--device cuda] [--json]

Shapes of Qwen3.6-35B-A3B: with 40 layers a state is 66 MB. Rates in GB/s, medians of the runs; a restore
counts from the call to the end on the device, as a step behind it would see it. The link's own rate is one
plain copy of as many bytes from the same memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.walk.shapes import SHAPES
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage
from ftagent.engine.context.recurrent import StateShape
from ftagent.engine.device.contents import DeviceContents, DeviceStates
from ftagent.engine.device.kept import Block
from ftagent.engine.experts.pinning import CudaRegistrar

COPIES_BYTES = 32 << 20


class Rates(NamedTuple):
    """GB/s of restoring and of a plain copy of as many bytes, and of keeping them in the first place."""

    bytes: int
    restored: float
    link: float
    kept: float

    @property
    def share(self) -> float:
        return self.restored / self.link


class Bench:
    """Pools of the model's shape on `device`, full of random values."""

    def __init__(self, device: torch.device, layers: int, tokens: int) -> None:
        shape = SHAPES["qwen3_5_moe"]
        linear = shape.linear
        assert linear is not None
        full = layers // shape.interval
        self._device = device
        state = StateShape(
            layers - full,
            *(linear.kernel - 1, linear.channels, linear.value_heads, linear.key_dim, linear.value_dim),
        )
        pages = -(-tokens // PAGE_TOKENS)
        kv = KvShape(full, 2 * shape.kv_heads, shape.head_dim)
        self._storage = KvStorage(kv, 2 * pages, torch.bfloat16, device)
        self._states = DeviceStates(2, state, device)
        size = pages * kv.page_bytes(torch.bfloat16)
        registrar = CudaRegistrar(device) if device.type == "cuda" else None
        copies = max(COPIES_BYTES, self._states.slot_bytes)
        self.contents = DeviceContents(
            self._storage, self._states, Kept(2, size + (1 << 20)), copies, registrar
        )
        self.contents.ready()
        for layer in range(full):
            self._storage.layer(layer).normal_()
        self._slots = [self._states.allocate() for _ in range(2)]
        self._states.recurrent.normal_()
        self._states.conv.normal_()
        # Every other page: a conversation's pages need not be neighbours.
        self._source, self._target = list(range(0, 2 * pages, 2)), list(range(1, 2 * pages, 2))

    def state(self, runs: int) -> Rates:
        states, (source, target) = self._states, self._slots
        block = states.snapshot(source)
        assert block is not None
        self.contents.ready()  # the memory that the block has come into use of is registered
        kept = self._seconds(runs, lambda: states.snapshot(source))
        restored = self._seconds(runs, lambda: states.restore(target, block))
        if not torch.equal(states.recurrent[:, source], states.recurrent[:, target]):
            raise SystemExit("the restored state is not the one that was kept")
        return self._rates(block, restored, kept, runs)

    def pages(self, runs: int) -> Rates:
        block = self.contents.read_pages(self._source, spare=False)
        assert isinstance(block, Block)
        self.contents.ready()
        restored = self._seconds(runs, lambda: self.contents.write_pages(self._target, block, 0))
        first, second = self._source[-1] * PAGE_TOKENS, self._target[-1] * PAGE_TOKENS
        stored = self._storage.layer(0)
        if not torch.equal(stored[:, first : first + PAGE_TOKENS], stored[:, second : second + PAGE_TOKENS]):
            raise SystemExit("the restored pages are not those that were kept")
        kept = self._seconds(runs, lambda: self.contents.read_pages(self._source, spare=False))
        return self._rates(block, restored, kept, runs)

    def _rates(self, block: Block, restored: float, kept: float, runs: int) -> Rates:
        plain = torch.empty(len(block), dtype=torch.uint8, device=self._device)

        def copy() -> None:
            for at, length in block.pieces(0, len(block)):
                plain[at : at + length].copy_(block.tensor[at : at + length], non_blocking=True)

        link = self._seconds(runs, copy)
        return Rates(len(block), *(len(block) / took / 1e9 for took in (restored, link, kept)))

    def _seconds(self, runs: int, action: Callable[[], object]) -> float:
        """The median, from the call until the device has nothing left to do."""
        times = []
        for _ in range(runs + 2):
            self._wait()
            begin = time.perf_counter()
            action()
            self._wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[2:])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(device: torch.device, layers: int, tokens: int, runs: int) -> dict[str, Any]:
    bench = Bench(device, layers, tokens)
    try:
        found = {"state": bench.state(runs), "pages": bench.pages(runs)}
    finally:
        bench.contents.close()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    rows = {what: {**rates._asdict(), "share": rates.share} for what, rates in found.items()}
    return {"device": name, "layers": layers, "tokens": tokens, "runs": runs, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=8192, help="whose KV pages are kept")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(torch.device(asked.device), asked.layers, asked.tokens, asked.runs)
    if asked.json:
        print(json.dumps(found))
        return
    for what in ("state", "pages"):
        row = found[what]
        print(
            f"{what}: {row['bytes'] / 1e6:.1f} MB restored at {row['restored']:.1f} GB/s, the link does "
            f"{row['link']:.1f}: {row['share']:.1%}; kept at {row['kept']:.1f} GB/s"
        )
    print(f"{found['device']}, medians of {found['runs']} runs")


if __name__ == "__main__":
    main()
