"""Starts a server, measures it with one client at batch 1, and stops it.

Definitions (those of the published peers' figures): decode rate = tokens after the first `skip`, over the
time between their chunks, behind a prompt of `context` tokens; prefill rate = prompt tokens / time to the
first token, with HTTP, tokenizer and sampling; load = launch to the first completed request.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.serving.client import Reply, Server, ServerError
from benchmarks.serving.process import Child, Monitor
from benchmarks.serving.prompts import Prompts
from benchmarks.serving.results import Run, expert_gib


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start a server; `{model}` and `{port}` are filled in.

    `announces`: when ready it writes a JSON line with its `url` and `token` to stdout.
    """

    name: str
    launch: str
    announces: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # merged into every request


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. Tokens and seconds; `budget_s` counts from the launch, and ends new requests."""

    model: Path
    logs: Path
    context: int = 1024
    generate: int = 160
    skip: int = 32
    prefill: tuple[int, ...] = (2048, 8192)
    warm_context: int = 8192
    warm_new: int = 64
    repeats: int = 3
    port: int = 1919
    ready_s: float = 240.0
    budget_s: float = 1e9
    walk: bool = False
    seed: str = "peers"


class OutOfTime(Exception):
    """The budget is used up."""


def measure(engine: Engine, plan: Plan, number: int) -> Run:
    """One run of `engine`, the `number`-th. Never raises for what the server does: see `Run.error`."""
    launch = engine.launch.format(model=plan.model, port=plan.port)
    run = Run(engine.name, number, launch)
    config = json.loads((plan.model / "config.json").read_bytes())
    run.expert_gib = expert_gib(config.get("text_config", config))
    begun = time.perf_counter()
    monitor = Monitor()
    child = Child(launch, plan.logs, f"{engine.name}.{number}", engine.env)
    monitor.group = child.group
    monitor.start()
    try:
        Session(engine, plan, run, child, monitor).measure()
    except OutOfTime:
        run.problems.append(f"budget of {plan.budget_s:.0f} s used up: fewer repeats")
    except (ServerError, OSError, ValueError, KeyError) as error:
        run.error = f"{type(error).__name__}: {error}; {child.last_words()}"[:600]
    finally:
        child.stop()
        monitor.end()
    peaks = monitor.peaks
    run.vram_peak, run.host_peak, run.resident_peak = peaks.vram_serving, peaks.host, peaks.resident
    run.total_s = time.perf_counter() - begun
    return run


class Session:
    """The requests of one run."""

    def __init__(self, engine: Engine, plan: Plan, run: Run, child: Child, monitor: Monitor) -> None:
        self._engine = engine
        self._plan = plan
        self._run = run
        self._child = child
        self._monitor = monitor
        # The same texts for every engine of a round, others in the next round.
        self._prompts = Prompts(plan.model, f"{plan.seed}/{run.round}", walk=plan.walk)
        self._server = Server(f"http://127.0.0.1:{plan.port}", extra=engine.extra)

    def measure(self) -> None:
        plan, run, monitor = self._plan, self._run, self._monitor
        self._wait_until_ready()
        run.load_s = time.perf_counter() - self._child.started
        run.vram_loaded = monitor.vram()
        for length in plan.prefill:
            self._ask(self._prompts.fresh(length), 2)  # warm-up of every shape
        self._ask(self._prompts.fresh(plan.context), 48)
        monitor.serving = True
        monitor.sample()
        for _ in range(plan.repeats):
            self._decode()
            for length in plan.prefill:
                self._prefill(length)
            if plan.warm_new and plan.warm_context not in plan.prefill:
                self._warm(self._ask(self._prompts.fresh(plan.warm_context), 2)[0])

    def _wait_until_ready(self) -> None:
        """Until the first completion has been answered."""
        deadline = self._child.started + self._plan.ready_s
        said = ""
        while time.perf_counter() < deadline:
            if (code := self._child.exit_code()) is not None:
                raise ServerError(f"the server exited with {code} while loading")
            try:
                if self._find_server():
                    prompt = self._prompts.text(self._prompts.fresh(8))
                    self._server.complete(prompt, 2, timeout_s=max(1.0, deadline - time.perf_counter()))
                    return
            except (OSError, ServerError, ValueError) as error:
                said = str(error)[:200]
            time.sleep(0.1)
        raise ServerError(f"not ready after {self._plan.ready_s:.0f} s; last answer: {said or 'none'}")

    def _find_server(self) -> bool:
        """Whether the server's address, token and model are known."""
        if self._server.model:
            return True
        if self._engine.announces:
            found = self._child.announced()
            if found is None:
                return False
            self._server = replace(self._server, url=str(found["url"]), token=found.get("token"))
        self._server = replace(self._server, model=self._server.find_model())
        return True

    def _decode(self) -> None:
        plan, run = self._plan, self._run
        ids, reply = self._ask(self._prompts.fresh(plan.context), plan.generate)
        rate, gaps = decode_rate(reply, plan.skip)
        run.decode.append(round(rate, 2))
        run.gaps_ms += [round(gap * 1e3, 3) for gap in gaps]
        run.first_token.setdefault(str(plan.context), []).append(reply.stamps[0])
        script = self._prompts.scripted(ids, plan.generate)
        if script is not None and reply.text != script:
            self._problem("the reply leaves the script of the checkpoint")

    def _prefill(self, length: int) -> None:
        ids, reply = self._ask(self._prompts.fresh(length), 2)
        self._run.first_token.setdefault(str(length), []).append(reply.stamps[0])
        if reply.cached_tokens > 64:
            self._problem(f"{reply.cached_tokens} of {length} tokens of a fresh prompt were kept")
        if self._plan.warm_new and length == self._plan.warm_context:
            self._warm(ids)

    def _warm(self, ids: list[int]) -> None:
        """First token of `warm_new` new tokens behind a prompt that was just answered."""
        _, reply = self._ask([*ids, *self._prompts.fresh(self._plan.warm_new)], 2)
        self._run.warm.append(reply.stamps[0])
        self._run.warm_cached.append(reply.cached_tokens)

    def _ask(self, ids: list[int], tokens: int) -> tuple[list[int], Reply]:
        if time.perf_counter() - self._child.started > self._plan.budget_s:
            raise OutOfTime
        reply = self._server.complete(self._prompts.text(ids), tokens)
        counts = (reply.prompt_tokens, reply.completion_tokens)
        if counts != (len(ids), tokens):
            self._problem(f"asked for {len(ids)} + {tokens} tokens, usage says {counts[0]} + {counts[1]}")
        elif tokens > 2 and len(reply.stamps) != tokens:
            self._problem(f"{tokens} tokens came in {len(reply.stamps)} chunks")
        return ids, reply

    def _problem(self, words: str) -> None:
        if words not in self._run.problems:
            self._run.problems.append(words)


def decode_rate(reply: Reply, skip: int) -> tuple[float, list[float]]:
    """Tokens/s after the first `skip`, and the seconds between their chunks. Where chunks are not tokens, the
    tokens are taken to be spread evenly over the chunks. Raises ServerError for fewer than three chunks."""
    stamps = reply.stamps
    first = min(skip, len(stamps) - 2)
    if first < 0 or len(stamps) < 3:
        raise ServerError(f"a reply of {len(stamps)} chunks is too short to measure")
    later = stamps[first:]
    tokens = float(len(later) - 1)
    if reply.completion_tokens and len(stamps) != reply.completion_tokens:
        tokens = reply.completion_tokens - 1 - first * reply.completion_tokens / len(stamps)
    gaps = [after - before for before, after in itertools.pairwise(later)]
    return tokens / (later[-1] - later[0]), gaps
