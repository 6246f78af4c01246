"""Decode, prefill and short suffixes through the runner alone: no server, no scheduler, no text.

    python -m benchmarks.runner_speed CHECKPOINT --experts 0.2 [--mode hybrid] [--context 34000] \
        [--prefill 2048 8192 8192 16000 32000] [--json]

Prompts are random words of the tokenizer, fresh ones every time; tokens are drawn with top-k 40 at
temperature 1 from the best logits, as the comparison of servers does. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.load import load_runner
from ftagent.engine.logits import Best, StepLogits
from ftagent.engine.options import EngineOptions
from ftagent.engine.steps import Steps

WORD = re.compile("Ġ[A-Za-z]{3,}")  # a plain word behind a space, in byte-level BPE
BEHIND, GENERATED, SKIPPED = 1024, 160, 32  # tokens of a decode run
WARM, SUFFIX = 8192, 64


@dataclass(slots=True)
class Request:
    """One request on the runner."""

    runner: Steps
    slot: int
    pages: list[int]
    length: int = 0

    @classmethod
    def open(cls, runner: Steps) -> Request:
        return cls(runner, runner.recurrent.allocate(), [])

    def feed(self, tokens: Sequence[int]) -> StepLogits:
        need = -(-(self.length + len(tokens)) // self.runner.kv.page_size) - len(self.pages)
        if need > 0:
            self.pages += self.runner.kv.allocate(need, after=self.pages[-1] if self.pages else None)
        chunk = Chunk(tuple(tokens), self.length, self.pages, self.slot, True)
        self.length += len(tokens)
        return self.runner.launch([chunk]).wait()

    def close(self) -> None:
        self.runner.kv.release(self.pages)
        self.runner.recurrent.release(self.slot)


class Bench:
    """The measurements, on one loaded runner."""

    def __init__(self, runner: Steps, words: Sequence[int], seed: int) -> None:
        self._runner = runner
        self._words = words
        self._dice = random.Random(seed)

    def prompt(self, tokens: int) -> list[int]:
        return [self._dice.choice(self._words) for _ in range(tokens)]

    def decode(self) -> list[float]:
        """Seconds of each token behind the first SKIPPED."""
        request = Request.open(self._runner)
        logits = request.feed(self.prompt(BEHIND))
        times = []
        for _ in range(GENERATED):
            token = self.draw(logits)
            began = time.perf_counter()
            logits = request.feed([token])
            times.append(time.perf_counter() - began)
        request.close()
        return times[SKIPPED:]

    def prefill(self, tokens: int) -> float:
        request = Request.open(self._runner)
        began = time.perf_counter()
        request.feed(self.prompt(tokens))
        took = time.perf_counter() - began
        request.close()
        return took

    def suffixes(self, count: int) -> list[float]:
        """Seconds of SUFFIX new tokens behind WARM known ones, again and again."""
        request = Request.open(self._runner)
        request.feed(self.prompt(WARM))
        times = []
        for _ in range(count):
            began = time.perf_counter()
            request.feed(self.prompt(SUFFIX))
            times.append(time.perf_counter() - began)
        request.close()
        return times

    def draw(self, logits: StepLogits) -> int:
        best = logits.best(0)
        assert isinstance(best, Best), "a device keeps the best logits"
        order = np.argsort(-best.values)[:40]
        weights = np.exp(best.values[order] - best.values[order][0])
        sums = np.cumsum(weights)
        return int(best.ids[order][np.searchsorted(sums, self._dice.random() * sums[-1])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--experts", default="0.2")
    parser.add_argument("--mode", default="hybrid")
    parser.add_argument("--context", type=int, default=34_000)
    parser.add_argument("--prefill", type=int, nargs="*", default=[2048, 8192, 8192, 16_000, 32_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    began = time.perf_counter()
    options = EngineOptions(
        model=str(asked.checkpoint), device="cuda", experts=asked.experts, mode=asked.mode,
        context=asked.context, max_running=1,
    )  # fmt: skip
    runner = load_runner(asked.checkpoint, options)
    torch.cuda.synchronize()
    loaded = time.perf_counter() - began
    try:
        found = measure(Bench(runner, words_of(asked.checkpoint), asked.seed), asked.runs, asked.prefill)
        found |= {"load_s": loaded, "reserved_bytes": torch.cuda.memory_reserved()}
        found["experts"] = None if runner.experts is None else runner.experts.stats()._asdict()
        show(found, asked.json)
    finally:
        runner.close()


def words_of(checkpoint: Path) -> list[int]:
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_bytes())["model"]["vocab"]
    return [index for token, index in vocabulary.items() if WORD.fullmatch(token)]


def measure(bench: Bench, runs: int, prompts: Sequence[int]) -> dict[str, Any]:
    decodes = [bench.decode() for _ in range(runs)]
    steps = sorted(step for run in decodes for step in run)
    return {
        "decode_tokens_per_s": [len(run) / sum(run) for run in decodes],
        "step_p50_ms": statistics.median(steps) * 1e3,
        "step_p99_ms": steps[int(len(steps) * 0.99)] * 1e3,
        "suffix_s": bench.suffixes(runs + 1),
        "prefill": [(tokens, bench.prefill(tokens)) for tokens in prompts],
    }


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(f"loaded in {found['load_s']:.1f} s, {found['reserved_bytes'] / 2**30:.2f} GiB of device memory")
    rates = ", ".join(f"{rate:.1f}" for rate in found["decode_tokens_per_s"])
    print(f"decode: {rates} tokens/s; step {found['step_p50_ms']:.2f} ms, p99 {found['step_p99_ms']:.2f} ms")
    print("64 tokens behind 8,192: " + ", ".join(f"{took:.3f} s" for took in found["suffix_s"]))
    for tokens, took in found["prefill"]:
        print(f"prefill {tokens}: {took:.3f} s, {tokens / took:,.0f} tokens/s")
    print(f"experts: {found['experts']}")


if __name__ == "__main__":
    main()
