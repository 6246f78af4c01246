"""How fast models load from a cold page cache, beside how fast their files can be read at all.

    python -m benchmarks.load_speed MODEL... [--repeats N] [--readers N] [--device cpu|cuda] [--json]

For each model directory, in turn and alternating: its files are dropped from the page cache, then read with
direct I/O into buffers that are used again (the most that a reader can reach), dropped again, and loaded.
Load means everything from the configuration to a runner that can step; the interpreter and torch are there.
Before each, as much memory is touched and given back: a virtual machine may get its memory from the host only
then, which takes many times as long as filling it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ftagent.engine.experts.host_memory import HostMemory
from ftagent.engine.experts.readers import DIRECT_READERS
from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from ftagent.engine.weights.direct import BLOCK_BYTES, DirectFile, aligned_bytes

BLOCK = 8 * 2**20


def files_of(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.suffix in (".ftw", ".safetensors"))


def drop(files: list[Path]) -> None:
    """Take files out of the page cache. On tmpfs they stay where they are."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def touch(size: int) -> None:
    memory = HostMemory(size)
    memory.tensor[::BLOCK_BYTES] = 1
    memory.close()


def read_all(files: list[Path], threads: int) -> float:
    """Seconds to read everything in whole blocks, thrown away."""
    opened = [DirectFile(file) for file in files]
    buffers = [aligned_bytes(BLOCK) for _ in range(threads)]
    work = [
        (file, offset, min(BLOCK, file.path.stat().st_size - offset))
        for file in opened
        for offset in range(0, file.path.stat().st_size, BLOCK)
    ]

    def run(thread: int) -> None:
        for file, offset, size in work[thread::threads]:
            file.read_into([buffers[thread][:size]], offset)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))
    seconds = time.perf_counter() - began
    for file in opened:
        file.close()
    return seconds


def load(directory: Path, options: EngineOptions) -> float:
    began = time.perf_counter()
    runner = load_runner(directory, options, torch.bfloat16)
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    runner.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--readers", type=int, help="threads that read")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    times: dict[tuple[Path, str], list[float]] = {}
    for _ in range(given.repeats):
        for model in given.models:
            files = files_of(model)
            options = EngineOptions(model=str(model), device=given.device, readers=given.readers)
            for what in ("read", "load"):
                drop(files)
                touch(sum(file.stat().st_size for file in files))
                if what == "read":
                    seconds = read_all(files, given.readers or DIRECT_READERS)
                else:
                    seconds = load(model, options)
                times.setdefault((model, what), []).append(seconds)
    report(given.models, times, given.json)


def report(models: list[Path], times: dict[tuple[Path, str], list[float]], as_json: bool) -> None:
    for model in models:
        size = sum(file.stat().st_size for file in files_of(model))
        found: dict[str, Any] = {"model": str(model), "bytes": size}
        for what in ("read", "load"):
            seconds = times[model, what]
            found[f"{what}_s"] = [round(value, 2) for value in seconds]
            found[f"{what}_gb_per_s"] = round(size / statistics.median(seconds) / 1e9, 2)
        shares = [read / load for read, load in zip(times[model, "read"], times[model, "load"], strict=True)]
        found["share_of_reading"] = round(statistics.median(shares), 2)
        print(json.dumps(found) if as_json else found)


if __name__ == "__main__":
    main()
