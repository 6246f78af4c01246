"""How requests end on the toy model: readers that leave, full queues, faults and the engine's own end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest
import torch

from ftagent.engine.api import GenerateRequest
from ftagent.engine.chunk import Chunk
from ftagent.engine.engine import LocalEngine
from ftagent.engine.job import Piece
from ftagent.engine.options import EngineOptions
from ftagent.errors import EngineStopped, QueueFull
from ftagent.events import Event, Failed, Finished, Progress, TextDelta
from tests.engine.test_scheduler import prompt_of
from tests.support.toy import ToyRunner, cold_tokens
from tests.support.toy_engine import Gate, ask, collect, idle, last, run, toy_engine, until


@pytest.mark.parametrize("steps", [3, 15])
@pytest.mark.parametrize("way", ["close", "cancel"])
def test_a_reader_that_leaves_ends_the_work_within_two_steps(steps: int, way: str) -> None:
    """Ten prefill chunks: step 3 is inside the prompt, step 15 inside the reply."""
    gate = Gate(steps)
    runner = ToyRunner(before_step=gate)

    async def leave(engine: LocalEngine) -> None:
        events = engine.generate(ask(prompt_of(0, 80), 60))
        reader = asyncio.ensure_future(_read(events, forever=way == "cancel"))
        await until(lambda: len(runner.steps) == steps)
        if way == "cancel":
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        else:
            await reader
            await events.aclose()
        gate.open()
        await until(lambda: idle(engine))

    with toy_engine(runner) as engine:
        asyncio.run(leave(engine))
        assert len(runner.steps) <= steps + 2
        engine.scheduler.check_integrity()
        engine.scheduler.prefix.clear()
        assert runner.kv.free_count == runner.kv.total
        assert runner.recurrent.free_count == runner.recurrent.total
        assert engine.stats().recent_requests[-1].finish == "cancelled"


async def _read(events: AsyncGenerator[Event, None], forever: bool) -> None:
    async for _ in events:
        if not forever:
            return


def test_queue_full_is_said_before_any_event_and_queued_ones_are_told() -> None:
    gate = Gate()
    runner = ToyRunner(slots=1, before_step=gate)

    def known(engine: LocalEngine) -> int:
        gate.permits.release()  # arrivals are taken in between steps
        return len(engine.scheduler.running) + len(engine.scheduler.waiting)

    async def crowd(engine: LocalEngine) -> list[list[Event] | BaseException]:
        tasks = []
        for seed in range(3):
            tasks.append(asyncio.ensure_future(collect(engine.generate(ask(prompt_of(seed, 5), 150)))))
            await until(lambda seed=seed: known(engine) > seed)  # type: ignore[misc]
        tasks.append(asyncio.ensure_future(collect(engine.generate(ask(prompt_of(3, 5), 150)))))
        await until(lambda: known(engine) > 0 and tasks[3].done())
        gate.open()
        return await asyncio.gather(*tasks, return_exceptions=True)

    options = EngineOptions(max_waiting=2)
    with toy_engine(runner, options) as engine:
        results = asyncio.run(crowd(engine))
    assert isinstance(results[3], QueueFull)
    for result in results[1:3]:
        assert isinstance(result, list)
        assert result[0] == Progress("queued", 0, 5)
        assert isinstance(result[-1], Finished)


def test_a_fault_in_a_step_fails_its_requests_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = iter([False, False, True])

    def before(chunks: Sequence[Chunk]) -> None:
        if next(faults, False):
            raise RuntimeError("the device has left")

    runner = ToyRunner(before_step=before)
    with toy_engine(runner) as engine:
        events = run(engine, ask(prompt_of(0, 30), 5))
        assert isinstance(events[-1], Failed)
        assert "RuntimeError: the device has left" in events[-1].message
        again = run(engine, ask(prompt_of(0, 30), 5))
        assert list(last(again).token_ids) == cold_tokens(prompt_of(0, 30), 5)
        assert engine.health == "ok"
    assert "the device has left" in caplog.text


def test_nan_fails_one_request_only(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(ToyRunner):
        def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
            rows = super().step(chunks)
            wanted = [chunk for chunk in chunks if chunk.want_logits]
            for row, chunk in zip(rows, wanted, strict=True):
                if chunk.start + len(chunk.tokens) == 7:
                    row[3] = np.nan
            return rows

    async def both(engine: LocalEngine) -> list[list[Event]]:
        prompts = prompt_of(0, 6), prompt_of(1, 20)
        return await asyncio.gather(*(collect(engine.generate(ask(prompt, 5))) for prompt in prompts))

    with toy_engine(Faulty()) as engine:
        first, second = asyncio.run(both(engine))
    assert isinstance(first[-1], Failed)
    assert "NaN" in first[-1].message
    assert list(last(second).token_ids) == cold_tokens(prompt_of(1, 20), 5)
    assert "NaN" in caplog.text


def test_close_fails_what_is_open_and_refuses_what_comes() -> None:
    gate = Gate()
    runner = ToyRunner(slots=1, before_step=gate)

    def both_known(engine: LocalEngine) -> bool:
        gate.permits.release()  # arrivals are taken in between steps
        return len(engine.scheduler.waiting) == 1

    async def closing(engine: LocalEngine) -> list[list[Event] | BaseException]:
        tasks = [
            asyncio.ensure_future(collect(engine.generate(ask(prompt_of(seed, 20), 150))))
            for seed in range(2)
        ]
        await until(lambda: both_known(engine))
        closer = asyncio.ensure_future(asyncio.to_thread(engine.close))
        await until(lambda: engine._worker._closing)  # else all may be done before it is asked to close
        gate.open()
        await closer
        return await asyncio.gather(*tasks, return_exceptions=True)

    with toy_engine(runner) as engine:
        for result in asyncio.run(closing(engine)):
            assert isinstance(result, list)  # both had been told something already
            assert isinstance(result[-1], Failed)
            assert "stopped" in result[-1].message
        assert engine.health == "stopped"
        with pytest.raises(EngineStopped):
            run(engine, ask(prompt_of(0, 5), 5))
        assert runner.kv.free_count == runner.kv.total


def test_a_fault_of_the_worker_itself_reaches_everyone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def three(engine: LocalEngine) -> list[list[Event] | BaseException]:
        readers = (collect(engine.generate(ask(prompt_of(seed, 20), 50))) for seed in range(3))
        return await asyncio.gather(*readers, return_exceptions=True)

    def broken(pieces: Sequence[Piece]) -> None:
        raise KeyError("books")

    with toy_engine(ToyRunner(slots=1)) as engine:
        monkeypatch.setattr(engine.scheduler, "commit", broken)
        for result in asyncio.run(asyncio.wait_for(three(engine), 20)):
            error = (
                result[-1].message if isinstance(result, list) and isinstance(result[-1], Failed) else result
            )
            assert "KeyError: 'books'" in str(error) or "has failed" in str(error)
        assert engine.health == "failed"
        with pytest.raises(EngineStopped, match="has failed"):
            run(engine, ask([1], 1))
    assert "books" in caplog.text


def test_two_hundred_requests_with_readers_that_leave() -> None:
    dice = random.Random(5)
    runner = ToyRunner(pages=40, slots=3, context=100)
    requests = [
        ask(prompt_of(dice.randrange(20), dice.randrange(2, 40)), dice.randrange(1, 15)) for _ in range(200)
    ]
    leaves = [dice.random() < 0.3 for _ in requests]

    async def one(engine: LocalEngine, request: GenerateRequest, leave: bool) -> Finished | None:
        events = engine.generate(request)
        async for event in events:
            if isinstance(event, Finished):
                return event
            if leave and isinstance(event, TextDelta):
                break
        await events.aclose()
        return None

    async def all_of_them(engine: LocalEngine) -> list[Finished | None]:
        results = await asyncio.gather(*map(one, [engine] * 200, requests, leaves))
        await until(lambda: idle(engine))
        return results

    with toy_engine(runner, EngineOptions(chunk_tokens=16, max_waiting=200)) as engine:
        results = asyncio.run(all_of_them(engine))
        for request, finished, leave in zip(requests, results, leaves, strict=True):
            assert leave or finished is not None
            if finished is not None:
                assert isinstance(request.prompt, list)
                count = request.sampling.max_tokens or 0
                assert list(finished.token_ids) == cold_tokens(request.prompt, count)
        engine.scheduler.check_integrity()
        engine.scheduler.prefix.clear()
        assert runner.kv.free_count == runner.kv.total


def test_a_reader_whose_loop_is_gone_does_not_keep_the_engine_busy() -> None:
    runner = ToyRunner(context=10_000, pages=2500)
    with toy_engine(runner) as engine:
        loop = asyncio.new_event_loop()
        events = engine.generate(ask(prompt_of(0, 5), 9_000))
        loop.run_until_complete(anext(events))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        asyncio.run(until(lambda: idle(engine)))
        assert engine.stats().recent_requests[-1].finish == "cancelled"
        asyncio.run(_close(events))


async def _close(events: AsyncGenerator[Event, None]) -> None:
    await events.aclose()
