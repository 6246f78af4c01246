"""The engine's face on the toy model: events, limits, cancellation, faults and the end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
import torch

from ftagent.conversation import Conversation, Message, Text
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.engine import LocalEngine
from ftagent.errors import BadRequest, PromptTooLong
from ftagent.events import Event, Logprobs, Progress, TextDelta
from tests.engine.test_scheduler import prompt_of
from tests.support.toy import ToyRunner, cold_tokens, entry, follow, toy_logits
from tests.support.toy_engine import (
    END,
    FREE,
    Gate,
    ask,
    collect,
    content,
    last,
    run,
    text_of,
    toy_engine,
    until,
)


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
        ("prefill", 29, 30),
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
    assert warm.usage.cached_tokens == len(prompt) - 1


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
    assert (stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens) == (41, 19, 10)
    assert stats.running == stats.waiting == 0
    assert stats.decode_tokens_per_s is not None
    assert stats.prefill_tokens_per_s is not None
    assert [request.finish for request in stats.recent_requests] == ["length", "length"]
    assert [request.cached_tokens for request in stats.recent_requests] == [0, 19]
    kv, recurrent = stats.pools
    assert (kv.name, kv.used, kv.total, kv.tokens_per_unit) == ("kv", 0, 64, 4)
    assert (recurrent.name, recurrent.used, recurrent.total) == ("recurrent", 0, 8)
