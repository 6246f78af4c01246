"""A LocalEngine on the toy model, with a vocabulary of single characters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.chunk import Chunk
from ftagent.engine.engine import LocalEngine
from ftagent.engine.options import EngineOptions
from ftagent.engine.prepare import Preparer
from ftagent.engine.prompt.bpe_import import BytePairVocabulary
from ftagent.engine.prompt.template import ChatTemplate
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.sampling import SamplingDefaults
from ftagent.events import Event, Failed, Finished, TextDelta
from tests.support.toy import ToyRunner

FREE = SamplingParams(ignore_eos=True)
END = 95  # the id of the added token that ends a reply
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def toy_tokenizer() -> Tokenizer:
    """Ids 0..94 are the printable ASCII characters from space on, 95 is the end token, 96 a newline."""
    tokens = {bytes([32 + index]): index for index in range(95)} | {b"\n": 96}
    vocabulary = BytePairVocabulary(
        tokens=tokens,
        ranks=tokens,
        ranks_are_ids=True,
        added={"<|end|>": END},
        special=frozenset({"<|end|>"}),
        pattern=r"[\s\S]",
        nfc=False,
    )
    return Tokenizer(vocabulary, eos_ids=[END])


def text_of(tokens: list[int]) -> str:
    """Oracle of the text: without the end token."""
    return "".join("\n" if token == 96 else chr(32 + token) for token in tokens if token != END)


@contextmanager
def toy_engine(
    runner: ToyRunner,
    options: EngineOptions | None = None,
    defaults: SamplingDefaults | None = None,
    *,
    sound: bool = True,
) -> Iterator[LocalEngine]:
    """A greedy engine unless told otherwise; closed at the end, and its pools checked if `sound`."""
    tokenizer = toy_tokenizer()
    preparer = Preparer(
        runner.info,
        tokenizer,
        ChatTemplate(TEMPLATE, tokenizer),
        defaults or SamplingDefaults(temperature=0),
        form="plain",
        constrain="required",
        seed=0,
    )
    engine = LocalEngine(runner, preparer, options or EngineOptions(chunk_tokens=8))
    try:
        yield engine
    finally:
        engine.close()
        if sound:
            engine.scheduler.check_integrity()


async def collect(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


def content(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def last(events: list[Event]) -> Finished:
    """The Finished that must be the last event, and the only one of its kind."""
    finished = events[-1]
    assert isinstance(finished, Finished), finished
    assert not any(isinstance(event, Finished | Failed) for event in events[:-1])
    return finished


def ask(prompt: Sequence[int] | str, max_tokens: int, sampling: SamplingParams = FREE) -> GenerateRequest:
    return GenerateRequest(prompt, replace(sampling, max_tokens=max_tokens))


def run(engine: LocalEngine, request: GenerateRequest) -> list[Event]:
    return asyncio.run(collect(engine.generate(request)))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to make `condition` true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it becomes true on a thread, which sets no event
            await asyncio.sleep(0.001)


def idle(engine: LocalEngine) -> bool:
    return not (engine.scheduler.running or engine.scheduler.waiting)


class Gate:
    """Lets steps through one by one."""

    def __init__(self, open_for: int = 0) -> None:
        self.permits = threading.Semaphore(open_for)
        self.arrived = threading.Semaphore(0)

    def __call__(self, chunks: Sequence[Chunk]) -> None:
        self.arrived.release()
        assert self.permits.acquire(timeout=20)

    def open(self) -> None:
        self.permits.release(1_000_000)
