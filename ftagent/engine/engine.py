"""The engine's face: start, generate, count tokens, stats, close. Implements `api.Engine` in this process.

Bridges any number of asyncio loops to the one worker thread. Knows no HTTP and no terminal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest, Health, LoadProgress, ModelInfo
from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.checks import AnchorChecker, tolerance_for
from ftagent.engine.context.tiers import PrefixStore
from ftagent.engine.meters import aged
from ftagent.engine.options import EngineOptions
from ftagent.engine.prepare import Preparer
from ftagent.engine.scheduler import Scheduler
from ftagent.engine.stats import Snapshot
from ftagent.engine.steps import Steps
from ftagent.engine.task import Outbox
from ftagent.engine.worker import Worker
from ftagent.errors import FtError
from ftagent.events import Event, Failed, Finished, ToolCallDelta, ToolCallEnd, ToolCallStart


class _Calls:
    """The calls of one reply, put together from its events."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        self._arguments: dict[int, str] = {}
        self._ended: list[int] = []

    def note(self, event: Event) -> None:
        if isinstance(event, ToolCallStart):
            self._ids[event.index] = event.id
            self._arguments[event.index] = ""
        elif isinstance(event, ToolCallDelta):
            self._arguments[event.index] += event.arguments
        elif isinstance(event, ToolCallEnd):
            self._ended.append(event.index)

    def complete(self) -> list[tuple[str, str]]:
        """Id and arguments of the calls that have ended."""
        return [(self._ids[index], self._arguments[index]) for index in self._ended]


class LocalEngine:
    """A model that runs in this process. `scheduler` may be watched in tests; only the worker uses it."""

    def __init__(
        self, runner: Steps, preparer: Preparer, options: EngineOptions, store: PrefixStore | None = None
    ) -> None:
        """`store`: where prefixes go that leave the pools; it is closed with the engine."""
        self._preparer = preparer
        self._store = store
        self._runner = runner
        self._closing = threading.Lock()
        self._closed = False
        self._model = runner.info
        self.scheduler = Scheduler(
            runner.kv,
            runner.recurrent,
            PrefixCache(runner.kv, runner.recurrent, runner.kept.states, store),
            runner.copy_page,
            max_running=options.max_running,
            max_waiting=options.max_waiting,
            chunk_tokens=options.chunk_tokens or runner.chunk_tokens,
            checker=AnchorChecker(options.verify_anchors, tolerance_for(runner.info.dtype)),
        )
        self._worker = Worker(runner, self.scheduler, preparer.vocab)

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def health(self) -> Health:
        return self._worker.health

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """See `api.Engine.generate`."""
        outbox = Outbox(asyncio.get_running_loop())
        task = await asyncio.to_thread(self._preparer.task, request, outbox)
        self._worker.submit(task)
        calls = _Calls()
        spoken = over = False
        try:
            while not over:
                for item in await outbox.take():
                    if isinstance(item, FtError):
                        if not spoken:
                            raise item
                        item = Failed(str(item))
                    calls.note(item)
                    spoken = True
                    over = isinstance(item, Finished | Failed)
                    if over:  # before the reader can answer with the next turn
                        self._preparer.remember(task, calls.complete())
                    yield item
        finally:
            self._worker.cancel(task)
            if not over:
                self._preparer.remember(task, calls.complete())

    async def count_tokens(self, conversation: Conversation) -> int:
        """See `api.Engine.count_tokens`."""
        return await asyncio.to_thread(self._preparer.count_tokens, conversation)

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw text, as a text prompt would have them."""
        return self._preparer.encode(text)

    def prompt_ids(self, conversation: Conversation) -> Sequence[int]:
        """Token ids of the rendered prompt, as `generate` would see it now."""
        return self._preparer.prompt_ids(conversation)

    def stats(self) -> Snapshot:
        """See `api.Engine.stats`."""
        watch = self._preparer.watch
        return replace(aged(self._worker.snapshot), divergence=watch.newest, divergences=watch.counts())

    def check_integrity(self) -> None:
        """Check the books of pools, tree and anchors between two steps. Raises BooksBroken."""
        self._worker.check_integrity()

    def close(self) -> None:
        """See `api.Engine.close`. What was learnt about the experts is kept for the next start."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._worker.close()
            try:
                if self._runner.experts is not None:
                    from ftagent.engine.experts.heat import keep_heat  # loads torch

                    keep_heat(self._model.fingerprint, self._runner.experts)
            finally:
                if self._store is not None:
                    self._store.close()
                self._runner.close()


def start_engine(options: EngineOptions, progress: LoadProgress | None = None) -> LocalEngine:
    """Load the model of `options` and start its engine. Blocks. `progress` is told how far it is, from
    several threads. Raises LoadFailed and ConfigError.
    """
    from ftagent import demo
    from ftagent.engine.load import load_runner  # loads torch
    from ftagent.engine.prefixes import store_for

    directory = demo.directory_of(options.model)
    runner = load_runner(directory, options, progress=progress)
    try:
        preparer = Preparer.from_directory(
            directory, runner.info, constrain=options.constrain_tools, seed=options.seed
        )
        return LocalEngine(runner, preparer, options, store_for(runner, directory, options))
    except BaseException:  # an interrupt too must not leave threads and registered memory behind
        runner.close()
        raise
