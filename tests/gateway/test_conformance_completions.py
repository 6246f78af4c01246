"""The official openai SDK against /v1/completions, which benchmark tools use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.gateway.stage import TOKEN, Stage
from tests.gateway.test_conformance_openai import LOGPROBS, STREAMED


@pytest.fixture
def client(stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stage.gateway.url + "/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


@STREAMED
def test_completion_logprobs_cover_every_token(client: openai.OpenAI, stage: Stage, streamed: bool) -> None:
    stage.play(LOGPROBS)
    reply = client.completions.create(model="m", prompt=[1, 2, 3], logprobs=2, stream=streamed)
    choices = [chunk.choices[0] for chunk in reply] if isinstance(reply, openai.Stream) else reply.choices
    assert "".join(choice.text for choice in choices) == "Hello é"
    told = [choice.logprobs for choice in choices if choice.logprobs is not None]
    assert [token for part in told for token in part.tokens or []] == ["Hel", "lo", " é", "<end>"]
    assert [offset for part in told for offset in part.text_offset or []] == [0, 3, 5, 7]
    assert stage.engine.requests[-1].prompt == [1, 2, 3]


def test_completion_extras_reach_the_engine(client: openai.OpenAI, stage: Stage) -> None:
    extras = {"ignore_eos": True, "top_k": 5, "min_p": 0.125, "repetition_penalty": 1.5, "min_tokens": 3}
    reply = client.completions.create(model="m", prompt="say", seed=4, max_tokens=9, extra_body=extras)
    assert reply.choices[0].text == "Hello"
    sampling = stage.engine.requests[-1].sampling
    assert stage.engine.requests[-1].prompt == "say"
    assert (sampling.ignore_eos, sampling.top_k, sampling.min_p) == (True, 5, 0.125)
    assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.5, 4, 9)


def test_streamed_completion_usage_comes_last(client: openai.OpenAI, stage: Stage) -> None:
    chunks = list(
        client.completions.create(
            model="m", prompt="say", stream=True, stream_options={"include_usage": True}
        )
    )
    assert [chunk.choices[0].text for chunk in chunks[:-1]] == ["Hel", "lo", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 1007


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"extra_body": {"min_tokens": 3}}, "min_tokens"),
    ],
)
def test_completions_refuse_by_name(
    client: openai.OpenAI, stage: Stage, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "m", "prompt": "x", **fields})
    assert caught.value.param == name


@pytest.mark.parametrize("prompt", [["say"], [[1, 2]]])
def test_one_prompt_in_a_list_is_that_prompt(client: openai.OpenAI, stage: Stage, prompt: Any) -> None:
    client.completions.create(model="m", prompt=prompt)
    assert stage.engine.requests[-1].prompt == prompt[0]
