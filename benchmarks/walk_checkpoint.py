"""Write a synthetic mixture-of-experts checkpoint in a real shape, whose routing and text are scripted:

    python -m benchmarks.walk_checkpoint --family qwen3_5_moe --layers 24 --tokenizer DIR --out CK

Greedy decoding walks a known sequence of words (`walk.json` in the checkpoint), so every engine produces the
same text and routes it alike; routing has the published statistics. `--verify N` runs transformers on N
tokens of the walk and prints each figure beside its target. `--tiny` makes a small model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.walk.script import NOISE, Dials, Script, write_script
from benchmarks.walk.shapes import SHAPES, TINY, Shape, config_json
from benchmarks.walk.spaces import divide
from benchmarks.walk.tensors import Draw, Tensors
from benchmarks.walk.vocabulary import copy_tokenizer, end_id, words_of, write_tiny_tokenizer
from benchmarks.walk.writer import CheckpointWriter, Part, by_expert, whole


class Made(NamedTuple):
    """A finished checkpoint."""

    script: Script
    bytes: int
    seconds: float


def make_checkpoint(
    out: Path, shape: Shape, tokenizer: Path | None, seed: int, device: str, threads: int = 8
) -> Made:
    """Write everything that a checkpoint directory holds. `tokenizer` None: a small one is made.

    Raises ValueError for a shape or a tokenizer that does not fit.
    """
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        write_tiny_tokenizer(out)
    else:
        copy_tokenizer(tokenizer, out)
    spaces = divide(shape)
    dials = Dials(noise=NOISE[shape.family])
    words = words_of(out, shape.vocab)
    if len(words) < 64:
        raise ValueError(
            f"{tokenizer}: only {len(words)} words under id {shape.vocab}; give another tokenizer"
        )
    if end_id(out) >= shape.vocab:
        raise ValueError(
            f"{tokenizer}: its end token is {end_id(out)}, the model has {shape.vocab} ids; raise --vocab"
        )
    script = write_script(list(words), shape.vocab, spaces.route, dials, seed)
    tensors = Tensors(shape, spaces, script, dials, Draw(seed, torch.device(device)))
    with torch.no_grad(), CheckpointWriter(out, shape.layers + 1, threads) as writer:
        _put(writer, shape, list(tensors.ends()))
        for layer in range(shape.layers):
            _put(writer, shape, list(tensors.layer(layer)))
            if device == "cpu":
                writer.wait()
    _write_json(out, shape, script, seed)
    return Made(script, writer.bytes, time.perf_counter() - started)


def _put(writer: CheckpointWriter, shape: Shape, tensors: list[tuple[str, torch.Tensor]]) -> None:
    """One shard."""
    stored: list[tuple[torch.Tensor, list[Part]]] = []
    for name, tensor in tensors:
        stem, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or shape.family == "qwen3_5_moe":
            stored.append((tensor, whole(name, tensor.shape)))
            continue
        rows = {"gate_proj": shape.inner, "up_proj": shape.inner}
        matrices = rows if last == "gate_up_proj" else {"down_proj": shape.hidden}
        stored.append((tensor, by_expert(stem, matrices, tensor.shape)))
    shard = writer.shard(sorted((part for _, parts in stored for part in parts), key=lambda part: part.name))
    for tensor, parts in stored:
        writer.put(shard, tensor, parts)


def _write_json(out: Path, shape: Shape, script: Script, seed: int) -> None:
    end = end_id(out)
    files: dict[str, Any] = {
        "config.json": config_json(shape, end),
        "generation_config.json": {"eos_token_id": end, "do_sample": True, "temperature": 1.0, "top_k": 40},
        "walk.json": {"seed": seed, "ids": script.walk.tolist()},
    }
    for name, value in files.items():
        (out / name).write_text(json.dumps(value), encoding="utf-8")


class Row(NamedTuple):
    """A figure beside its target."""

    figure: str
    measured: float
    target: float
    tolerance: float
    match: bool


class Report(NamedTuple):
    """What `verify` found. `walked`: share of places where the likeliest next id is the scripted one."""

    tokens: int
    layers: int
    walked: float
    rows: list[Row]


def verify(out: Path, shape: Shape, script: Script, tokens: int, layers: int, device: str) -> Report:
    """Run `layers` layers over the first `tokens` of the walk in BF16 and compare with the targets."""
    from benchmarks.walk.reference import load, run
    from benchmarks.walk.statistics import measure, targets

    model = load(out, shape, layers, torch.bfloat16, torch.device(device))
    text = script.walk[:tokens]
    found = run(model, text.tolist(), shape.per_token)
    figures = measure(found.chosen, found.guessed, shape.experts)
    rows = []
    for name, value, tolerance in targets(shape.family, shape.per_token, shape.experts):
        near = abs(figures[name] - value) <= tolerance
        rows.append(Row(name, figures[name], value, tolerance, near))
    # Without all layers the residual at the end is shorter than planned, which changes no order of logits.
    walked = float((found.following == script.successor[text[found.places]]).mean())
    return Report(len(text), layers, walked, rows)


def main() -> None:
    arguments = _parser().parse_args()
    shape = (TINY if arguments.tiny else SHAPES)[arguments.family]
    shape = replace(shape, layers=arguments.layers or shape.layers, vocab=arguments.vocab or shape.vocab)
    if shape.layers % shape.interval:
        sys.exit(f"--layers must be a multiple of {shape.interval} for {arguments.family}")
    if not arguments.tiny and arguments.tokenizer is None:
        sys.exit("--tokenizer DIR is needed: a directory with tokenizer.json and tokenizer_config.json")
    try:
        made = make_checkpoint(
            *(arguments.out, shape, arguments.tokenizer, arguments.seed, arguments.device, arguments.threads)
        )
    except ValueError as error:
        sys.exit(str(error))
    print(
        f"{arguments.out}: {made.bytes / 1e9:.2f} GB, of which experts {shape.expert_bytes / 1e9:.2f} GB, "
        f"walk of {len(made.script.walk)} words, {made.seconds:.1f} s"
    )
    if arguments.verify:
        layers = min(arguments.verify_layers, shape.layers)
        report = verify(arguments.out, shape, made.script, arguments.verify, layers, arguments.device)
        shown = {**report._asdict(), "rows": [row._asdict() for row in report.rows]}
        print(json.dumps(shown) if arguments.json else _table(report))


def _table(report: Report) -> str:
    lines = [f"{report.tokens} tokens, {report.layers} layers; walk followed {report.walked:.2%}"]
    lines.append(f"{'figure':<24} {'measured':>9} {'target':>7} {'within':>7}")
    for row in report.rows:
        shown = f"{row.figure:<24} {row.measured:>9.3f} {row.target:>7.3f} {row.tolerance:>7.2f}"
        lines.append(shown + ("  match" if row.match else "  NO MATCH"))
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--family", choices=sorted(SHAPES), default="qwen3_moe")
    parser.add_argument("--layers", type=int, help="default: as many as the published model")
    parser.add_argument("--vocab", type=int, help="rows of the embedding; default: as the published model")
    parser.add_argument("--tokenizer", type=Path, help="directory with tokenizer.json, tokenizer_config.json")
    parser.add_argument("--tiny", action="store_true", help="a small model of the same kind, for tests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=8, help="that write")
    parser.add_argument("--verify", type=int, default=0, metavar="N", help="run N tokens in transformers")
    parser.add_argument("--verify-layers", type=int, default=8, help="layers that --verify runs")
    parser.add_argument("--json", action="store_true", help="the report of --verify as JSON")
    return parser


if __name__ == "__main__":
    main()
