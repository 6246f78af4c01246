"""A prompt that changes where it should not is named in the usage of each protocol, as its official client
reads it, in the log and in the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ftagent.gateway.server import start_gateway
from tests.gateway.test_figures import samples
from tests.support.saying_engine import SayingEngine, reply_ids, saying_engine

TOKEN = "token"
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Clients:
    """Both official clients on one gateway; `usage` is what the newest reply said."""

    def __init__(self, engine: SayingEngine, url: str) -> None:
        self.engine = engine
        self.url = url
        self.anthropic = anthropic.Anthropic(base_url=url, api_key=TOKEN, max_retries=0)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0)

    def close(self) -> None:
        self.anthropic.close()
        self.openai.close()

    def messages(self, system: str, user: list[str], streamed: bool) -> Any:
        said: list[Any] = [{"role": "user", "content": words} for words in user]
        request: dict[str, Any] = {"model": "m", "max_tokens": 99, "system": system, "messages": said}
        if not streamed:
            return self.anthropic.messages.create(**request).usage
        with self.anthropic.messages.stream(**request) as stream:
            (usage,) = [event.usage for event in stream if event.type == "message_delta"]
        return usage

    def chat(self, system: str, user: list[str], streamed: bool) -> Any:
        said: list[Any] = [{"role": "system", "content": system}]
        said += [{"role": "user", "content": words} for words in user]
        if not streamed:
            return self.openai.chat.completions.create(model="m", messages=said).usage
        options: Any = {"include_usage": True}
        with self.openai.chat.completions.create(
            model="m", messages=said, stream=True, stream_options=options
        ) as stream:
            (usage,) = [chunk.usage for chunk in stream if chunk.usage]
        return usage

    def responses(self, system: str, user: list[str], streamed: bool) -> Any:
        said: Any = [{"role": "user", "content": words} for words in user]
        if not streamed:
            return self.openai.responses.create(model="m", instructions=system, input=said).usage
        with self.openai.responses.create(model="m", instructions=system, input=said, stream=True) as stream:
            (usage,) = [event.response.usage for event in stream if event.type == "response.completed"]
        return usage


@pytest.fixture
def clients() -> Iterator[Clients]:
    with saying_engine("qwen3_5_like") as engine, start_gateway(engine, token=TOKEN) as gateway:
        found = Clients(engine, gateway.url)
        yield found
        found.close()


@STREAMED
@pytest.mark.parametrize("protocol", ["messages", "chat", "responses"])
def test_the_usage_names_turn_token_and_block(
    clients: Clients, protocol: str, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ask = getattr(clients, protocol)
    usages = []
    for number, system in enumerate(
        ("It is 10:41. Be terse.", "It is 10:42. Be terse.", "It is 10:42. Be terse.")
    ):
        clients.engine.say("Well.")
        usages.append(ask(system, ["a question"] * (number + 1), streamed))
    first, second, third = (usage.model_extra or {} for usage in usages)
    assert "prompt_divergence" not in first
    assert "prompt_divergence" not in third
    found = second["prompt_divergence"]
    prompts = clients.engine.prompts
    parted = next(place for place, (a, b) in enumerate(zip(*prompts[:2], strict=False)) if a != b)
    (start,) = reply_ids("<|im_start|>", end=False)
    said = len(prompts[0]) - 1 - prompts[0][::-1].index(start)  # what the reply begins with is no loss
    assert found == {"turn": 2, "token": parted, "block": "system[0]", "lost": said - parted}
    assert clients.engine.tokenizer.decode(prompts[1][parted : parted + 11]) == "2. Be terse"
    (told,) = [record.message for record in caplog.records if "differs from the one before" in record.message]
    assert told.startswith("turn 2 of a conversation differs")
    assert f"at token {parted}, in block system[0]" in told
    headers = {"authorization": f"Bearer {TOKEN}"}
    text = httpx.get(f"{clients.url}/metrics", headers=headers).text
    assert samples(text)["ftagent_prompt_divergences_total", "system"] == 1
    stats = httpx.get(f"{clients.url}/v1/stats", headers=headers).json()
    assert stats["divergences"] == [["system", 1]]
    assert stats["divergence"]["token"] == parted
