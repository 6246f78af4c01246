"""The embedded model, started twice: the second start finds on the disk what agents' prompts begin with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftagent import demo
from ftagent.conversation import Conversation, Message, Text, ToolSpec
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.context.contents import TorchContents
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage
from ftagent.engine.context.recurrent import StatePool, StateShape
from ftagent.engine.context.windows import WindowShape
from ftagent.engine.engine import start_engine
from ftagent.engine.options import EngineOptions
from ftagent.engine.prefixes import identity, prefix_dir
from ftagent.events import Finished
from tests.support.toy_engine import collect

OPTIONS = EngineOptions(threads=1, context=2048, max_running=2, keep_prefixes=True)
SYSTEM = "You are an agent that works in a directory of files. " * 12
TOOLS = (
    ToolSpec("read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
)


def ask(question: str, system: str = SYSTEM) -> GenerateRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text(question),)))
    return GenerateRequest(Conversation(messages, TOOLS), SamplingParams(max_tokens=12, temperature=0.0))


def run_once(*questions: GenerateRequest, keep: bool = True) -> list[Finished]:
    engine = start_engine(replace(OPTIONS, keep_prefixes=keep))
    try:
        finished = []
        for question in questions:
            last = asyncio.run(collect(engine.generate(question)))[-1]
            assert isinstance(last, Finished)
            finished.append(last)
        engine.scheduler.check_integrity()
        return finished
    finally:
        engine.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return prefix_dir()


def test_the_second_start_is_warm_and_says_the_same(cache: Path) -> None:
    first = run_once(ask("Which files are here?"))[0]
    assert len(list(cache.glob("*/*.prefix"))) == 1
    second = run_once(ask("What is in notes.txt?"))[0]
    cold = run_once(ask("What is in notes.txt?"), keep=False)[0]
    assert first.usage.cached_tokens == cold.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 0.8 * second.usage.prompt_tokens
    assert second.token_ids == cold.token_ids


def test_another_system_text_is_not_taken_for_this_one(cache: Path) -> None:
    run_once(ask("Which files are here?"))
    other = run_once(ask("Which files are here?", SYSTEM.replace("agent", "robot", 1)))[0]
    assert other.usage.cached_tokens == 0
    assert len(list(cache.glob("*/*.prefix"))) == 2


def test_a_volatile_system_text_is_named(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = start_engine(replace(OPTIONS, keep_prefixes=False))
    try:
        assert engine.stats().divergence is None
        for minute in range(3):
            system = f"It is {minute} past noon. {SYSTEM}"
            asyncio.run(collect(engine.generate(ask("Which files are here?", system))))
        found = engine.stats().divergence
    finally:
        engine.close()
    assert found is not None
    assert (found.turn, found.block, found.volatile) == (3, "system[0]", True)
    assert caplog.text.count("turn 2 of a conversation differs from the one before at token") == 1


def test_models_and_versions_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    one = identity(tmp_path, "print", "torch.float32")
    assert identity(tmp_path, "print", "torch.bfloat16") != one
    assert identity(tmp_path, "other", "torch.float32") != one
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert identity(tmp_path, "print", "torch.float32") != one
    (tmp_path / "model-00001-of-00001.ftw").write_bytes(b"one")
    converted = identity(tmp_path, "print", "torch.float32")
    (tmp_path / "model-00001-of-00001.ftw").write_bytes(b"another")
    assert identity(tmp_path, "print", "torch.float32") != converted
    assert identity(demo.directory(), "print", "x") == identity(demo.directory(), "print", "x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_and_states_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    shape = KvShape(3, 4, 8)
    storage = KvStorage(shape, 9, dtype, torch.device("cpu"))
    states = StatePool(2, StateShape(2, 3, 5, 2, 4, 4), window=WindowShape(2, 4, 8, 6), dtype=dtype)
    for layer in range(3):
        storage.layer(layer).copy_(torch.randn(storage.layer(layer).shape))
    contents = TorchContents(storage, states)
    assert contents.page_bytes == shape.page_bytes(dtype)
    slot = states.allocate()
    states.conv[:, slot].normal_()
    states.recurrent[:, slot].normal_()
    states.windows.stored[:, slot].normal_()
    source, target = [6, 7, 2, 0], [1, 3, 4, 8]
    data = contents.read_pages(source)
    assert len(data) == len(source) * contents.page_bytes
    contents.write_pages(target, data, 0)
    for layer in range(3):
        held = storage.layer(layer).view(4, 9, PAGE_TOKENS, 8)
        assert torch.equal(held[:, source], held[:, target])
    assert contents.read_pages([7]).view() == data.view()[contents.page_bytes : 2 * contents.page_bytes]
    back = contents.unpack(contents.pack(states.snapshot(slot)))
    assert torch.equal(back.conv, states.conv[:, slot])
    assert torch.equal(back.recurrent, states.recurrent[:, slot])
    assert torch.equal(back.window, states.windows.stored[:, slot])
    assert not len(contents.read_pages([]))
