"""The engine's face on the toy model: events, limits, cancellation, faults and the end."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from ftagent.conversation import Conversation, Message, Text
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.engine import LocalEngine
from ftagent.engine.options import EngineOptions
from ftagent.engine.runner import Chunk
from ftagent.engine.scheduler import Piece
from ftagent.errors import BadRequest, EngineStopped, PromptTooLong, QueueFull
from ftagent.events import Event, Failed, Finished, Logprobs, Progress, TextDelta
from tests.engine.test_scheduler import prompt_of
from tests.support.toy import ToyRunner, cold_tokens, entry, follow, toy_logits
from tests.support.toy_engine import END, collect, content, last, text_of, toy_engine

FREE = SamplingParams(ignore_eos=True)


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


def test_reply_is_the_cold_one_with_usage_and_ids() -> None:
    prompt = prompt_of(0, 30)
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, ask(prompt, 20))
    expected = cold_tokens(prompt, 20)
    finished = last(events)
    assert list(finished.token_ids) == expected
    assert content(events) == text_of(expected)
    assert finished.reason == "length"
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (30, 20)
    progress = [event for event in events if isinstance(event, Progress)]
    assert [(event.phase, event.done, event.total) for event in progress] == [
        ("prefill", 8, 30),
        ("prefill", 16, 30),
        ("prefill", 24, 30),
    ]


def test_end_token_ends_the_reply_and_is_not_text() -> None:
    seed = next(seed for seed in range(500) if END in cold_tokens(prompt_of(seed, 9), 40)[5:])
    expected = cold_tokens(prompt_of(seed, 9), 40)
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, ask(prompt_of(seed, 9), 40, SamplingParams()))
    end = expected.index(END)
    assert last(events).reason == "stop"
    assert list(last(events).token_ids) == expected[: end + 1]
    assert content(events) == text_of(expected[:end])


@pytest.mark.parametrize("place", [0, 3, 11])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_string_ends_the_reply_before_it(place: int, length: int) -> None:
    whole = text_of(cold_tokens(prompt_of(3, 9), 30))
    stop = whole[place : place + length]
    params = replace(FREE, stop=("never there", stop, stop + "~~"))
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, ask(prompt_of(3, 9), 30, params))
    assert content(events) == whole[: whole.index(stop)]
    assert last(events).reason == "stop_sequence"
    assert last(events).stop_sequence == stop


def test_half_a_stop_string_at_the_end_comes_out() -> None:
    whole = text_of(cold_tokens(prompt_of(3, 9), 30))
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, ask(prompt_of(3, 9), 30, replace(FREE, stop=(whole[-4:] + "more",))))
    assert content(events) == whole
    assert last(events).reason == "length"


def test_four_at_once_equal_each_alone() -> None:
    prompts = [prompt_of(seed, length) for seed, length in enumerate((5, 44, 20, 31))]

    async def together(engine: LocalEngine) -> list[list[Event]]:
        return await asyncio.gather(*(collect(engine.generate(ask(prompt, 15))) for prompt in prompts))

    with toy_engine(ToyRunner()) as engine:
        for prompt, events in zip(prompts, asyncio.run(together(engine)), strict=True):
            assert list(last(events).token_ids) == cold_tokens(prompt, 15)


def test_seeded_reply_is_the_same_whatever_else_runs() -> None:
    params = replace(FREE, temperature=1.0, seed=42)
    prompt = prompt_of(1, 25)

    async def crowd(engine: LocalEngine) -> list[Event]:
        others = [
            asyncio.ensure_future(
                collect(engine.generate(ask(prompt_of(seed, 30), 20, replace(params, seed=seed))))
            )
            for seed in range(4)
        ]
        events = await collect(engine.generate(ask(prompt, 20, params)))
        await asyncio.gather(*others)
        return events

    with toy_engine(ToyRunner()) as engine:
        alone = last(run(engine, ask(prompt, 20, params))).token_ids
        other = last(run(engine, ask(prompt, 20, replace(params, seed=43)))).token_ids
        assert last(asyncio.run(crowd(engine))).token_ids == alone
        assert other != alone


def test_prompt_too_long_names_both_numbers_and_touches_nothing() -> None:
    runner = ToyRunner(context=100)
    with toy_engine(runner) as engine:
        for count, limit in ((120, 100), (100, 99)):
            with pytest.raises(PromptTooLong, match=f"{count} tokens > {limit} maximum"):
                run(engine, ask(prompt_of(0, count), 5))
        assert not runner.steps
        assert runner.kv.free_count == runner.kv.total


def test_reply_is_clamped_to_the_rest_of_the_context() -> None:
    with toy_engine(ToyRunner(context=50)) as engine:
        events = run(engine, ask(prompt_of(0, 40), 32_000))
        unlimited = run(engine, GenerateRequest(prompt_of(0, 40), FREE))
    assert last(events).usage.completion_tokens == 10
    assert last(events).reason == "length"
    assert last(unlimited).token_ids == last(events).token_ids


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GenerateRequest([]), "prompt"),
        (GenerateRequest([3, 97]), "prompt"),
        (GenerateRequest("hi", SamplingParams(temperature=-1)), "temperature"),
        (GenerateRequest("hi", SamplingParams(json_schema="{}")), "json_schema"),
    ],
)
def test_bad_requests_are_refused_by_field(request_: GenerateRequest, field: str) -> None:
    with toy_engine(ToyRunner()) as engine, pytest.raises(BadRequest) as refusal:
        run(engine, request_)
    assert refusal.value.field == field


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


def test_count_tokens_and_stats_do_not_wait_for_a_step() -> None:
    gate = Gate()
    conversation = Conversation((Message("user", (Text("hello"),)),))

    async def during(engine: LocalEngine) -> int:
        reader = asyncio.ensure_future(collect(engine.generate(ask(prompt_of(0, 20), 5))))
        await until(lambda: gate.arrived.acquire(blocking=False))  # the step is on its way and stands
        count = await engine.count_tokens(conversation)
        engine.stats()
        assert not reader.done()
        gate.open()
        await reader
        return count

    with toy_engine(ToyRunner(before_step=gate)) as engine:
        assert asyncio.run(during(engine)) == len("user: hello\n")


def test_a_conversation_is_rendered_and_resumed() -> None:
    first = Conversation((Message("user", (Text("one and a half sentence to begin with"),)),))
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, GenerateRequest(first, replace(FREE, max_tokens=5)))
        second = Conversation((*first.messages, Message("user", (Text("and more"),))))
        warm = last(run(engine, GenerateRequest(second, replace(FREE, max_tokens=5))))
        prompt = "user: one and a half sentence to begin with\n"
        assert list(last(events).token_ids) == cold_tokens(engine.encode(prompt), 5)
        assert list(warm.token_ids) == cold_tokens(engine.encode(prompt + "user: and more\n"), 5)
    assert warm.usage.cached_tokens == len(prompt)


def test_logprobs_come_before_their_delta_and_cover_all_tokens() -> None:
    prompt = prompt_of(2, 10)
    with toy_engine(ToyRunner()) as engine:
        events = run(engine, ask(prompt, 6, replace(FREE, top_logprobs=2)))
    reported = [event for event in events if isinstance(event, Logprobs)]
    tokens = [token for event in reported for token in event.tokens]
    assert [token.token_id for token in tokens] == cold_tokens(prompt, 6)
    state, known = 0, list(prompt)
    for token_id in prompt:
        state = follow(state, token_id)
    for token in tokens:
        row = toy_logits(state, [entry(position, known_id) for position, known_id in enumerate(known)])
        expected = torch.from_numpy(row).double().log_softmax(-1)
        assert token.logprob == pytest.approx(float(expected.max()), abs=1e-5)
        assert [top[0] for top in token.top] == expected.topk(2).indices.tolist()
        state = follow(state, token.token_id)
        known.append(token.token_id)
    for before, after in itertools.pairwise(events):
        if isinstance(before, Logprobs):
            assert isinstance(after, TextDelta)


def test_figures_add_up() -> None:
    with toy_engine(ToyRunner()) as engine:
        assert engine.stats().decode_tokens_per_s is None
        run(engine, ask(prompt_of(0, 20), 5))
        run(engine, ask([*prompt_of(0, 20), 1], 5))
        asyncio.run(until(lambda: engine.stats().phase == "idle"))
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens) == (41, 20, 10)
    assert stats.running == stats.waiting == 0
    assert stats.decode_tokens_per_s is not None
    assert stats.prefill_tokens_per_s is not None
    assert [request.finish for request in stats.recent_requests] == ["length", "length"]
    assert [request.cached_tokens for request in stats.recent_requests] == [0, 20]
    kv, recurrent = stats.pools
    assert (kv.name, kv.used, kv.total, kv.tokens_per_unit) == ("kv", 0, 64, 4)
    assert (recurrent.name, recurrent.used, recurrent.total) == ("recurrent", 0, 8)


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
