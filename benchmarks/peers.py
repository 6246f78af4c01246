"""Compare servers that speak OpenAI's text completions, one client, batch 1:

    python -m benchmarks.peers --model CK --engines benchmarks/engines.toml --out DIR [--only NAME ...]
    python -m benchmarks.peers --table DIR

Each round starts every engine once, in the order of the file, the next round in the reverse order. Every run
is written to DIR as soon as it is there; called again, only what is missing or failed is run. `--deadline`
ends the call in time: a run is started only when its budget still fits.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from pathlib import Path

from benchmarks.serving.measure import Engine, Plan, measure
from benchmarks.serving.results import Run, read_runs, table


def read_engines(file: Path) -> list[Engine]:
    """The [[engine]] entries of a TOML file. Raises ValueError naming the entry that is wrong."""
    found = []
    for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("engine", []):
        try:
            found.append(Engine(**entry))
        except TypeError as error:
            raise ValueError(f"{file}: engine {entry.get('name', '?')}: {error}") from None
    if len({engine.name for engine in found}) != len(found):
        raise ValueError(f"{file}: two engines have the same name")
    return found


def schedule(engines: list[Engine], rounds: int, done: list[Run]) -> list[tuple[Engine, int]]:
    """(engine, round) still to run, in alternating order."""
    good = {(run.engine, run.round) for run in done if not run.error}
    order = []
    for number in range(rounds):
        one_round = engines if number % 2 == 0 else engines[::-1]
        order += [(engine, number) for engine in one_round if (engine.name, number) not in good]
    return order


def compare(engines: list[Engine], plan: Plan, rounds: int, deadline_s: float) -> None:
    """Run what is missing and print a line for each run."""
    started = time.monotonic()
    for engine, number in schedule(engines, rounds, read_runs(plan.logs)):
        left = deadline_s - (time.monotonic() - started)
        if left < plan.budget_s:
            print(f"{left:.0f} s left: {engine.name}, round {number}, is for the next call", flush=True)
            return
        run = measure(engine, plan, number)
        run.save(plan.logs)
        words = run.error or f"decode {run.decode} tok/s, load {run.load_s:.1f} s"
        print(f"{engine.name}, round {number}: {words} ({run.total_s:.0f} s)", flush=True)


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read_runs(arguments.table)))
        return
    if not (arguments.model and arguments.engines and arguments.out):
        parser.error("--model, --engines and --out are needed (or --table DIR)")
    try:
        engines = read_engines(arguments.engines)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    if unknown := set(arguments.only) - {engine.name for engine in engines}:
        sys.exit(f"{arguments.engines}: no engine {', '.join(sorted(unknown))}")
    chosen = [engine for engine in engines if engine.name in arguments.only or not arguments.only]
    if arguments.prompts == "walk" and not (arguments.model / "walk.json").is_file():
        sys.exit(f"{arguments.model}: no walk.json; make it with benchmarks.walk_checkpoint")
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        arguments.model,
        arguments.out,
        context=arguments.context,
        generate=arguments.generate,
        skip=arguments.skip,
        prefill=tuple(int(length) for length in arguments.prefill.split(",") if length),
        warm_context=arguments.warm_context,
        repeats=arguments.repeats,
        port=arguments.port,
        ready_s=arguments.ready,
        budget_s=arguments.budget,
        walk=arguments.prompts == "walk",
        seed=arguments.seed,
    )
    compare(chosen, plan, arguments.rounds, arguments.deadline)
    print(table(read_runs(arguments.out)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint directory; fills {model} in launch commands")
    parser.add_argument("--engines", type=Path, help="TOML file of launch commands")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="engines to run; default: all")
    parser.add_argument("--out", type=Path, help="directory for results and logs")
    parser.add_argument("--table", type=Path, metavar="DIR", help="print the table of results, run nothing")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="in each round")
    parser.add_argument("--context", type=int, default=1024, help="prompt tokens of the decode measurement")
    parser.add_argument("--generate", type=int, default=160)
    parser.add_argument("--skip", type=int, default=32, help="generated tokens that are not counted")
    parser.add_argument("--prefill", default="2048,8192,16384,32768", help="prompt lengths")
    parser.add_argument("--warm-context", type=int, default=8192, help="prompt that 64 tokens are added to")
    parser.add_argument("--prompts", choices=("words", "walk"), default="words")
    parser.add_argument("--seed", default="peers")
    parser.add_argument("--port", type=int, default=1919)
    parser.add_argument("--ready", type=float, default=240, help="seconds that loading may take")
    parser.add_argument("--budget", type=float, default=180, help="seconds of one run")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds of this call")
    return parser


if __name__ == "__main__":
    main()
