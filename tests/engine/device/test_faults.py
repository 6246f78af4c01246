"""What goes wrong on a device and around it, seen from outside, by the loaded runner and by the engine: no
compiler, memory that cannot be registered or had, a CPU worker that hangs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from ftagent.engine import load
from ftagent.engine.device import build
from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.engine import LocalEngine
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.native_executor import NativeExecutor, TorchExecutor
from ftagent.engine.experts.pinning import CudaRegistrar, Registrar
from ftagent.engine.machine import native
from ftagent.engine.machine.record_threads import ExecutorFailed, RecordPart
from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.prepare import Preparer
from ftagent.engine.prompt.template import ChatTemplate
from ftagent.engine.sampling import SamplingDefaults
from ftagent.errors import LoadFailed
from ftagent.events import Event, Failed, Finished
from tests.engine.experts.test_host_memory import Ledger
from tests.engine.models.driving import Request, logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options
from tests.support.toy_engine import TEMPLATE, ask, collect, toy_tokenizer

TOLERANCE = 2e-4
SMALL = {"num_hidden_layers": 2, "initializer_range": 0.1}


@contextmanager
def loaded(device: torch.device, directory: Path, options: EngineOptions) -> Iterator[DeviceRunner]:
    runner = load_on(device, directory, options, torch.float32)
    try:
        yield runner
    finally:
        runner.close()


def check(runner: DeviceRunner, oracle: Oracle, count: int = 8, seed: int = 0) -> None:
    """A prompt of five tokens, and decode: every logit is the oracle's, and so is every greedy token."""
    tokens = oracle.tokens(count, seed)
    expected = oracle.logits(tokens)
    for position, row in logits_by_chunks(runner, tokens, [5]).items():
        assert float((row.cpu() - expected[position]).abs().max()) < TOLERANCE, position
        assert int(row.argmax()) == int(expected[position].argmax())
    assert runner.experts is not None
    runner.experts.check_integrity()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    monkeypatch.setattr(native, "prebuilt_name", lambda: "not-there.so")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


@pytest.mark.parametrize(("mode", "experts"), [("hybrid", "4"), ("cpu", None), ("fused", None)])
def test_without_a_compiler_the_tokens_are_right(
    mode: Mode,
    experts: str | None,
    tmp_path: Path,
    device: torch.device,
    no_compiler: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No chain where experts can miss: decode rows take the way of prompts, and torch computes on the CPU."""
    oracle = Oracle("qwen3_moe", tmp_path, 20, SMALL)
    with loaded(device, tmp_path, twin_options(mode, experts)) as runner:
        assert runner.experts is not None
        host = runner.experts.prefill._host
        assert runner.experts.chained == (mode == "fused") == (host is None)
        if host is not None:
            assert isinstance(host._executor, TorchExecutor)
            reason = runner.experts.stats().mode_reason
            assert reason == "no native library: decode steps take the way of prompts"
        check(runner, oracle)
    warnings = [text for text in messages(caplog) if "native" in text]
    assert len(warnings) == 1, "said once"
    assert "no C++ compiler in PATH" in warnings[0]


class Refusing:
    """Registers like `inner`, but for the banks from the third on."""

    def __init__(self, inner: Registrar) -> None:
        self._inner = inner
        self.sizes: list[int] = []

    def register(self, address: int, size: int) -> str | None:
        self.sizes.append(size)
        return "out of memory" if len(self.sizes) > 2 else self._inner.register(address, size)

    def unregister(self, address: int) -> None:
        self._inner.unregister(address)


@pytest.mark.parametrize("mode", ["hybrid", pytest.param("offload", marks=pytest.mark.slow)])
def test_layers_over_the_quota_are_named_once_and_their_experts_are_right(
    mode: Mode,
    tmp_path: Path,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 21, {**SMALL, "num_hidden_layers": 3})
    registrar = Refusing(CudaRegistrar(device) if device.type == "cuda" else Ledger())
    monkeypatch.setattr(load, "_registrar", lambda device: registrar)
    with loaded(device, tmp_path, twin_options(mode, "9")) as runner:
        assert runner.experts is not None
        tables = runner.experts._tables
        unpinned = [layer for layer, bank in enumerate(tables.banks) if not bank.pinned]
        (said,) = [text for text in messages(caplog) if "pinned" in text]
        assert "1 of 3 expert layers are not pinned" in said
        assert f"(first layer {min(unpinned)}, {registrar.sizes[2]} bytes: out of memory)" in said
        check(runner, oracle, 6)
        before = runner.experts.stats()
        assert before.misses > 0
        held = [resident(runner, layer) for layer in unpinned]
        check_decode_only(runner, oracle)
        came = [resident(runner, layer) - old for layer, old in zip(unpinned, held, strict=True)]
        assert mode == "offload" or not any(came), "only a prompt brings experts to such a layer"
        assert runner.experts.mode == mode
    assert all(not bank.pinned for bank in tables.banks)


def resident(runner: DeviceRunner, layer: int) -> set[int]:
    assert runner.experts is not None
    slots = runner.experts._tables.slots_of(layer)
    return {expert for expert, slot in enumerate(slots) if slot is not None}


def check_decode_only(runner: DeviceRunner, oracle: Oracle) -> None:
    """A prompt of one token is decoded too, so no prompt admits anything."""
    tokens = oracle.tokens(2, 9)
    expected = oracle.logits(tokens)
    for position, row in logits_by_chunks(runner, tokens, [1]).items():
        assert float((row.cpu() - expected[position]).abs().max()) < TOLERANCE, position
    assert runner.experts is not None
    runner.experts.check_integrity()


def device_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


PLACES = ["SlotStore", "StagingRing", "MailboxLayout", "Conductor", "PrefillExperts", "DecodeStep"]


@pytest.mark.parametrize("place", PLACES)
def test_memory_that_cannot_be_had_is_the_planners_message(
    place: str, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is allocated when it fails: no thread, no registration, no tensor of the device stays."""
    Oracle("qwen3_moe", tmp_path, 22, SMALL)
    native.load()
    ledger = Ledger()
    opened: list[NativeExecutor] = []

    def refuse(*_: object, **__: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate 2.00 GiB.")

    def watched(*args: object) -> object:
        opened.append(NativeExecutor(*args))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(load, "_registrar", lambda device: ledger)
    monkeypatch.setattr(build, "record_executor", watched)
    monkeypatch.setattr(build, place, refuse)
    before = set(threading.enumerate())
    used = device_bytes(device)
    with pytest.raises(LoadFailed) as caught:
        load_on(device, tmp_path, twin_options("hybrid", "4"), torch.float32)
    words = str(caught.value)
    assert "\n" not in words
    assert str(tmp_path) in words
    assert "no room for the 0." in words
    assert "4 expert slots" in words
    assert "Tried to allocate 2.00 GiB" in words
    assert "--vram" in words
    assert caught.value.__context__ is None, "else it holds what was allocated"
    assert not ledger.held
    assert set(threading.enumerate()) <= before
    gc.collect()
    assert device_bytes(device) == used
    assert [executor.failed for executor in opened] == ["the expert executor is closed"] * len(opened)
    assert bool(opened) == (place not in ("SlotStore", "StagingRing"))


@contextmanager
def engine_on(runner: DeviceRunner) -> Iterator[LocalEngine]:
    """As `start_engine` puts one together, with a vocabulary of characters."""
    tokenizer = toy_tokenizer()
    preparer = Preparer(
        runner.info,
        tokenizer,
        ChatTemplate(TEMPLATE, tokenizer),
        SamplingDefaults(temperature=0),
        form="plain",
        constrain="required",
        seed=0,
    )
    engine = LocalEngine(runner, preparer, EngineOptions())
    try:
        yield engine
    finally:
        engine.close()
        engine.scheduler.check_integrity()


def reply(engine: LocalEngine, prompt: list[int], count: int) -> list[Event]:
    return asyncio.run(collect(engine.generate(ask(prompt, count))))


@pytest.mark.parametrize("asked", ["auto", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_a_hanging_worker_fails_the_open_request_and_the_engine_goes_on(
    asked: Mode, tmp_path: Path, device: torch.device
) -> None:
    Oracle("qwen3_moe", tmp_path, 23, {**SMALL, "vocab_size": 97})
    runner = load_on(device, tmp_path, twin_options(asked, "7"), torch.float32)
    assert runner.experts is not None
    conductor, host = runner.experts._conductor, runner.experts.prefill._host
    assert conductor is not None
    assert host is not None
    assert isinstance(host._executor, NativeExecutor)
    with engine_on(runner) as engine:
        conductor.set_costs(CostModel(fetch_expert=10**9, cpu_expert=1000))  # all misses go to the CPU
        conductor.set_watchdog(0.2, 60)
        host._executor.stall_for_test(2.0)
        last = reply(engine, [7], 4)[-1]  # prompts of one token are decoded: the CPU's first work
        assert isinstance(last, Failed)
        assert "CPU worker 0 did not end its part within 0.2 s" in last.message
        assert engine.health == "ok"
        after = reply(engine, [8], 2)[-1]
        assert isinstance(after, Finished)
        assert after.usage.completion_tokens == 2
        stats = engine.stats().experts
        assert stats is not None
        assert stats.mode == "offload"
        assert stats.mode_reason is not None
        assert "hybrid cannot be run: layer" in stats.mode_reason
        assert "CPU worker 0" in stats.mode_reason


def test_a_worker_that_hangs_in_a_prompt_is_known_to_decode(tmp_path: Path, device: torch.device) -> None:
    """The prompt's request fails; the next one is computed without the CPU, and the mode says so."""
    oracle = Oracle("qwen3_moe", tmp_path, 24, SMALL)
    with loaded(device, tmp_path, twin_options("hybrid", "4")) as runner:
        assert runner.experts is not None
        host = runner.experts.prefill._host
        assert host is not None
        assert isinstance(host._executor, NativeExecutor)
        runner.experts._tables.costs = CostModel(fetch_expert=10**9, cpu_expert=1000)
        assert runner.experts._conductor is not None
        runner.experts._conductor.set_costs(runner.experts._tables.costs)
        host._timeout_s = 0.2
        host._executor.stall_for_test(2.0)
        request = Request(runner)
        with pytest.raises(ExecutorFailed, match=r"expert worker 0 of 1 did not answer within 0\.2 s"):
            request.feed(oracle.tokens(5))
        request.close()
        check(runner, oracle, seed=1)
        stats = runner.experts.stats()
        assert stats.mode == "offload"
        assert stats.mode_reason is not None
        assert "hybrid cannot be run: expert worker 0 of 1 did not answer" in stats.mode_reason


@pytest.mark.slow
def test_without_the_cpu_few_slots_serve_rows_one_by_one(tmp_path: Path, device: torch.device) -> None:
    """Four slots for two layers hold the three experts of one token, not the six of two."""
    oracle = Oracle("qwen3_moe", tmp_path, 25, SMALL)
    texts = [oracle.tokens(3, seed) for seed in (1, 2)]
    expected = [oracle.logits(tokens) for tokens in texts]
    with loaded(device, tmp_path, twin_options("hybrid", "4", max_running=2)) as runner:
        assert runner.experts is not None
        host = runner.experts.prefill._host
        assert host is not None
        assert isinstance(host._executor, NativeExecutor)
        assert runner.experts.most_rows is None
        kept = hang(host._executor)
        assert runner.experts.most_rows == 1
        requests = [Request(runner) for _ in texts]
        for place in range(3):
            rows = runner.step([r.chunk([text[place]]) for r, text in zip(requests, texts, strict=True)])
            for row, logits in zip(rows, expected, strict=True):
                assert float((row.cpu() - logits[place]).abs().max()) < TOLERANCE
        assert runner.experts.mode == "offload"
        del kept


def hang(executor: NativeExecutor) -> tuple[torch.Tensor, ...]:
    """A worker does not answer in time, with work on the tensors that are returned: keep them meanwhile."""
    shape = executor.shape
    records = torch.zeros(shape.intermediate, 3, shape.hidden, dtype=shape.dtype)
    x, y = torch.zeros(1, shape.hidden, dtype=shape.dtype), torch.zeros(1, shape.hidden)
    executor.stall_for_test(0.5)
    with pytest.raises(ExecutorFailed):
        executor.run([RecordPart(records.data_ptr(), 0, shape.intermediate, 0)], x, y, timeout_s=0.1)
    return records, x, y
