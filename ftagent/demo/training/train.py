"""Trains the embedded model. One H200, under ten minutes a run; `--smoke` runs a few tiny steps anywhere.

    python -m ftagent.demo.training.train --out DIR [--minutes 9] [--resume DIR] [--seed 0]

Stages go from short rows to long ones; each has its own mix of documents. Rows are made by worker processes
while the GPU trains, row i of a stage from (seed, stage, i) alone, so a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ftagent.demo.training import export, samples
from ftagent.demo.training.network import DeltaNet, Layer, Network
from ftagent.demo.training.optimizer import optimizers
from ftagent.demo.training.samples import Mix
from ftagent.demo.training.shape import Shape

log = logging.getLogger("ftagent.demo.training")


@dataclass(frozen=True, slots=True)
class Stage:
    """`share` of the run's time on rows of `mix`, `rows` rows a step."""

    name: str
    mix: Mix
    rows: int
    share: float


STAGES = (
    Stage("short", Mix(2048, 0.1, 0.1, 0.25), 64, 0.5),
    Stage("long", Mix(32768, 0.03, 0.01, 0.1), 4, 0.5),
)
SMOKE = (Stage("short", Mix(256, 0.1, 0.15, 0.3), 2, 0.5), Stage("long", Mix(512, 0.05, 0.0, 0.3), 1, 0.5))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Row i of a stage, made on demand."""

    def __init__(self, stage: Stage, seed: int, count: int) -> None:
        self.stage, self.seed, self.count = stage, seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = samples.row(random.Random(f"{self.seed}/{self.stage.name}/{index}"), self.stage.mix)
        return torch.from_numpy(row.ids.astype(np.int32)), torch.from_numpy(row.weights)


def batches(stage: Stage, seed: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (ids, weights [rows, length + 1])."""
    loader = DataLoader(
        Rows(stage, seed, 1 << 30),
        batch_size=stage.rows,
        num_workers=workers,
        prefetch_factor=6 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    yield from loader


def loss_of(network: Network, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(weighted mean cross-entropy plus balance, cross-entropy of the assistant's own tokens)."""
    hidden, balance = network.hidden(ids[:, :-1])
    targets, weights = ids[:, 1:].flatten(), weights[:, 1:].flatten().float()
    logits = F.linear(hidden.flatten(0, 1), network.embed.to(hidden.dtype))
    each = F.cross_entropy(logits.float(), targets, reduction="none")
    own = (weights == 1.0).float()
    mean = (each * weights).sum() / weights.sum()
    return mean + 0.01 * balance, ((each * own).sum() / own.sum().clamp(min=1)).detach()


def rate_at(progress: float, warmup: float = 0.02) -> float:
    """Learning-rate factor at a share of the run: warm-up, flat, linear to a fiftieth over the last 45 %."""
    if progress < warmup:
        return max(progress, 1e-3) / warmup
    return max(0.02, min(1.0, (1.0 - progress) / 0.45))


class Trainer:
    """One run: stages in turn, each for its share of the time."""

    def __init__(self, args: argparse.Namespace, stages: tuple[Stage, ...]) -> None:
        self.args, self.stages = args, stages
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        self.network = Network(Shape()).to(self.device)
        if args.resume:
            load_parts(self.network, Path(args.resume))
        self.optimizers = optimizers(self.network, args.matrix_rate, args.other_rate)
        self.base_rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.steps = self.tokens = 0
        if self.device.type == "cuda":
            compile_parts(self.network)

    def step(self, ids: Tensor, weights: Tensor, progress: float) -> Tensor:
        """One update; the loss of the assistant's own words. `progress` is the share of the run gone by."""
        loss, own = loss_of(self.network, ids, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer, base in zip(self.optimizers, self.base_rates, strict=True):
            optimizer.param_groups[0]["lr"] = base * rate_at(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += ids.numel()
        return own

    def run(self) -> None:
        """All stages; the time counts from here."""
        seconds = self.args.minutes * 60
        start = time.monotonic()
        begun = 0.0
        loaders = [iter(batches(stage, self.args.seed, self.args.workers)) for stage in self.stages]
        for stage, loader in zip(self.stages, loaders, strict=True):
            ends = begun + stage.share * seconds
            while (elapsed := time.monotonic() - start) < ends:
                ids, weights = (part.to(self.device, non_blocking=True) for part in next(loader))
                own = self.step(ids.long(), weights, elapsed / seconds)
                if self.steps % self.args.every == 0:
                    self._report(stage, own, time.monotonic() - start)
            begun = ends

    def _report(self, stage: Stage, own: Tensor, elapsed: float) -> None:
        log.info(
            "%s step %d  loss of own words %.4f  %.1f M tokens  %.0f s  %.0f tokens/s",
            stage.name, self.steps, own.item(), self.tokens / 1e6, elapsed, self.tokens / elapsed,
        )  # fmt: skip


def compile_parts(network: Network) -> None:
    """torch.compile on the parts between the delta rule's kernels."""
    for layer in network.layers:
        assert isinstance(layer, Layer)
        layer.mlp.compile()
        mixer = layer.mixer
        if isinstance(mixer, DeltaNet):
            mixer.inputs = torch.compile(mixer.inputs)  # type: ignore[method-assign]
            mixer.outputs = torch.compile(mixer.outputs)  # type: ignore[method-assign]
        else:
            mixer.compile()


def save_parts(network: Network, directory: Path, parts: int = 3) -> None:
    """BF16 weights in `parts` files, for a later run to resume from."""
    state = {name: p.detach().to(torch.bfloat16).cpu() for name, p in network.named_parameters()}
    names = sorted(state)
    for part in range(parts):
        torch.save({name: state[name] for name in names[part::parts]}, directory / f"weights{part}.pt")


def load_parts(network: Network, directory: Path) -> None:
    """What `save_parts` wrote."""
    state: dict[str, Tensor] = {}
    for path in sorted(directory.glob("weights*.pt")):
        state |= torch.load(path, weights_only=True)
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.copy_(state[name].to(p))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the checkpoint and the parts go")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--resume", default="", help="the --out of an earlier run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14, help="processes that make rows")
    parser.add_argument("--every", type=int, default=100, help="steps between two lines of the log")
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--other-rate", type=float, default=2e-3)
    parser.add_argument("--smoke", action="store_true", help="tiny rows, to see that it runs")
    return parser.parse_args()


def save(trainer: Trainer, directory: Path) -> None:
    """The checkpoint, the parts to resume from, and what was run (training.json)."""
    directory.mkdir(parents=True, exist_ok=True)
    encoding = samples.encoding()
    end_of_turn, end_of_text = (encoding.encode_single_token(t) for t in ("<|im_end|>", "<|endoftext|>"))
    export.write(trainer.network, directory, end_of_turn, end_of_text)
    save_parts(trainer.network, directory)
    figures = {
        "tokens": trainer.tokens,
        "steps": trainer.steps,
        "arguments": {name: str(value) for name, value in vars(trainer.args).items()},
        "stages": [asdict(stage) for stage in trainer.stages],
    }
    (directory / "training.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train and save."""
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    samples.warm_up()  # before the workers fork, so that they share the tables
    trainer = Trainer(args, SMOKE if args.smoke else STAGES)
    trainer.run()
    save(trainer, args.out)


if __name__ == "__main__":
    main()
